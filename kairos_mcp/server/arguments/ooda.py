"""The arguments of the tools for mandates: cycles, each phase alone, and saving and listing mandates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, create_model

from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.mandate import MandateStatus
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.routes import ROUTE_TEXT, RouteName
from kairos_mcp.flows.ooda.phase_kinds import PhaseKind, phase_before
from kairos_mcp.server.arguments.base import (
    CURSOR_TEXT,
    DEFAULT_WAIT_S,
    WAIT_TEXT,
    WORKSPACE_TEXT,
    Arguments,
    LimitsArgument,
    RunId,
    StartArguments,
    Wait,
    in_listing,
)

if TYPE_CHECKING:
    from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PhaseRequest

PhaseInput = RunId | JsonObject  # the listing says the first, which is short: a text may be the JSON of the second
MandateId = Annotated[str, Field(min_length=1, max_length=64)]


class _MandateArguments(StartArguments):
    """What all runs of OODA take. The mandate itself is checked when it is parsed."""

    mandate_id: MandateId | None = Field(
        None, description="The id of a saved mandate.", json_schema_extra=in_listing("")
    )
    mandate: JsonObject | None = Field(
        None,
        description="The mandate itself, in place of the id of a saved one; its form is that of mandate_save.",
        json_schema_extra=in_listing(""),
    )
    route: RouteName | None = Field(None, description=ROUTE_TEXT, json_schema_extra=in_listing(""))
    limits: LimitsArgument | None = Field(
        None,
        description="The most that the run may use, within the limits of the mandate and the configured ones. `rounds` "
        "is refused: phases have none; use `model_calls`.",
        json_schema_extra=in_listing(""),
    )
    workspace: Annotated[str, Field(max_length=4_096)] | None = Field(
        None, description=WORKSPACE_TEXT, json_schema_extra=in_listing("")
    )
    wait_s: Wait | None = Field(None, description=WAIT_TEXT, json_schema_extra=in_listing(""))

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s

    @property
    def mandate_ref(self) -> MandateRef:
        """Which mandate the run is for."""
        from kairos_mcp.core.run_spec import MandateRef

        return MandateRef(self.mandate_id, self.mandate, workspace=self.workspace)


class OodaRun(_MandateArguments):
    cycles: Annotated[int, Field(ge=1, le=10)] | None = Field(
        None,
        description="The most cycles of this run. Default: `max_cycles` of the mandate.",
        json_schema_extra=in_listing(""),
    )

    def request(self) -> CyclesRequest:
        """The request for cycles."""
        from kairos_mcp.core.run_spec import CyclesRequest

        return CyclesRequest(self.mandate_ref, self.cycles, self.route or "auto", self.limits or UNLIMITED)


class OodaPhase(_MandateArguments):
    """What all phases take that run alone. `kind`: which phase it is."""

    kind: ClassVar[PhaseKind]

    goal: Annotated[str, Field(min_length=1, max_length=8_000)] | None = Field(
        None, description="What to work towards, in place of a mandate.", json_schema_extra=in_listing("")
    )

    @property
    def mandate_ref(self) -> MandateRef:
        from dataclasses import replace

        return replace(super().mandate_ref, goal=self.goal)

    def request(self) -> PhaseRequest:
        """The request for this phase. Its input is the argument that has a name of its own for each phase."""
        from kairos_mcp.core.run_spec import PhaseRequest

        given = None if self.kind.input_name is None else getattr(self, self.kind.input_name)
        return PhaseRequest(self.kind.name, self.mandate_ref, given, self.route or "auto", self.limits or UNLIMITED)


def phase_arguments(kind: PhaseKind) -> type[OodaPhase]:
    """Return the class of the arguments of the tool that runs a phase alone."""
    before, fields = phase_before(kind.name), dict[str, Any]()
    if before is not None and kind.input_name is not None:
        about = f"The id of the run of {before.tool}, which stands for its mandate too; or its whole output."
        fields[kind.input_name] = PhaseInput, Field(description=about)
    made = create_model(f"Ooda{kind.title}", __base__=OodaPhase, **fields)
    made.kind = kind
    return made


class MandateSave(Arguments):
    mandate: JsonObject = Field(
        description="The mandate, in the form above. One with the same id is replaced.",
        json_schema_extra=in_listing(""),
    )


class MandateList(Arguments):
    status: MandateStatus | None = Field(None, description="List only mandates of this status.")
    all: bool | None = Field(None, description="List also those of other workspaces.")
    cursor: str | None = Field(None, description=CURSOR_TEXT)
