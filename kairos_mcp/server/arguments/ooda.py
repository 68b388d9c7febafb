"""The arguments of the tools for mandates: cycles, each phase alone, and saving and listing mandates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.mandate import MandateStatus
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import Route
from kairos_mcp.server.arguments.base import DEFAULT_WAIT_S, Arguments, LimitsArgument, RunId, Wait

if TYPE_CHECKING:
    from kairos_mcp.app.cycles import RunOptions
    from kairos_mcp.app.mandates import MandateRef

PhaseInput = JsonObject | RunId
MandateId = Annotated[str, Field(min_length=1, max_length=64)]


class _MandateArguments(Arguments):
    """What all runs of OODA take. The mandate itself is checked when it is parsed."""

    mandate_id: MandateId | None = None
    mandate: JsonObject | None = None
    route: Route | None = None
    limits: LimitsArgument | None = None
    workspace: Annotated[str, Field(max_length=4_096)] | None = None
    wait_s: Wait | None = None

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s

    @property
    def mandate_ref(self) -> MandateRef:
        """Which mandate the run is for."""
        from kairos_mcp.app.mandates import MandateRef

        return MandateRef(self.mandate_id, self.mandate, workspace=self.workspace)

    @property
    def options(self) -> RunOptions:
        """The options of the run."""
        from kairos_mcp.app.cycles import RunOptions

        return RunOptions(None, self.route or "auto", self.limits or UNLIMITED)


class OodaRun(_MandateArguments):
    cycles: Annotated[int, Field(ge=1, le=10)] | None = Field(None, description="Default: its max_cycles")

    @property
    def options(self) -> RunOptions:
        from dataclasses import replace

        return replace(super().options, cycles=self.cycles)


class OodaPhase(_MandateArguments):
    """A phase alone."""

    goal: Annotated[str, Field(min_length=1, max_length=8_000)] | None = Field(
        None, description="In place of a mandate"
    )

    @property
    def mandate_ref(self) -> MandateRef:
        from dataclasses import replace

        return replace(super().mandate_ref, goal=self.goal)

    @property
    def phase_input(self) -> PhaseInput | None:
        """The output of the phase before, or its run id; None for the first phase."""
        return None


class OodaObserve(OodaPhase):
    pass


class OodaOrient(OodaPhase):
    observation: PhaseInput = Field(description="Output of ooda_observe, or its run_id")

    @property
    def phase_input(self) -> PhaseInput:
        return self.observation


class OodaDecide(OodaPhase):
    orientation: PhaseInput = Field(description="Output of ooda_orient, or its run_id")

    @property
    def phase_input(self) -> PhaseInput:
        return self.orientation


class OodaAct(OodaPhase):
    decision: PhaseInput = Field(description="Output of ooda_decide, or its run_id")

    @property
    def phase_input(self) -> PhaseInput:
        return self.decision


class OodaReflect(OodaPhase):
    act_result: PhaseInput = Field(description="Output of ooda_act, or its run_id")

    @property
    def phase_input(self) -> PhaseInput:
        return self.act_result


class MandateSave(Arguments):
    mandate: JsonObject


class MandateList(Arguments):
    status: MandateStatus | None = None
    all: bool | None = Field(None, description="Other workspaces' too")
    cursor: str | None = None
