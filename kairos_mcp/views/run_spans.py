"""The spans and measurements of a run, from its rows: each once its rows say that it has ended.

A look reads what is new since the one before. Spans have the times of the rows, so it does not matter when it comes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PAID_ROUTES, SERVER_ROUTE
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import Sent, turn_of
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import accounts, queries, span_rows
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import Session, decode, decode_sent
from kairos_mcp.store.span_rows import ApprovalTimes, AttemptRow
from kairos_mcp.telemetry import names
from kairos_mcp.telemetry.names import Attribute, MadeUp, Metric, SpanForm
from kairos_mcp.telemetry.recorder import Measurement, SpanRecord, Value
from kairos_mcp.telemetry.trace_context import RUN_KEY, attempt_key
from kairos_mcp.views.attempts import Attempt, error_of, provider_of, usage_attributes

UNSENT_MS = 60_000  # what a server had not sent when it was killed is at most so old: the SDK sends every 5 s
KNOWN_TOKENS = ("exact", "reported")  # tokens that were only estimated are no measurement


@dataclass(frozen=True, slots=True)
class SeenStep:
    """How many attempts and approvals of a step without an answer have had their spans."""

    attempts: int = 0
    approvals: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the spans of a run were read. This server has had it since the fence `first_fence`, and has it under
    `fence` now.

    `last`: the newest step that was seen; `unanswered`: what was seen of those without an answer, by the id of their
    row. `is_takeover`: the server before this one has ended, perhaps with spans that it had not sent.
    """

    n: int
    first_fence: int
    fence: int
    last: int = 0
    unanswered: Mapping[int, SeenStep] = field(default_factory=lambda: MappingProxyType({}))
    is_takeover: bool = False


class RunSpans(NamedTuple):
    """What a look has found. `has_ended`: nothing more is to come here; the run has ended, or another server has it."""

    cursor: Cursor
    spans: Sequence[SpanRecord]
    measurements: Sequence[Measurement]
    has_ended: bool


def read_run_spans(
    session: Session, cursor: Cursor, inputs: Mapping[str, str], configured_model: str | None = None
) -> RunSpans:
    """Read what has ended since the last look. `inputs`: what models were asked, by the key of the attempt's span.

    The session has to read from one state of the store. Raises Unreadable.
    """
    return _Look(session, cursor, inputs, configured_model).read()


class _Look:
    """One look at one run."""

    def __init__(
        self, session: Session, cursor: Cursor, inputs: Mapping[str, str], configured_model: str | None
    ) -> None:
        self._configured_model = configured_model
        self._session = session
        self._cursor = cursor
        self._inputs = inputs
        self._run = queries.run_by_number(session, cursor.n)
        self._spec: Spec = decode(Spec, self._run.spec)
        self._turns: dict[str, tuple[tuple[ToolCall, ...], str | None]] = {}  # calls and agent of turns, by path
        self._spans: list[SpanRecord] = []
        self._measurements: list[Measurement] = []

    def read(self) -> RunSpans:
        cursor, run = self._cursor, self._run
        is_first = not cursor.last and not cursor.unanswered
        since = span_rows.newest_begin(self._session, run.n, cursor.first_fence) if is_first else None
        rows = queries.read_steps_since(self._session, run.n, cursor.last, cursor.unanswered)
        is_ours = run.fence == cursor.fence
        if not is_ours:  # the server that has the run now sends what has ended since it began anything
            until = span_rows.oldest_begin(self._session, run.n, cursor.fence)
            rows = [row for row in rows if until is None or (row.answered_at or row.at) < until]
        attempts = span_rows.list_attempts(self._session, [row.id for row in rows if row.further_attempts])
        approvals = span_rows.list_approvals(
            self._session, [row.id for row in rows if row.kind == "call" and not row.was_begun_here]
        )
        unanswered: dict[int, SeenStep] = {}
        for row in rows:
            tried = attempts.get(row.id, [])
            seen = cursor.unanswered.get(row.id) or self._seen_before(since, tried, approvals.get(row.id, []))
            answered_before = since is not None and (row.answered_at or since + 1) <= since
            may_be_unsent = cursor.is_takeover and (row.answered_at or 0) > (since or 0) - UNSENT_MS
            if answered_before and not may_be_unsent:
                continue
            measured = len(self._measurements)
            seen = self._read_step(row, tried, approvals.get(row.id, []), SeenStep() if answered_before else seen)
            if answered_before:
                del self._measurements[measured:]  # sent again under the same id, counted once
            if row.body is None:
                unanswered[row.id] = seen
        last = max([cursor.last, *(row.id for row in rows)])
        if run.outcome is not None and is_ours:
            self._end_run(run.outcome)
        return RunSpans(
            replace(cursor, last=last, unanswered=unanswered),
            self._spans,
            self._measurements if is_ours else (),
            run.outcome is not None or not is_ours,
        )

    def _seen_before(
        self, since: int | None, attempts: Sequence[AttemptRow], approvals: Sequence[ApprovalTimes]
    ) -> SeenStep:
        """What the server that had the run before has seen of a step that has no answer since then."""
        if since is None:
            return SeenStep()
        known = [each for each in attempts if each.fence < self._cursor.first_fence]
        decided = [each for each in approvals if each.decided_at is not None and each.decided_at <= since]
        return SeenStep(len(known), len(decided))

    def _read_step(
        self, row: StepRow, attempts: Sequence[AttemptRow], approvals: Sequence[ApprovalTimes], seen: SeenStep
    ) -> SeenStep:
        """Add the spans of a step that have ended, beyond those seen, and return what is seen now."""
        answer = row.answer
        tries = [Attempt(1, row.at, row.held_text is None, row.sent_text)]
        for each in attempts:
            tries[-1] = tries[-1]._replace(ended_at=each.at, ended=each.ended_before)
            tries.append(Attempt(len(tries) + 1, each.at, each.is_open, each.sent_text))
        if answer is not None:
            tries[-1] = tries[-1]._replace(ended_at=row.answered_at or row.at, answer=answer, by_route=row.by_route)
        call = self._find_call(row) if row.kind == "call" else None
        ended = [each for each in tries if each.ended_at is not None]
        for attempt in ended[seen.attempts :]:
            if row.kind == "call" and call is not None:
                self._add_tool_call(row, attempt, call, approvals)
            elif row.kind != "pause":
                self._add_model_call(row, attempt)
        decided = [each for each in approvals if each.verdict is not None or answer is not None]
        for approval in decided[seen.approvals :]:
            self._add_approval(row, approval)
        if answer is not None:
            sent = decode_sent(tries[-1].sent_text) if tries[-1].sent_text else Sent()
            self._add_span(
                names.STEP,
                row.path,
                RUN_KEY,
                row.at,
                row.answered_at or row.at,
                {
                    **self._step_attributes(row, sent),
                    names.KIND: row.kind,
                    names.ATTEMPTS: len(tries),
                    names.ROUTE: sent.route,
                    names.ANSWERED_BY: row.by_route,
                    names.ERROR: error_of(answer),
                },
            )
        return SeenStep(len(ended), len(decided))

    def _add_model_call(self, row: StepRow, attempt: Attempt) -> None:
        sent, answer = attempt.sent, attempt.answer
        if sent.route is None or attempt.ended_at is None or not attempt.was_performed:
            return
        key = attempt_key(row.path, attempt.number)
        asked = {
            names.OPERATION: "chat",
            names.PROVIDER: provider_of(sent),
            names.REQUEST_MODEL: self._name_model(sent, answer),
        }
        attributes: dict[Attribute, Value | None] = {
            **self._step_attributes(row, sent),
            **asked,
            names.MAX_TOKENS: sent.max_tokens,
            names.TEMPERATURE: sent.temperature,
            names.ROUTE: sent.route,
            names.ATTEMPT: attempt.number,
            names.ERROR: attempt.error,
            names.INPUT_MESSAGES: self._inputs.get(key),
        }
        if isinstance(answer, Completion):
            parts: list[JsonObject] = [{"type": "text", "content": answer.content}] if answer.content else []
            parts += [{"type": "tool_call", **call.as_json()} for call in answer.tool_calls]
            ended = {} if answer.finish is None else {"finish_reason": answer.finish}
            attributes |= usage_attributes(row.spent, row.cached) | {
                names.FINISH_REASONS: None if answer.finish is None else (answer.finish,),
                names.RESPONSE_MODEL: None if answer.model is None else MadeUp(answer.model),
                names.EXACTNESS: row.exactness,
                names.OUTPUT_MESSAGES: json.dumps([{"role": "assistant", "parts": parts, **ended}], ensure_ascii=False),
            }
        ended_at = attempt.end_of_work(row)
        self._add_span(names.MODEL_CALL, key, row.path, attempt.at, ended_at, attributes)
        if not attempt.is_open:
            took = {**asked, names.ERROR: attempt.error}
            self._measure(names.OPERATION_DURATION, (ended_at - attempt.at) / 1000, took)
        if answer is None:
            return
        if isinstance(answer, Completion) and row.exactness in KNOWN_TOKENS:
            for kind, tokens in (("input", row.spent.input_tokens), ("output", row.spent.output_tokens)):
                self._measure(names.TOKEN_USAGE, tokens, {**asked, names.TOKEN_TYPE: kind})
        if row.spent.nano_usd:
            charged = {label: value for label, value in asked.items() if label is not names.OPERATION}
            self._measure(names.COST_USED, row.spent.nano_usd / 1e9, charged)

    def _name_model(self, sent: Sent, answer: object) -> str | None:
        """Return the name of the model that was asked: known is the configured one, and one under whose name a provider
        has answered; any other a caller may have made up."""
        if sent.model is None:
            return None
        has_answered = sent.route in PAID_ROUTES and isinstance(answer, Completion)
        name = sent.model.partition(":")[2] or sent.model
        return name if has_answered or sent.model == self._configured_model else MadeUp(name)

    def _add_tool_call(
        self, row: StepRow, attempt: Attempt, call: ToolCall, approvals: Sequence[ApprovalTimes]
    ) -> None:
        sent, answer = attempt.sent, attempt.answer
        if sent.route is None or attempt.ended_at is None or not attempt.was_performed:
            return
        decided = [each.decided_at for each in approvals if each.verdict == "approve" and each.decided_at is not None]
        queued_ms = None if not decided or attempt.is_open else max(0, attempt.at - max(decided))
        if queued_ms is not None:
            self._measure(names.QUEUE_DURATION, queued_ms / 1000, {})
        ended_at = attempt.end_of_work(row)
        tool = call.name if sent.route == SERVER_ROUTE else MadeUp(call.name)  # a caller's own tool
        self._add_span(
            names.TOOL_CALL,
            attempt_key(row.path, attempt.number),
            row.path,
            attempt.at,
            ended_at,
            {
                **self._step_attributes(row, sent),
                names.OPERATION: "execute_tool",
                names.TOOL: tool,
                names.TOOL_TYPE: "extension" if sent.route == SERVER_ROUTE else "function",
                names.TOOL_CALL_ID: row.path,
                names.ROUTE: sent.route,
                names.ATTEMPT: attempt.number,
                names.QUEUE: None if queued_ms is None else queued_ms / 1000,
                names.ERROR: attempt.error,
                names.ARGUMENTS: json.dumps(call.arguments, ensure_ascii=False),
                names.RESULT: answer.content if isinstance(answer, ToolResult) else None,
            },
        )
        labels = {names.OPERATION: "execute_tool", names.TOOL: tool, names.ERROR: attempt.error}
        self._measure(names.TOOL_DURATION, (ended_at - attempt.at) / 1000, labels)

    def _add_approval(self, row: StepRow, approval: ApprovalTimes) -> None:
        ended_at = approval.decided_at or row.answered_at or approval.asked_at
        verdict = approval.verdict or "withdrawn"
        self._add_span(
            names.APPROVAL,
            f"{row.path}/approval-{approval.n}",
            row.path,
            approval.asked_at,
            ended_at,
            {
                names.TOOL: approval.tool,
                names.RUN_ID: self._run.id,
                names.CONVERSATION: self._run.id,
                names.PATH: row.path,
                names.VERDICT: verdict,
                names.DECIDED_THROUGH: approval.through,
            },
        )
        self._measure(names.APPROVAL_WAIT, (ended_at - approval.asked_at) / 1000, {names.VERDICT: verdict})

    def _end_run(self, outcome_text: str) -> None:
        run, spec = self._run, self._spec
        outcome: Outcome = decode(Outcome, outcome_text)
        named = {
            names.OPERATION: "invoke_workflow" if kind_of(run.flow).is_workflow else "invoke_agent",
            names.AGENT: spec.agent or run.flow,
            names.ERROR: outcome.stop_reason if outcome.status == "failed" else None,
        }
        spent = accounts.read_account(self._session, run.account).spent
        (cached,) = self._session.row("select cached from run where n = ?", (run.n,)) or (0,)
        ended_at = run.ended_at or run.created_at
        self._add_span(
            names.RUN,
            RUN_KEY,
            None,
            run.created_at,
            ended_at,
            {
                **named,
                **usage_attributes(spent, cached),
                names.CONVERSATION: run.id,
                names.RUN_ID: run.id,
                names.FLOW: run.flow,
                names.MANDATE: run.mandate,
                names.ROUTE: run.route,
                names.STATUS: outcome.status,
                names.STOP_REASON: outcome.stop_reason,
                names.ROUNDS: spent.rounds,
                names.MODEL_CALLS: spent.model_calls,
                names.TOOL_CALLS: spent.tool_calls,
                names.GOAL: spec.goal,
                names.SUMMARY: outcome.text or None,
            },
        )
        self._measure(names.RUN_DURATION, (ended_at - run.created_at) / 1000, named)
        self._measure(names.RUNS_ENDED, 1, {names.FLOW: run.flow, names.STATUS: outcome.status})

    def _find_call(self, row: StepRow) -> ToolCall:
        """Return the call of a step: from its row, or from the answer of its turn."""
        return row.call or self._read_turn(row)[0][turn_of(row.path)[1] - 1]

    def _read_turn(self, row: StepRow) -> tuple[tuple[ToolCall, ...], str | None]:
        """Return the calls of the turn that a call belongs to, and whose turn it was."""
        turn, number = turn_of(row.path)
        if turn not in self._turns:
            asked = queries.step_at(self._session, self._run.n, turn) if number else None
            answer = None if asked is None else asked.answer
            calls = answer.tool_calls if isinstance(answer, Completion) else ()
            self._turns[turn] = calls, None if asked is None else asked.sent.agent
        return self._turns[turn]

    def _step_attributes(self, row: StepRow, sent: Sent) -> dict[Attribute, Value | None]:
        agent = self._read_turn(row)[1] if row.kind == "call" else sent.agent
        return {
            names.RUN_ID: self._run.id,
            names.CONVERSATION: self._run.id,
            names.PATH: row.path,
            names.AGENT: agent or self._spec.agent or self._run.flow,
        }

    def _add_span(
        self,
        form: SpanForm,
        key: str,
        parent: str | None,
        started_at: int,
        ended_at: int,
        attributes: Mapping[Attribute, Value | None],
    ) -> None:
        self._spans.append(SpanRecord(form, key, parent, started_at, ended_at, attributes))

    def _measure(self, metric: Metric, value: float, labels: Mapping[Attribute, str | None]) -> None:
        self._measurements.append(Measurement(metric, value, labels))
