"""Plan one step of a run for its row, then perform it: ask the model, or call the tool, within its reservation."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from hashlib import sha256

from kairos_mcp.budget.more_rounds import RoundsRequest
from kairos_mcp.budget.reservation import Reservation, ReservationRequest
from kairos_mcp.core.builtin_tools import REQUEST_MORE_ROUNDS
from kairos_mcp.core.limit_question import BUDGET, LIMIT_PAUSE, ask_about, refusal_of
from kairos_mcp.core.limits import FREE, NOTHING, UNLIMITED, BranchShare, Limits, Price, Units, counts_of
from kairos_mcp.core.messages import Completion, ToolResult, Usage, canonical_json
from kairos_mcp.core.model import Model, ModelInput, PrivateParts
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import CALLER, SCRIPT_ROUTES, SERVER_ROUTE
from kairos_mcp.core.steps import (
    Answer,
    CallTool,
    DialectName,
    Failure,
    Mechanical,
    Pause,
    RequestCompletion,
    Sent,
    Step,
    conversation_of,
)
from kairos_mcp.core.tool import error_result
from kairos_mcp.execution.accounting import (
    InputEstimator,
    PrefixReports,
    completion_result,
    drop_impossible_usage,
    elapsed_ms,
    prefix_of,
)
from kairos_mcp.execution.tool_calls import Allowed, Authorization, CallMaker, CallRights
from kairos_mcp.store.approvals import KEY_SUFFIX, ApprovalRequest, BaseHashes
from kairos_mcp.store.commit import NewStep, StepResult
from kairos_mcp.store.prefixes import PrefixCost

COMPLETION_TIMEOUT_MS = 300_000
CALL_TIMEOUT_S = 60.0  # of a call whose tool was removed


@dataclass(frozen=True, slots=True)
class PaidModel:
    """The model that this server pays for, and the most that a token of it costs; None: unknown."""

    model: str
    price: Price | None


@dataclass(frozen=True, slots=True)
class AgentModel:
    """An agent's own model. `complete` and `paid` are set if this server's provider completes with it."""

    name: str
    complete: Model | None = None
    paid: PaidModel | None = None


@dataclass(slots=True)
class StepExecutor:
    """Performs the steps of one run.

    `models` maps a route to its model; a completion on a route without one waits outside. `paid_models`: the routes
    that this server pays for. `dialects`: the routes whose dialect does not depend on a client. `agent_models`: of
    agents with a model of their own. `grants_rounds`: a loop that asks for more rounds may get some, the run itself up
    to `most_rounds` in all (None: any number). `most_caps`: what the configuration allows a run; `question_ms`: for how
    long a question about a limit waits. `known_costs`: what requests of the principal's earlier runs cost;
    `request_form`: what decides, beside a request itself and its model, what is sent to a provider.

    A script's lines are taken in the order in which steps get their rows: `lines_used` are taken, and the steps in
    `unscripted_paths` take none.
    """

    tool_access: CallRights
    tool_caller: CallMaker
    models: Mapping[str, Model]
    model: str | None
    unscripted_paths: frozenset[str] = frozenset()
    lines_used: int = 0
    paid_models: Mapping[str, PaidModel] = field(default_factory=dict)
    dialects: Mapping[str, DialectName] = field(default_factory=dict)
    agent_models: Mapping[str, AgentModel] = field(default_factory=dict)
    temperature: float | None = None
    grants_rounds: bool = False
    most_rounds: int | None = None
    most_caps: Limits = UNLIMITED
    question_ms: int = 0
    known_costs: PrefixReports = field(default_factory=PrefixReports)
    request_form: str = ""
    _private_parts: dict[str, PrivateParts] = field(default_factory=lambda: defaultdict(PrivateParts))
    _estimators: dict[tuple[str, str | None], InputEstimator] = field(
        default_factory=lambda: defaultdict(InputEstimator)
    )
    _prefix_reports: PrefixReports = field(default_factory=PrefixReports)

    def plan_completion(self, path: str, step: RequestCompletion, route: str, time_shares: int) -> NewStep:
        """Plan the row of a completion. `time_shares`: among how many steps the time that is left is divided."""
        if step.purpose == "compact" and route == CALLER.name:
            return NewStep(path, "compact", step.digest, _COMPACT_REQUEST, Sent(), Mechanical())
        request = self.reservation_request(path, step, route, counts_of(step.purpose), time_shares)
        return NewStep(path, step.purpose, step.digest, request, self.completion_sent(path, route))

    def completion_sent(self, path: str, route: str, tail: str | None = None, max_tokens: int | None = None) -> Sent:
        """What this server adds to a completion on this route; takes a script's next line."""
        agent = self.tool_access.agent_of(path)
        paid, dialect = self._paid_model(route, agent) if self.paid_models else None, self.dialects.get(route)
        model = self._model_name(agent, paid)
        line = self._next_line(path) if route in SCRIPT_ROUTES else None
        unpriced = True if paid is not None and paid.price is None else None
        return Sent(route, model, max_tokens, tail, line, self.temperature, dialect, agent, unpriced)

    def reservation_request(
        self, path: str, step: Step, route: str, counts: Units, time_shares: int = 1
    ) -> ReservationRequest:
        """What to reserve for the step. `counts`: rounds and calls; a further attempt counts only its model call."""
        if step.kind == "tool_call":
            tool = self.tool_access.find_tool(step.call.name)
            return _call_request(counts, tool.timeout_s if tool else CALL_TIMEOUT_S, time_shares)
        if step.kind == "pause":
            return _PAUSE_REQUEST
        estimator = self._estimators[conversation_of(path), route]
        open_step = route not in self.models
        agent = self.tool_access.agent_of(path)
        paid = self._paid_model(route, agent) if self.paid_models else None
        price = paid.price if paid is not None else FREE
        bound, max_tokens = estimator.bound(step), step.max_tokens
        if not estimator.fits(step):
            prefix = prefix_of(step, route, self._model_name(agent, paid), self.request_form)
            for reports in (self._prefix_reports, self.known_costs):
                beside = reports.bound(step, prefix)
                bound = bound if beside is None else min(bound, beside)
        return ReservationRequest(
            counts, step.purpose, open_step, bound, max_tokens, COMPLETION_TIMEOUT_MS, time_shares, price
        )

    def _model_name(self, agent: str | None, paid: PaidModel | None) -> str | None:
        """Return the model of an agent's steps, or the hint for a client. `paid`: what this server pays for."""
        own = self.agent_models.get(agent or "")
        return paid.model if paid is not None else self.model if own is None else own.name

    def _paid_model(self, route: str, agent: str | None) -> PaidModel | None:
        """The model that this server pays for on this route, for this agent; None where it pays for none."""
        whole_run = self.paid_models.get(route)
        own = self.agent_models.get(agent or "")
        return own.paid if whole_run is not None and own is not None and own.paid is not None else whole_run

    def plan_pause(self, path: str, step: Pause) -> NewStep:
        """Plan the row of a pause, which waits until somebody lets the flow go on. Where it is about a limit, a person
        is asked whether to raise it; it is answered at once where the configuration allows no more."""
        planned = NewStep(path, "pause", step.digest, _PAUSE_REQUEST, Sent())
        if step.reason != LIMIT_PAUSE:
            return planned
        if (question := ask_about(step, self.most_caps)) is None:
            return planned._replace(answer=refusal_of(step))
        key, raised = path + KEY_SUFFIX, {question.unit: str(question.cap)}
        shown = sha256(canonical_json([key, question.preview, raised]).encode()).hexdigest()
        asked = ApprovalRequest(key, BUDGET, "idempotent", shown, question.preview, raised, self.question_ms)
        return planned._replace(approval_request=asked)

    def asks_for_rounds(self, step: CallTool) -> bool:
        """Whether a loop asks for more rounds with this call."""
        name = step.call.name
        return name == REQUEST_MORE_ROUNDS.name and REQUEST_MORE_ROUNDS.is_tool(self.tool_access.find_spec(name))

    def rounds_request(self, step: CallTool, share: BranchShare | None, open_branches: Iterable[str]) -> RoundsRequest:
        """Return what a loop asks for that wants more rounds.

        `share`: what the branch around the loop gets, if one has limits of its own. `open_branches`: the paths of all
        such branches.
        """
        refusal = None if self.grants_rounds else "whoever started this run limited its rounds"
        asked = step.call.arguments.get("additional", 0)
        return RoundsRequest(asked, refusal, self.most_rounds, share, tuple(open_branches))

    def plan_call(self, path: str, step: CallTool, at: int, time_shares: int, authorization: Authorization) -> NewStep:
        """Plan the row of a call: begun, open, or answered at once because its result is known."""
        spec = self.tool_access.find_offered(path, step.call.name)
        error = self.tool_access.check_call(path, step.call, spec, at)
        if error is not None or spec is None:
            answer = error_result(error) if error is not None else None
            return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, _SENT_NOWHERE, answer)
        sent = _SENT_TO_CALLER if spec.is_caller_tool else SENT_TO_SERVER
        match authorization:
            case ToolResult():
                return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, _SENT_NOWHERE, authorization)
            case ApprovalRequest():
                self.tool_access.record_call(spec, at)
                return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, sent, approval_request=authorization)
            case _:
                self.tool_access.record_call(spec, at)
        reused = authorization.reused if isinstance(authorization, Allowed) else None
        if spec.is_caller_tool:
            return NewStep(path, "call", step.digest, _OPEN_CALL_REQUEST, sent, reused_approval=reused)
        request = self.reservation_request(path, step, SERVER_ROUTE, counts_of("call"), time_shares)
        return NewStep(path, "call", step.digest, request, sent, reused_approval=reused)

    def _next_line(self, path: str) -> int | None:
        if path in self.unscripted_paths:
            return None
        self.lines_used += 1
        return self.lines_used - 1

    @property
    def reports_learned(self) -> int:
        """How often the cost of a conversation's first request was reported in this run."""
        return self._prefix_reports.learned

    def reset(self) -> None:
        """Forget the run, before its record is read again."""
        self.lines_used = 0
        self._estimators.clear()
        self._prefix_reports = PrefixReports()
        self._private_parts.clear()
        self.tool_access.reset()

    def return_line(self, line: int | None) -> None:
        """Give back the script's line of a step that was refused: the next step takes it."""
        if line is not None and line == self.lines_used - 1:
            self.lines_used = line

    def restore_counts(self, step: Step, sent: Sent, at: int) -> None:
        """Take over what a recorded step used: a line of the script, a call of a tool."""
        if sent.line is not None:
            self.lines_used = max(self.lines_used, sent.line + 1)
        if isinstance(step, CallTool) and sent.route is not None:  # else it was answered without being made
            self.tool_access.record_call(self.tool_access.find_spec(step.call.name), at)

    def record_answer(self, path: str, step: Step, answer: Answer, sent: Sent) -> None:
        """Remember what later steps need of an answer, whoever gave it: its reported usage, what the provider wants
        back, the tools that a search found."""
        if isinstance(step, CallTool):
            self.tool_access.record_search(step.call.name, answer)
        if isinstance(step, RequestCompletion) and isinstance(answer, Completion):
            conversation = conversation_of(path)
            estimator = self._estimators[conversation, sent.route]
            if not estimator.length:
                self._prefix_reports.learn(prefix_of(step, sent.route, sent.model, self.request_form), answer)
            estimator.learn(step, answer)
            if answer.private is not None:
                self._private_parts[conversation].keep(step.name, answer)

    def reported_cost(self, path: str, step: Step, answer: Answer, sent: Sent) -> PrefixCost | None:
        """Return what the first request of a conversation cost, if this server paid for it, and remember it for other
        runs; None for any other step. Call it before `record_answer`."""
        if sent.route not in self.paid_models:
            return None
        match step, answer:
            case RequestCompletion(), Completion(usage=Usage(exactness="reported", input_tokens=tokens)):
                prefix = prefix_of(step, sent.route, sent.model, self.request_form)
                if prefix is None or self._estimators[conversation_of(path), sent.route].length:
                    return None
                cost = PrefixCost(prefix.digest, tokens)
                self.known_costs.remember(cost)
                return cost
            case _:
                return None

    def perform(
        self,
        path: str,
        step: Step,
        sent: Sent,
        reservation: Reservation,
        base: BaseHashes | None = None,
        *,
        is_alone: bool = False,
    ) -> StepResult | Awaitable[StepResult]:
        """Perform the step: return its result, or an awaitable of it. Every failure is an answer.

        `base`: the hashes of the files as a person was shown them who approved this call. `is_alone`: no other
        run moves, and no other step of this one.
        """
        if step.kind == "tool_call":
            return self.tool_caller.call(path, step, reservation, base, is_alone)
        assert step.kind == "completion", "a pause is never performed"
        return self._complete(path, step, sent, reservation)

    def _complete(
        self, path: str, step: RequestCompletion, sent: Sent, reservation: Reservation
    ) -> StepResult | Awaitable[StepResult]:
        """Ask the model of the step's agent, or else of its route."""
        route, agent_model = sent.route or "", self.agent_models.get(sent.agent or "")
        is_paid, began, notes = route in self.paid_models, time.monotonic(), list[str]()

        def result_of(answer: Completion | Failure) -> StepResult:
            dropped: tuple[str, ...] = ()
            if isinstance(answer, Completion):
                answer, dropped = drop_impossible_usage(path, answer)
            all_notes, took_ms = (*notes, *dropped), elapsed_ms(began, reservation)
            return completion_result(path, step, answer, took_ms, reservation.held, paid=is_paid, notes=all_notes)

        async def await_result(answering: Awaitable[Completion | Failure]) -> StepResult:
            seconds = reservation.timeout_ms / 1000
            try:
                async with asyncio.timeout(seconds):
                    answer = await answering
            except TimeoutError:
                answer = Failure("timeout", f"The model did not answer within {seconds:g} s.", True, unknown_end=True)
            return result_of(answer)

        complete = agent_model.complete if is_paid and agent_model is not None else None
        find_private = self._private_parts[conversation_of(path)].find
        model_input = ModelInput(path, step, sent, find_private, note=notes.append)
        answer = (complete or self.models[route])(model_input)
        return result_of(answer) if isinstance(answer, Completion | Failure) else await_result(answer)


@lru_cache(maxsize=64)  # a run calls few tools, and often
def _call_request(counts: Units, timeout_s: float, time_shares: int) -> ReservationRequest:
    return ReservationRequest(counts, "call", timeout_ms=int(timeout_s * 1000), time_shares=time_shares)


_PAUSE_REQUEST = ReservationRequest(NOTHING, "pause", counts_only=True)
_COMPACT_REQUEST = ReservationRequest(NOTHING, "compact", counts_only=True)
_OPEN_CALL_REQUEST = ReservationRequest(counts_of("call"), "call", counts_only=True)
_SENT_NOWHERE, _SENT_TO_CALLER, SENT_TO_SERVER = Sent(), Sent(CALLER.name), Sent(SERVER_ROUTE)
