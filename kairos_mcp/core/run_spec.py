"""What a run is started with, as values: a caller's request, and the spec that is built from it.

The spec is a small JSON object; its long texts (prompts, tools, conversation, schema, script) are referred to by
content hash and stored once.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.messages import JsonObject, Message, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import AUTO, ROUTES, RouteName
from kairos_mcp.core.steps import DialectName

GIVEN = "given"
"""The ref under which a phase alone keeps what it was given."""

Phase = str
"""The name of a phase of OODA, of those in `flows/ooda/phase_kinds.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run is started with, checked in shape. Its type says which flow it starts.

    `workspace`: one of the configured folders. A second start with the same `key` finds the run of the first.
    """

    workspace: str | None = None
    key: str | None = None

    @property
    def wanted_tools(self) -> tuple[str, ...] | None:
        """The globs of the tools that have to be there when its spec is built; None: those that only read."""
        return None


@dataclass(frozen=True, slots=True)
class PlannerRequest(RunRequest):
    """The arguments of planner_run, checked in shape. `tools`: globs, None for those that only read, or the agent's.
    `from_round`: the path of a round of the run that it continues, at which that run's conversation is cut, or of a
    step of a plan, a team or a phase, at which a run of the same flow goes on. `goal`: may be empty with `from_round`
    alone: then the run goes on there without a new turn of the user. `stage`: None for what the settings say.
    `at_limit`: whether a limit of its own ends the run, or a person is asked first."""

    goal: str
    system: str | None = None
    context: str | None = None
    messages: tuple[Message, ...] = ()
    continues: str | None = None
    tools: tuple[str, ...] | None = None
    caller_tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    temperature: float | None = None
    route: RouteName = AUTO
    limits: Limits = UNLIMITED
    output_schema: JsonObject | None = None
    agent: str | None = None
    from_round: str | None = None
    stage: Literal["auto"] | bool | None = None
    at_limit: Literal["end", "ask"] = "end"


@dataclass(frozen=True, slots=True)
class TeamRequest(RunRequest):
    """The arguments of team_run and planner_plan (`plans_only`), checked in shape.

    `plan`: one to be carried out, in place of the planner's. `agents`: names of those that tasks may be given to; None:
    all. `tools`: globs that narrow the tools of each agent. `stage`: None for what the settings say.
    """

    goal: str
    plan: JsonObject | None = None
    context: str | None = None
    agents: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    max_parallel: int | None = None
    model: str | None = None
    temperature: float | None = None
    route: RouteName = AUTO
    limits: Limits = UNLIMITED
    plans_only: bool = False
    stage: Literal["auto"] | bool | None = None


@dataclass(frozen=True, slots=True)
class FrozenAgent:
    """An agent as a team holds it: its system prompt, the names of its tools, and a model of its own if it has one."""

    name: str
    description: str
    system: str
    tools: tuple[str, ...]
    max_rounds: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class FrozenTeam:
    """What a team is, stored as one text. `planner`: the planner's prompt. `plan`: one that was given. `records`: what
    the agents did before, in words. `files`: names of the workspace's files. `lists_names`, `max_tasks`:
    see `TeamInput`."""

    agents: tuple[FrozenAgent, ...]
    planner: str
    max_parallel: int
    context: str = ""
    records: str = ""
    files: str = ""
    plan: JsonObject | None = None
    lists_names: bool | None = None
    max_tasks: int | None = None


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Whose a text is that a run takes over from another: as the row of that run which holds it (see `flow.Row`)."""

    source: str
    is_trusted: bool = False
    is_private: bool = True
    is_printed: bool = False


@dataclass(frozen=True, slots=True)
class FrozenFork:
    """A `ForkPoint` as it is stored: `answers` are pairs of a path and an encoded answer. `whose`: the results among
    them, by path."""

    path: str
    answers: tuple[tuple[str, str], ...]
    words: str = ""
    whose: dict[str, TakenOver] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MandateRef:
    """The mandate that a call names: a saved one by its id, one given in the call, or a bare goal.

    `workspace`: the folder that the call names, if it does.
    """

    mandate_id: str | None = None
    mandate: JsonObject | None = None
    goal: str | None = None
    workspace: str | None = None

    @property
    def names_none(self) -> bool:
        """Whether the call leaves it to the run of the phase before."""
        return self.mandate_id is None and self.mandate is None and self.goal is None


def as_written() -> Any:
    """Declare a field of a request or a spec that is of our own files, or that a model wrote: it is rid of known
    secrets alone."""
    return field(default=None, metadata={"as_written": True})


@dataclass(frozen=True, slots=True)
class PhaseRequest(RunRequest):
    """A phase of OODA to be run alone. `given`: the output of the phase before, whole and unchanged; or the id of its
    run, which stands for its mandate, workspace and route too, as far as the request names none."""

    phase: Phase
    mandate: MandateRef
    given: JsonObject | str | None = as_written()
    route: RouteName = AUTO
    limits: Limits = UNLIMITED


@dataclass(frozen=True, slots=True)
class CyclesRequest(RunRequest):
    """Cycles of a mandate; None: as many as it allows. `due`: for which time of its schedule, in milliseconds since
    1970. `at_limit`: as of a planner's run."""

    mandate: MandateRef
    cycles: int | None = None
    route: RouteName = AUTO
    limits: Limits = UNLIMITED
    due: int | None = None
    at_limit: Literal["end", "ask"] = "end"


@dataclass(frozen=True, slots=True)
class UnattendedAllowance:
    """What a run may use until a person resumes or approves something, which renews it; `most` is its limit in all.

    Only what nobody has set is here: model calls, milliseconds.
    """

    model_calls: int | None = None
    milliseconds: int | None = None
    most: Limits = UNLIMITED


@dataclass(frozen=True, slots=True)
class Spec:
    """What a run's row holds: never changed after the start.

    Fields that end in `_text` are content hashes. Limits are not part of it, since they can be extended: they are the
    caps of the run's account. Names of fields are stored. What one flow alone reads is in a subclass, beside its
    `FlowSpecs`.
    """

    flow: str
    goal: str
    route: str
    tools_text: str

    # what the conversation begins with
    system_text: str | None = None
    history_text: str | None = None
    whose_text: str | None = None  # of a history that is taken over, message by message
    user_text: str | None = None
    schema_text: str | None = None
    prompts_text: str | None = as_written()
    script_text: str | None = as_written()
    context_tokens: int = 100_000
    max_tokens: int = 4096
    has_goal: bool | None = None  # the user prompt is in the history already
    opens_with: Literal["context", "earlier", "files"] | None = None  # what the user prompt holds beside the goal
    asks_back: bool | None = None  # a first answer without any look at a file is asked back once

    # the model, and whose run it is
    model: str | None = None
    temperature: float | None = None
    asked_route: str = AUTO
    dialect: DialectName | None = None  # of a provider
    dialect_text: str | None = as_written()
    agent: str | None = None  # for rules of the gate and the reports of spending
    asks_at_limit: bool | None = None  # a person is asked whether it may have more, before a limit of its own ends it
    grants_rounds: bool | None = None  # a loop that asks for more rounds may get some
    traceparent: str | None = None  # the trace in which a client started it (W3C); None without telemetry
    tracestate: str | None = None

    staged: bool | None = None  # it works in a stage
    stage_of: str | None = None  # the run that began this stage; None: this one

    # tools that are not offered
    hidden_tools_text: str | None = None  # that the run's search may find
    search_scope: tuple[str, ...] | None = None  # globs of tools added later; (): those that read; None: none is

    # a run that goes on from another
    continues: str | None = None
    from_round: str | None = None  # where that run's conversation was cut, or the step of a fork; None: at its end
    fork_text: str | None = as_written()  # the `FrozenFork` of a run that goes on at a step, with that run's spec

    # a single call, and a team
    arguments: JsonObject | None = None
    team_text: str | None = None

    # OODA
    mandate: str | None = None  # the id under which it is saved
    mandate_text: str | None = None
    given_text: str | None = as_written()  # what a phase alone was given
    given_by: str | None = None  # the run that gave it, if known: the refs in it are that run's
    carried_over_text: str | None = as_written()  # what a mandate's run takes over from earlier ones
    scopes_text: str | None = None
    unattended_allowance: UnattendedAllowance | None = None

    def route_after(self, route: str) -> RouteName:
        """Return the route to ask for in a run that goes on from one with this spec, which is on `route` by now: `auto`
        where auto chose it."""
        named = ROUTES.get(route)
        return AUTO if named is None or (self.asked_route, route) == (AUTO, self.route) else named.name
