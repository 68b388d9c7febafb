"""Every span, attribute and metric that is sent: names, units and meaning. docs/telemetry.md is made of these tables.

Names follow the OpenTelemetry semantic conventions for generative AI, version 0.1.0 (status: development). What they
have no name for begins with `kairos.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kairos_mcp.core.quick_dataclass import dataclass

SCOPE = "kairos-mcp"
"""The name of our instrumentation scope; the SDK of MCP has one of its own, `mcp-python-sdk`."""

OTHER = "other"
"""What a label says in place of a value beyond the bound on how many it may have."""

MAX_LABEL_VALUES = 100
"""The most values of a label; names of tools and models may come from a client."""

MAX_NAME_CHARS = 128
"""As long as a value or a span's name may be that is no content."""


class MadeUp(str):
    """A name that a caller or a model made up, and that this server does not know: content, so `other` is sent for it
    unless content is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of spans, or a label of metrics. `is_content`: sent with the setting telemetry_content alone."""

    name: str
    meaning: str
    unit: str = ""
    is_content: bool = False


@dataclass(frozen=True, slots=True)
class SpanForm:
    """What one kind of span is called, and which attributes it may have."""

    title: str
    kind: Literal["internal", "client"]
    meaning: str
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `buckets`: the bounds of a histogram's, as the conventions advise. A gauge is read from rows; so is a
    counter of `COUNTED` from the tally of the process."""

    name: str
    instrument: Literal["histogram", "counter", "gauge"]
    unit: str
    meaning: str
    labels: tuple[Attribute, ...] = ()
    buckets: tuple[float, ...] = ()


OPERATION = Attribute("gen_ai.operation.name", "chat, execute_tool, invoke_agent or invoke_workflow")
PROVIDER = Attribute("gen_ai.provider.name", "the provider; where none is asked, the route: caller, sampling, scripted")
REQUEST_MODEL = Attribute(
    "gen_ai.request.model",
    "the model that was asked for; other: a name that a caller gave and no provider has answered to",
)
RESPONSE_MODEL = Attribute(
    "gen_ai.response.model", "the model that a client says has answered; as content alone, else other"
)
MAX_TOKENS = Attribute("gen_ai.request.max_tokens", "the most tokens that the answer could have", "{token}")
TEMPERATURE = Attribute("gen_ai.request.temperature", "the temperature that was asked for")
FINISH_REASONS = Attribute("gen_ai.response.finish_reasons", "why the model stopped: a list of one")
INPUT_TOKENS = Attribute("gen_ai.usage.input_tokens", "tokens of the input, those from a cache included", "{token}")
OUTPUT_TOKENS = Attribute("gen_ai.usage.output_tokens", "tokens of the answer", "{token}")
CACHED_TOKENS = Attribute("gen_ai.usage.cache_read.input_tokens", "tokens of the input from a cache", "{token}")
TOKEN_TYPE = Attribute("gen_ai.token.type", "input or output")
CONVERSATION = Attribute("gen_ai.conversation.id", "the id of the run")
AGENT = Attribute("gen_ai.agent.name", "whose step or run it is: an agent's name; of a run without one, its flow")
TOOL = Attribute("gen_ai.tool.name", "the name of the tool; other: one that a caller brought along")
TOOL_TYPE = Attribute("gen_ai.tool.type", "function: the caller carries it out; extension: this server does")
TOOL_CALL_ID = Attribute("gen_ai.tool.call.id", "the id of the call: the path of its step")
ERROR = Attribute("error.type", "the code of an error, or how an attempt without an answer ended, as unknown")
INPUT_MESSAGES = Attribute("gen_ai.input.messages", "what a provider's model was asked, as JSON", is_content=True)
OUTPUT_MESSAGES = Attribute("gen_ai.output.messages", "what the model answered, as JSON", is_content=True)
ARGUMENTS = Attribute("gen_ai.tool.call.arguments", "the arguments of the call, as JSON", is_content=True)
RESULT = Attribute("gen_ai.tool.call.result", "the result of the call, as the model is shown it", is_content=True)

RUN_ID = Attribute("kairos.run.id", "the id of the run")
FLOW = Attribute("kairos.run.flow", "the loop: planner, team, ooda_run, ...")
STATUS = Attribute("kairos.run.status", "how the run ended: completed, stopped, failed or cancelled")
STOP_REASON = Attribute("kairos.run.stop_reason", "why the run ended")
ROUTE = Attribute("kairos.route", "where a completion came from, or who carried out a call")
MANDATE = Attribute("kairos.mandate.id", "the id of the mandate whose cycles the run is of")
ROUNDS = Attribute("kairos.run.rounds", "rounds that the run had", "{round}")
MODEL_CALLS = Attribute("kairos.run.model_calls", "model calls of the run", "{call}")
TOOL_CALLS = Attribute("kairos.run.tool_calls", "tool calls of the run", "{call}")
COST = Attribute("kairos.usage.cost", "dollars spent", "USD")
EXACTNESS = Attribute("kairos.usage.exactness", "how well the tokens are known: exact, reported, estimated or bounded")
PATH = Attribute("kairos.step.path", "the path of the step, as round-3/call-2")
KIND = Attribute("kairos.step.kind", "round, phase, repair, compact, closing, call or pause")
ATTEMPTS = Attribute("kairos.step.attempts", "attempts at the step", "{attempt}")
ATTEMPT = Attribute("kairos.attempt", "which attempt at the step this was, from 1")
ANSWERED_BY = Attribute("kairos.step.answered_by", "the route of the answer, or who gave it: person, budget")
QUEUE = Attribute("kairos.queue.duration", "from a person's approval until a server began the call", "s")
VERDICT = Attribute("kairos.approval.verdict", "approve, deny or expired; withdrawn: the run ended first")
DECIDED_THROUGH = Attribute("kairos.approval.through", "how it was decided: command, elicitation, gate, ...")
PREVIOUS_OWNER = Attribute("kairos.owner.previous", "the number of the server that had the run and has ended")
OWNER = Attribute("kairos.owner", "the number of the server that took it over")
STATE = Attribute("kairos.run.state", "moving, waiting (for a client or a person), paused or queued (for a server)")
PAUSE_REASON = Attribute(
    "kairos.pause.reason",
    "person, approval (nobody decided in time), day or mandate (what it may use is used up), provider or clock",
)
WAIT_KIND = Attribute(
    "kairos.wait.kind",
    "what is waited for: approval, settlement, completion, tool_call, server (to drive it), resume (of a paused run)",
)
SERVER_KIND = Attribute("kairos.server.kind", "server (it has clients) or worker")
PRINCIPAL = Attribute("kairos.principal", "whose runs they are; other: beyond the 100 that used most")
BUDGET_UNIT = Attribute("kairos.budget.unit", "the unit of a limit, as in the settings: usd, total_tokens, ...")
REFUSAL = Attribute(
    "kairos.refusal", "why: missing (no token), invalid (unknown, revoked or wrong), expired, scope, or rate"
)
GOAL = Attribute("kairos.run.goal", "the goal of the run", is_content=True)
SUMMARY = Attribute("kairos.run.summary", "the summary of the run, or the record of what was done", is_content=True)

_USAGE = (INPUT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS, COST)
_STEP = (RUN_ID, PATH, CONVERSATION, AGENT)

RUN = SpanForm(
    "{gen_ai.operation.name} {gen_ai.agent.name}",
    "internal",
    "a run, from its start to its end; a team and a run of cycles are workflows",
    (
        *(OPERATION, AGENT, CONVERSATION, RUN_ID, FLOW, MANDATE, ROUTE, STATUS, STOP_REASON, ROUNDS, MODEL_CALLS),
        *(TOOL_CALLS, *_USAGE, ERROR, GOAL, SUMMARY),
    ),
)
STEP = SpanForm(
    "step {kairos.step.kind}",
    "internal",
    "a step, with all that it waited for and all attempts",
    (*_STEP, KIND, ATTEMPTS, ROUTE, ANSWERED_BY, ERROR),
)
MODEL_CALL = SpanForm(
    "chat {gen_ai.request.model}",
    "client",
    "one attempt at a completion",
    (
        *(OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, MAX_TOKENS, TEMPERATURE, FINISH_REASONS, *_USAGE),
        *(EXACTNESS, ROUTE, *_STEP, ATTEMPT, ERROR, INPUT_MESSAGES, OUTPUT_MESSAGES),
    ),
)
TOOL_CALL = SpanForm(
    "execute_tool {gen_ai.tool.name}",
    "internal",
    "one attempt at a call of a tool",
    (OPERATION, TOOL, TOOL_TYPE, TOOL_CALL_ID, ROUTE, *_STEP, ATTEMPT, QUEUE, ERROR, ARGUMENTS, RESULT),
)
APPROVAL = SpanForm(
    "approval {gen_ai.tool.name}",
    "internal",
    "from the question to a person until its answer",
    (TOOL, RUN_ID, PATH, CONVERSATION, VERDICT, DECIDED_THROUGH),
)
TAKEOVER = SpanForm(
    "takeover",
    "internal",
    "the moment in which a server took over a run whose server had ended",
    (RUN_ID, CONVERSATION, PREVIOUS_OWNER, OWNER),
)
SPANS = (RUN, STEP, MODEL_CALL, TOOL_CALL, APPROVAL, TAKEOVER)

_TOKEN_BUCKETS = tuple(float(4**power) for power in range(14))
_SECONDS = tuple(0.01 * 2**power for power in range(14))
_WAIT_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 259_200.0)

TOKEN_USAGE = Metric(
    "gen_ai.client.token.usage",
    "histogram",
    "{token}",
    "tokens of a model call, where its route reports them",
    (OPERATION, PROVIDER, REQUEST_MODEL, TOKEN_TYPE),
    _TOKEN_BUCKETS,
)
OPERATION_DURATION = Metric(
    "gen_ai.client.operation.duration",
    "histogram",
    "s",
    "time of a model call that this server makes, one attempt at a time",
    (OPERATION, PROVIDER, REQUEST_MODEL, ERROR),
    _SECONDS,
)
TOOL_DURATION = Metric(
    "gen_ai.execute_tool.duration",
    "histogram",
    "s",
    "time of a tool call; its count is the number of calls",
    (OPERATION, TOOL, ERROR),
    _SECONDS,
)
RUN_DURATION = Metric(
    "gen_ai.invoke_agent.duration",
    "histogram",
    "s",
    "time of a run from its start to its end, with all that it waited for",
    (OPERATION, AGENT, ERROR),
    _WAIT_SECONDS,
)
RUNS_ENDED = Metric("kairos.runs.ended", "counter", "{run}", "runs that ended", (FLOW, STATUS))
COST_USED = Metric("kairos.usage.cost", "counter", "USD", "dollars spent on model calls", (PROVIDER, REQUEST_MODEL))
APPROVAL_WAIT = Metric(
    "kairos.approval.wait",
    "histogram",
    "s",
    "from the question to a person until its answer",
    (VERDICT,),
    _WAIT_SECONDS,
)
QUEUE_DURATION = Metric(
    "kairos.queue.duration", "histogram", "s", "from a person's approval until a server began the call", (), _SECONDS
)
TAKEOVERS = Metric("kairos.takeovers", "counter", "{run}", "runs taken over from servers that had ended")
OPEN_RUNS = Metric(
    "kairos.runs.open", "gauge", "{run}", "runs that have not ended, of the whole state folder", (STATE,)
)
APPROVALS_WAITING = Metric(
    "kairos.approvals.waiting", "gauge", "{approval}", "approvals that a person is asked for, of the whole state folder"
)
PAUSED_RUNS = Metric("kairos.runs.paused", "gauge", "{run}", "paused runs, by why", (PAUSE_REASON,))
OLDEST_WAIT = Metric(
    "kairos.wait.age", "gauge", "s", "how long the oldest of each kind has waited; 0 where none does", (WAIT_KIND,)
)
LIVING_SERVERS = Metric(
    "kairos.servers.living", "gauge", "{server}", "living servers and workers that drive runs", (SERVER_KIND,)
)
FREE_SLOTS = Metric(
    "kairos.slots.free", "gauge", "{run}", "how many more runs the living workers and servers with slots could drive"
)
BUDGET_SPENT = Metric(
    "kairos.budget.spent",
    "gauge",
    "{unit}",
    "what a principal has spent today, and has reserved; dollars, tokens, calls by the unit",
    (PRINCIPAL, BUDGET_UNIT),
)
BUDGET_LEFT = Metric(
    "kairos.budget.left",
    "gauge",
    "{unit}",
    "what is left of a principal's day, where that unit has a limit",
    (PRINCIPAL, BUDGET_UNIT),
)
STORE_AWAY = Metric(
    "kairos.store.away", "gauge", "s", "how long this process has been without its store; 0 while it can be used"
)
STORE_OUTAGES = Metric(
    "kairos.store.outages", "counter", "{outage}", "times that this process found its store unusable"
)
STORE_OUTAGE_SECONDS = Metric(
    "kairos.store.outage.duration", "counter", "s", "how long these outages lasted in all, once they were over"
)
PROVIDER_ERRORS = Metric(
    "kairos.provider.errors",
    "counter",
    "{error}",
    "failed attempts at a provider's model, by the error's code",
    (ERROR,),
)
TOKENS_REFUSED = Metric(
    "kairos.tokens.refused", "counter", "{request}", "requests over HTTP that were not admitted", (REFUSAL,)
)
REFUSALS = ("missing", "invalid", "expired", "scope", "rate")
COUNTED: Mapping[Metric, tuple[tuple[str, ...], ...]] = {
    STORE_OUTAGES: ((),),
    STORE_OUTAGE_SECONDS: ((),),
    PROVIDER_ERRORS: (),
    TOKENS_REFUSED: tuple((reason,) for reason in REFUSALS),
}
"""The counters that a process keeps in its tally, with the labels under which they begin at 0."""

METRICS = (
    *(TOKEN_USAGE, OPERATION_DURATION, TOOL_DURATION, RUN_DURATION, RUNS_ENDED, COST_USED, APPROVAL_WAIT),
    *(QUEUE_DURATION, TAKEOVERS, OPEN_RUNS, APPROVALS_WAITING, PAUSED_RUNS, OLDEST_WAIT, LIVING_SERVERS, FREE_SLOTS),
    *(BUDGET_SPENT, BUDGET_LEFT, STORE_AWAY, *COUNTED),
)

PROVIDERS = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "google": "gcp.gemini",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""What the conventions call a provider that our settings name otherwise."""
