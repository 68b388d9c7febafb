"""A wiring whose runs are of another flow than their specs say."""

from __future__ import annotations

from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.runs import NewRun


class OtherFlow(RunFactory):
    """Changes what is loaded of every run, of a new one as of one that is loaded again."""

    def change(self, loaded: LoadedSpec) -> LoadedSpec:
        raise NotImplementedError

    async def load_spec(self, run: RunRow) -> LoadedSpec:
        return self.change(await super().load_spec(run))

    async def load_new_spec(self, new: NewRun, spec: Spec) -> LoadedSpec:
        return self.change(await super().load_new_spec(new, spec))

    def bind_state(self, state: RunState, run: RunRow, loaded: LoadedSpec) -> None:
        """What is kept of the spec is kept as it is stored, since it is changed when it is loaded again."""
        super().bind_state(state, run, loaded)
        self.forget_specs()
