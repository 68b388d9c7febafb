"""What each tool may be given: strict models of the arguments, and what they become inside.

The only place where arguments from outside are taken apart. The input schemas that clients see are made
from these models, so a field's description is what a calling model reads. How a refusal is worded is in
refusals.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.messages import Effect, JsonObject, Message, ToolCall, ToolSpec
from kairos_mcp.steps import Limits

if TYPE_CHECKING:
    from kairos_mcp.hall.mandating import Asked, Meant
    from kairos_mcp.reports.trace import TraceQuery
    from kairos_mcp.spec import PlannerRequest

LINKED_CHARS = 100_000  # P14: explicit error beyond it, never a silent cut
PRIOR_CHARS = 400_000  # a conversation to go on from: four characters to a token of the default context

RunId = Annotated[str, Field(min_length=1, max_length=100)]
Linked = Annotated[str, Field(max_length=LINKED_CHARS)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
RouteArgument = Literal["auto", "provider", "sampling", "caller", "scripted"]
Wait = Annotated[float, Field(ge=0, le=600)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Amount = Annotated[float, Field(ge=0, le=10**6)]
DEFAULT_WAIT_S = 45.0  # hosts give up at about 60


class Arguments(BaseModel):
    """Nothing is coerced, nothing unknown is dropped; absent and null are the same."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class LimitsArgument(Arguments):
    """Every unit may be left out; null is refused, since some clients send it for NaN."""

    rounds: Count | None = None
    model_calls: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    usd: Amount | None = None
    tool_calls: Count | None = None
    seconds: Amount | None = Field(None, description="Model and tool time, not waiting")

    @model_validator(mode="before")
    @classmethod
    def _null_is_no_limit(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for name in cls.model_fields:
                if name in given and given[name] is None:
                    raise PydanticCustomError("null_limit", f"{name} is null; leave out what is not limited")
        return given

    def limits(self) -> Limits:
        return Limits(
            rounds=self.rounds,
            model_calls=self.model_calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            total_tokens=self.total_tokens,
            nano_usd=None if self.usd is None else round(self.usd * 10**9),
            tool_calls=self.tool_calls,
            milliseconds=None if self.seconds is None else round(self.seconds * 1000),
        )


class CallerTool(Arguments):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Annotated[str, Field(max_length=8_000)]
    input_schema: JsonObject
    effect: Effect | None = None

    def spec(self) -> ToolSpec:
        """What says nothing of its effect is irreversible."""
        return ToolSpec(
            self.name, self.description, self.input_schema, self.effect or "irreversible", "caller", "caller"
        )


class PriorCall(Arguments):
    id: Name
    name: Name
    arguments: JsonObject


class PriorMessage(Arguments):
    role: Literal["user", "assistant", "tool"]
    content: Linked
    tool_calls: Annotated[list[PriorCall], Field(max_length=64)] | None = None
    tool_call_id: Name | None = None

    def message(self) -> Message:
        calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in self.tool_calls or ())
        return Message(self.role, self.content, calls, self.tool_call_id)


class PlannerRun(Arguments):
    goal: Annotated[str, Field(min_length=1, max_length=LINKED_CHARS)]
    context: Linked | None = Field(None, description="Material the goal refers to")
    system: Linked | None = Field(None, description="Replaces the system prompt")
    messages: Annotated[list[PriorMessage], Field(max_length=1_000)] | None = Field(
        None,
        description="A conversation to go on from: {role: user|assistant|tool, content, "
        "tool_calls?: [{id, name, arguments}], tool_call_id?}",
    )
    continues: RunId | None = Field(None, description="An ended run to go on from")
    tools: Annotated[list[Name], Field(max_length=64)] | None = Field(
        None, description="Globs; default: all that only read"
    )
    caller_tools: Annotated[list[CallerTool], Field(max_length=64)] | None = Field(
        None,
        description="Tools you execute: {name, description, input_schema, effect?}",
    )
    route: RouteArgument | None = Field(None, description="Who thinks; caller is you")
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="For a provider: provider:model"
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    limits: LimitsArgument | None = Field(None, description="Narrow what is configured")
    output_schema: JsonObject | None = Field(None, description="JSON Schema of output")
    workspace: Annotated[str, Field(max_length=4_096)] | None = Field(None, description="A configured folder")
    key: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(None, description="Same key, same run")
    wait_s: Wait | None = Field(None, description="Seconds to block, to 600; default 45")

    @field_validator("goal")
    @classmethod
    def _says_something(cls, goal: str) -> str:
        if goal.isspace():
            raise PydanticCustomError("blank", "Should say what to achieve")
        return goal

    @field_validator("messages")
    @classmethod
    def _each_call_has_one_result(cls, messages: list[PriorMessage] | None) -> list[PriorMessage] | None:
        """Models refuse a conversation in which a call and its result don't stand side by side."""
        if sum(len(message.content) for message in messages or ()) > PRIOR_CHARS:
            raise PydanticCustomError("too_long", f"Should have at most {PRIOR_CHARS} characters in all")
        owed: list[str] = []
        for at, message in enumerate(messages or ()):
            if message.role == "tool" and message.tool_call_id in owed:
                owed.remove(message.tool_call_id)
            elif message.role == "tool" or owed:
                raise PydanticCustomError("unpaired", f"At {at}: each call should have one result after it")
            elif message.tool_call_id is not None or (message.tool_calls and message.role == "user"):
                raise PydanticCustomError("misplaced", f"At {at}: calls belong to assistant, ids to tool")
            owed += [call.id for call in message.tool_calls or ()]
        if owed:
            raise PydanticCustomError("unpaired", "Should not end with a call that has no result")
        return messages

    def request(self) -> PlannerRequest:
        from kairos_mcp.spec import PlannerRequest

        return PlannerRequest(
            goal=self.goal,
            system=self.system,
            context=self.context,
            messages=tuple(message.message() for message in self.messages or ()),
            continues=self.continues,
            tools=None if self.tools is None else tuple(self.tools),
            caller_tools=tuple(tool.spec() for tool in self.caller_tools or ()),
            model=self.model,
            temperature=self.temperature,
            route=self.route or "auto",
            limits=Limits() if self.limits is None else self.limits.limits(),
            output_schema=self.output_schema,
            workspace=self.workspace,
            key=self.key,
        )

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


MandateId = Annotated[str, Field(min_length=1, max_length=64)]


class _Ordered(Arguments):
    """What all runs of OODA are told; the mandate itself is read by `mandate_of`."""

    mandate_id: MandateId | None = None
    mandate: JsonObject | None = None
    route: RouteArgument | None = None
    limits: LimitsArgument | None = Field(None, description="Narrow what is configured")
    wait_s: Wait | None = None

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s

    @property
    def meant(self) -> Meant:
        from kairos_mcp.hall.mandating import Meant

        return Meant(self.mandate_id, self.mandate)

    @property
    def asked(self) -> Asked:
        from kairos_mcp.hall.mandating import Asked

        return Asked(None, self.route or "auto", Limits() if self.limits is None else self.limits.limits())


class OodaRun(_Ordered):
    cycles: Annotated[int, Field(ge=1, le=10)] | None = Field(None, description="Default: its max_cycles")

    @property
    def asked(self) -> Asked:
        from dataclasses import replace

        return replace(super().asked, cycles=self.cycles)


class OodaPhase(_Ordered):
    """A phase alone. `given`: what the phase before gave, which each phase but the first names in its own way."""

    goal: Annotated[str, Field(min_length=1, max_length=8_000)] | None = Field(
        None, description="In place of a mandate"
    )

    @property
    def meant(self) -> Meant:
        from dataclasses import replace

        return replace(super().meant, goal=self.goal)

    @property
    def given(self) -> JsonObject | None:
        return None


class OodaObserve(OodaPhase):
    pass


class OodaOrient(OodaPhase):
    observation: JsonObject = Field(description="Output of ooda_observe")

    @property
    def given(self) -> JsonObject | None:
        return self.observation


class OodaDecide(OodaPhase):
    orientation: JsonObject = Field(description="Output of ooda_orient")

    @property
    def given(self) -> JsonObject | None:
        return self.orientation


class OodaAct(OodaPhase):
    decision: JsonObject = Field(description="Output of ooda_decide")

    @property
    def given(self) -> JsonObject | None:
        return self.decision


class OodaReflect(OodaPhase):
    act_result: JsonObject = Field(description="Output of ooda_act")

    @property
    def given(self) -> JsonObject | None:
        return self.act_result


class MandateSave(Arguments):
    mandate: JsonObject = Field(
        description="{goal, id?, observe?: [tool | {tool, args}], max_cycles?, checkpoint_every?, risk_budget?, "
        "allowed_actions?: [code_edit, edit_plan, create_file, run_tool, noop], decide_hints?, acceptance?, tools?, "
        "workspace?, limits?, schedule?}"
    )


class MandateList(Arguments):
    status: (
        Literal[
            "created",
            "active",
            "paused_at_checkpoint",
            "paused_risk_exceeded",
            "paused_goal_drift",
            "interrupted",
            "terminated",
        ]
        | None
    ) = None


class RunStatus(Arguments):
    run_ids: Annotated[list[RunId], Field(max_length=10)] | None = Field(None, description="Default: the newest")
    until: Literal["attention", "done"] | None = Field(
        None, description="attention: one waits, pauses or ended; done: all ended"
    )
    wait_s: Wait | None = Field(None, description="Default 45 with until, else 0")
    view: Literal["brief", "full"] | None = Field(None, description="Default full; brief: waiting keys and kinds")

    @property
    def wait(self) -> float:
        if self.wait_s is None:
            return DEFAULT_WAIT_S if self.until else 0
        return self.wait_s


class RunContinue(Arguments):
    run_id: RunId
    answers: Annotated[JsonObject, Field(max_length=256)] | None = Field(
        None,
        description="By waiting key. completion: {content?, tool_calls?: [{id, name, arguments}], "
        "usage?}; tool_call: {content, is_error?, data?}; approval: {decision: approve|deny, digest, feedback?}",
    )
    wait_s: Wait | None = Field(None, description="Default 45")

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class RunControl(Arguments):
    run_id: RunId
    action: Literal["pause", "resume", "cancel", "extend", "reroute", "settle"]
    limits: LimitsArgument | None = Field(None, description="For extend: added to those of the run")
    route: RouteArgument | None = Field(None, description="For reroute")
    key: Annotated[str, Field(min_length=1, max_length=400)] | None = Field(None, description="For settle")
    settlement: Literal["reattempt", "already_done"] | None = Field(None, description="For settle")

    @model_validator(mode="after")
    def _has_what_the_action_needs(self) -> Self:
        if (self.action == "extend") != bool(self.limits and self.limits.model_fields_set):
            raise PydanticCustomError("needs", "`limits` is for extend, which needs at least one of them")
        if (self.action == "reroute") != (self.route is not None):
            raise PydanticCustomError("needs", "`route` is for reroute, which needs it")
        for name in ("key", "settlement"):
            if (self.action == "settle") != (getattr(self, name) is not None):
                raise PydanticCustomError("needs", f"`{name}` is for settle, which needs it")
        return self


class RunTrace(Arguments):
    run_id: RunId
    view: Literal["events", "calls", "messages", "usage"] | None = Field(None, description="Default events")
    ref: Annotated[str, Field(min_length=1, max_length=400)] | None = Field(None, description="From a result")
    grep: Annotated[str, Field(min_length=1, max_length=1_000)] | None = Field(None, description="RE2")
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    max_chars: Annotated[int, Field(ge=200, le=100_000)] | None = Field(None, description="Default 8000")

    def query(self) -> TraceQuery:
        from kairos_mcp.reports.trace import TraceQuery

        return TraceQuery(
            view=self.view or "events",
            ref=self.ref,
            grep=self.grep,
            cursor=self.cursor,
            max_chars=8_000 if self.max_chars is None else self.max_chars,
        )


class RegistrySearch(Arguments):
    query: Annotated[str, Field(max_length=1_000)] | None = None
    names: Annotated[list[Name], Field(max_length=64)] | None = Field(None, description="Whole schemas of these")
    category: Name | None = None
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class RegistryCall(Arguments):
    name: Name
    arguments: JsonObject
    wait_s: Wait | None = Field(None, description="Default 45")

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class BudgetStatus(Arguments):
    scope: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="day (default), days, or a run_id"
    )
