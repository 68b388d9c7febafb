"""What a run is started with, as values: a caller's request, and the spec that is built from it.

The spec is a small JSON object; its long texts (prompts, tools, conversation, schema, script) are referred to by
content hash and stored once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.messages import JsonObject, Message, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import AUTO, RouteName
from kairos_mcp.core.steps import DialectName

if TYPE_CHECKING:
    from kairos_mcp.core.mandate import Mandate


GIVEN = "given"
"""The ref under which a phase alone keeps what it was given."""

Phase = Literal["observe", "orient", "decide", "act", "reflect"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class PlannerRequest:
    """The arguments of planner_run, checked in shape. `tools`: globs, None for those that only read, or the agent's.
    `from_round`: the path of a round of the run that it continues, at which that run's conversation is cut, or of a
    step of a plan, a team or a phase, at which a run of the same flow goes on. `goal`: may be empty with `from_round`
    alone: then the run goes on there without a new turn of the user."""

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
    workspace: str | None = None
    key: str | None = None
    agent: str | None = None
    from_round: str | None = None


@dataclass(frozen=True, slots=True)
class TeamRequest:
    """The arguments of team_run and planner_plan (`plans_only`), checked in shape.

    `plan`: one to be carried out, in place of the planner's. `agents`: names of those that tasks may be given to; None:
    all. `tools`: globs that narrow the tools of each agent.
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
    workspace: str | None = None
    key: str | None = None
    plans_only: bool = False


@dataclass(frozen=True, slots=True)
class CallRequest:
    """The arguments of registry_call: a tool by its name, and what it is called with."""

    name: str
    arguments: JsonObject


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
class FrozenFork:
    """A `ForkPoint` as it is stored: `answers` are pairs of a path and an encoded answer."""

    path: str
    answers: tuple[tuple[str, str], ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class PhaseRequest:
    """A phase of OODA to be run alone. `given`: the output of the phase before, whole and unchanged."""

    phase: Phase
    mandate: Mandate
    given: JsonObject | None = None
    route: RouteName = AUTO
    limits: Limits = UNLIMITED
    given_by: str | None = None


@dataclass(frozen=True, slots=True)
class CyclesRequest:
    """Cycles of a saved mandate; None: as many as it allows. `due`: for which time of its schedule."""

    mandate: Mandate
    cycles: int | None = None
    route: RouteName = AUTO
    limits: Limits = UNLIMITED
    due: int | None = None


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
    """What a run's row holds: never changed after the start. The fields that end in `_text` are content hashes; the
    limits are no part of it, since they can be extended: they are the caps of the run's account.

    Names of fields are stored, so they stay: `behind_text` are the tools that are not offered and the run's search may
    find, `carried_text` is what a mandate's run takes over from earlier ones, `stretch` its allowance while nobody
    looks.
    Of the phases of OODA: `reads` names the tools that observe and decide may call, `may` those that act may run, both
    within `tools_text`; `mandate` is the id under which the mandate is saved;
    `given_by` is the run whose output a phase alone was given, as far as it is known: the refs in it are that run's.
    `joining`: by which globs the search may find tools that were not there at the start, () for those that only read;
    None: all were there. `looks_first`: a first answer without any look at a file is asked back once.
    `has_goal`: the user prompt stands in the conversation that it goes on with; None: it follows that.
    `agent`: the name of whose run it is, for rules of the gate and the reports of spending.
    `grants_rounds`: a loop that asks for more rounds may get some; not where the caller limited the rounds.
    `dialect` is that of a provider. `from_round`: at which round the
    conversation of the run that it `continues` was cut; None: it goes on from that run's end.
    `fork_text`: the `FrozenFork` of a run that goes on at a step of the run that it `continues`, with that run's spec;
    then `from_round` is the path of that step.
    `traceparent`, `tracestate`: the trace in which a client started it (W3C); None without telemetry.
    """

    flow: str
    goal: str
    route: str
    tools_text: str
    system_text: str | None = None
    history_text: str | None = None
    user_text: str | None = None
    schema_text: str | None = None
    prompts_text: str | None = None
    script_text: str | None = None
    context_tokens: int = 100_000
    max_tokens: int = 4096
    model: str | None = None
    temperature: float | None = None
    continues: str | None = None
    arguments: JsonObject | None = None
    dialect_text: str | None = None
    asked_route: str = AUTO
    behind_text: str | None = None
    mandate: str | None = None
    mandate_text: str | None = None
    phase_prompts_text: str | None = None
    given_text: str | None = None
    carried_text: str | None = None
    scopes_text: str | None = None
    cycles: int | None = None
    reads: tuple[str, ...] | None = None
    may: tuple[str, ...] | None = None
    stretch: UnattendedAllowance | None = None
    dialect: DialectName | None = None
    given_by: str | None = None
    joining: tuple[str, ...] | None = None
    looks_first: bool | None = None
    from_round: str | None = None
    grants_rounds: bool | None = None
    agent: str | None = None
    team_text: str | None = None
    team_prompts_text: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    has_goal: bool | None = None
    fork_text: str | None = None
