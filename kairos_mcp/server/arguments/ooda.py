"""The tools for mandates: cycles, each phase alone, and saving and listing mandates, with their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, create_model

from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.mandate import MandateStatus
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.routes import ROUTE_TEXT, RouteName
from kairos_mcp.flows.ooda.phase_kinds import PHASES, PhaseKind, phase_before
from kairos_mcp.server.arguments.base import (
    AT_LIMIT_TEXT,
    CURSOR_TEXT,
    DEFAULT_WAIT_S,
    WAIT_TEXT,
    WORKSPACE_TEXT,
    Arguments,
    AtLimit,
    LimitsArgument,
    RunId,
    StartArguments,
    Wait,
    in_listing,
)
from kairos_mcp.server.server_tool import OBJECT, TEXT, TEXTS, ServerTool

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
    at_limit: AtLimit | None = Field(None, description=AT_LIMIT_TEXT, json_schema_extra=in_listing(""))

    def request(self) -> CyclesRequest:
        """The request for cycles."""
        from kairos_mcp.core.run_spec import CyclesRequest

        route, limits = self.route or "auto", self.limits or UNLIMITED
        return CyclesRequest(self.mandate_ref, self.cycles, route, limits, at_limit=self.at_limit or "end")


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


def _phase_tool(kind: PhaseKind) -> ServerTool:
    """Make the tool that runs a phase alone. Its `output` has the listed keys once the phase has ended."""
    output = {"type": "object", "properties": {name: {"type": each} for name, each in kind.output.items()}}
    return ServerTool(
        kind.tool,
        kind.title,
        f"Run one phase alone: {kind.about}",
        "irreversible" if kind.calls is None else "idempotent",
        phase_arguments(kind),
        {**OBJECT, "properties": {"output": output}},
        "OODA phase",
        briefs={"limits": OBJECT, "route": TEXT, "goal": TEXT},
    )


MANDATE_SHAPE = (
    "{goal, id?, observe?: [tool|{tool, args}], max_cycles?, checkpoint_every?, risk_budget?: low|medium, "
    "allowed_actions?: [code_edit|edit_plan|create_file|run_tool|noop], "
    "decide_hints?: {prefer_scope?, max_edit_bytes?}, "
    "acceptance?: [{check: file_exists|file_contains|command_succeeds, path?, text?, argv?, cwd?}], "
    "tools?: [glob], workspace?, limits?, day?, schedule?: {rule, time_zone?, catch_up?, bound?}, "
    "starts_on?: [{event, mandate_id?, server?, arguments?}]}; "
    "all of it: kairos://schema/mandate"
)

TOOLS = (
    ServerTool(
        "ooda_run",
        "Run a mandate",
        "Work on a mandate (a standing goal) in cycles until it holds: observe, orient, decide, act, reflect. Changes "
        "ask a person unless allowed. One run at a time.",
        "idempotent",
        OodaRun,
        OBJECT,
        "keep going or iterate until it passes; start the mandate now, run another cycle",
        briefs={"limits": OBJECT, "route": TEXT, "after": TEXTS, "known": TEXTS, "at_limit": TEXT},
    ),
    *map(_phase_tool, PHASES.values()),
    ServerTool(
        "mandate_save",
        "Save a mandate",
        'Save a mandate: a standing goal, for "do this each week", "every day", "whenever", "make sure that".\n'
        f"{MANDATE_SHAPE}",
        "idempotent",
        MandateSave,
        OBJECT,
        "make sure that a rule holds; do this, look or check every morning, every Friday, each week on Monday, "
        "daily, weekly, hourly, nightly, on schedule, from today on, always; watch or monitor a log, remind, keep up "
        "to date, repair what fails",
    ),
    ServerTool(
        "mandate_list",
        "List mandates",
        "List the saved mandates with their status and newest run.",
        "read",
        MandateList,
        OBJECT,
        "which schedules, scheduled and standing goals do I have",
    ),
)
