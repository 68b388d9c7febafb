"""A wiring whose runs are of another flow than their specs say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.stored_specs import StoredSpecs
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.runs import NewRun


class OtherFlow(RunFactory, ABC):
    """Changes what is loaded of every run, of a new one as of one that is loaded again."""

    def __init__(self, settings: Settings, store: Store) -> None:
        super().__init__(settings, store)
        self.specs = _ChangedSpecs(settings, store, self._find_tools)
        self.specs.change = self.change

    @abstractmethod
    def change(self, loaded: LoadedSpec) -> LoadedSpec: ...


class _ChangedSpecs(StoredSpecs):
    """Keeps none of them: what is kept would be changed once more."""

    change: Callable[[LoadedSpec], LoadedSpec]

    async def load(self, run: RunRow) -> LoadedSpec:
        return self.change(await super().load(run))

    async def load_new(self, new: NewRun, spec: Spec) -> LoadedSpec:
        return self.change(await super().load_new(new, spec))

    def keep(self, run: RunRow, loaded: LoadedSpec) -> None:
        pass
