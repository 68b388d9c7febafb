"""Whether a run works in a stage, as its start decides it."""

from __future__ import annotations

from collections.abc import Iterable

from kairos_mcp.core.builtin_tools import CONTAINED_TOOLS, SUBMIT_CHANGES
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import ToolSet, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Whether a run is to work in a stage, and why there can be none, or none but a copy of the workspace, if so.
    `tools`: those that only such runs have. `is_required`: rather than without one, it is not started. `taken_over`:
    the stage of the run that it continues."""

    is_wanted: bool = False
    is_required: bool = False
    problem: str | None = None
    no_layer: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    taken_over: str | None = None

    def is_taken(self, offered: Iterable[ToolSpec]) -> bool:
        """Whether a run with these tools works in a stage: one that may change files. Raises BadArguments."""
        if not (self.is_wanted and _may_change(offered)):
            return False
        if self.problem is not None and self.is_required:
            raise BadArguments(f"There can be no stage here: {self.problem}.", "Leave stage out, or make it auto.")
        return self.problem is None

    def add_for_task(self, offered: ToolSet) -> ToolSet:
        """Add the stage's tools to those of a loop that may change files, and whose run submits for it."""
        own = [spec for spec in self.tools if spec.name != SUBMIT_CHANGES.name]
        return ToolSet((*offered, *own)) if _may_change(offered) else offered

    def notes(self, *, is_staged: bool) -> tuple[str, ...]:
        """Say why a run that was to have a stage has none, or one that is a copy."""
        if is_staged:
            return () if self.no_layer is None else (f"staged in a copy of the workspace: {self.no_layer}",)
        return (f"not staged: {self.problem}",) if self.is_wanted and self.problem is not None else ()


def _may_change(offered: Iterable[ToolSpec]) -> bool:
    return any(spec.name in CONTAINED_TOOLS and spec.source == "builtin" for spec in offered)


NO_STAGE = StageChoice()
