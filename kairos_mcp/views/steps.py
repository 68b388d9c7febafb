"""The steps of a run as they are shown: folded from rows as they come, so that a look costs what is new.

Whoever watches a run keeps its steps by path. A frame holds whole steps, new or changed; laying one over what was known
gives the run as it is. A frame that holds a step again does no harm, so any frame from an earlier state will do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult
from kairos_mcp.core.steps import Answer, Failure, Refused, call_path, first_parts, split_path, task_of
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.store import queries, report_queries
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.report_queries import DecisionRow
from kairos_mcp.store.rows import Session, decode

TEXT_CHARS = 4_000  # of a step's text, and of each text in its arguments: `run_trace ref=PATH` has all of it
ARGUMENTS_CHARS = 12_000  # of all arguments of a call


class ShownSteps:
    """The steps of one run by path, each as it is shown, and at which `seq` of the run it changed last.

    `run`: its row as it was at the newest look.

    A step is {path, group, kind, at, state: open | begun | ok | failed | refused}; answered it has `ms`, and what there
    is of name, arguments, text (with `chars` of all of it, where it was cut), calls, finish, code, input_tokens,
    output_tokens, cached_tokens, usd, by, agent, attempts, limit, decided, carries (what the rules of information flow
    found of a call).
    """

    def __init__(self, run: RunRow) -> None:
        self.seq = -1
        self.run = run
        self._steps: dict[str, JsonObject] = {}
        self._changed: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._calls: dict[str, ToolCall] = {}
        self._unanswered: set[int] = set()
        self._last = 0

    def read(self, session: Session) -> None:
        """Read what was committed since the last time: new steps, and those that had no answer then. Raises Unreadable.

        The session has to read from one state of the store.
        """
        run = self.run = queries.run_by_number(session, self.run.n)
        if run.seq == self.seq:
            return
        rows = queries.read_steps_since(session, run.n, self._last, self._unanswered)
        decided = report_queries.list_decisions(session, run.n) if rows else {}
        for row in rows:
            self._keep(row, self._show(row, decided.get(row.path, ())))
        self.seq = run.seq

    def _keep(self, row: StepRow, step: JsonObject) -> None:
        self._last = max(self._last, row.id)
        if row.body is None:
            self._unanswered.add(row.id)
        else:
            self._unanswered.discard(row.id)
            self._calls.pop(row.path, None)
        self._steps[row.path], self._changed[row.path], self._numbers[row.path] = step, row.seq, row.id

    def since(self, seq: int | None = None, after: int = 0) -> list[tuple[int, JsonObject]]:
        """Return the steps that changed after the run's `seq`, in the order in which they came, each with its number.

        All of them for None, and for a number from ahead of the run. `after`: only those with a greater number.
        """
        known = -1 if seq is None or seq > self.seq else seq
        return [
            (number, self._steps[path])
            for path, number in self._numbers.items()
            if number > after and self._changed[path] > known
        ]

    def _show(self, row: StepRow, decided: Sequence[DecisionRow]) -> JsonObject:
        step: JsonObject = {"path": row.path, "group": group_of(row.path), "kind": row.kind, "at": row.at}
        if row.kind == "call":
            call = row.call or self._calls[row.path]
            fitted: JsonObject = _fit_value(call.arguments)
            text = json.dumps(fitted, ensure_ascii=False)
            step |= {
                "name": call.name,
                "arguments": fitted if len(text) <= ARGUMENTS_CHARS else {"…": truncate(text, ARGUMENTS_CHARS)},
            }
        if row.sent.agent is not None:
            step["agent"] = row.sent.agent
        if row.further_attempts:
            step["attempts"] = row.further_attempts + row.was_begun_here
        if row.judged_text is not None:
            from kairos_mcp.execution.flow_view import JudgedCall, Judgement  # a list of runs does without it

            if found := decode(Judgement, row.judged_text).found:
                step["carries"] = JudgedCall(row.path, step["name"], found).as_json()["findings"]
        if decided:
            step["decided"] = [each.as_json() for each in decided]
        answer = row.answer
        if answer is None:
            return step | {"state": "open" if row.is_waiting else "begun"}
        if isinstance(answer, Completion):
            self._calls |= {call_path(row.path, n): call for n, call in enumerate(answer.tool_calls, 1)}
        took = (row.answered_at or row.at) - row.at
        step["ms"] = (row.spent.milliseconds or took) if row.kind == "call" else took
        return step | _show_answer(answer) | _show_spent(row)


def group_of(path: str) -> str:
    """Return the path of what a step belongs to: its round, a phase of its cycle, or the part that it stands in."""
    parts = split_path(path)
    length = next((at for at, part in enumerate(parts, 1) if part.name == "round"), 0)
    if not length and task_of(path):
        length = 3  # task-1/try-1/closing
    elif not length:
        length = 2 if len(parts) > 1 and parts[1].name in PHASES else 1
    return first_parts(path, length)


def _show_answer(answer: Answer) -> JsonObject:
    match answer:
        case Completion() as turn:
            shown = {"state": "ok" if turn.unreadable is None else "failed"} | _fit_text(turn.content)
            shown |= {"finish": turn.finish} if turn.finish is not None else {}
            return shown | ({"calls": [call.name for call in turn.tool_calls]} if turn.tool_calls else {})
        case ToolResult() as result:
            shown = {"state": "failed" if result.is_error else "ok"} | _fit_text(result.content, result.chars)
            return shown | ({"code": result.code} if result.code is not None else {})
        case Refused(limit=limit, used=used, allowed=allowed):
            return {"state": "refused", "limit": {"name": limit, "used": used, "allowed": allowed}}
        case Failure(code=code, message=message):
            return {"state": "failed", "code": code} | _fit_text(message)
        case _:
            return {"state": "ok"}


def _show_spent(row: StepRow) -> JsonObject:
    shown: JsonObject = {"by": row.by_route} if row.by_route is not None else {}
    if row.kind in ("call", "pause") or not row.spent.model_calls:
        return shown
    shown |= {"input_tokens": row.spent.input_tokens, "output_tokens": row.spent.output_tokens}
    shown |= {"usd": row.spent.nano_usd / 1e9} if row.spent.nano_usd else {}
    return shown | ({"cached_tokens": row.cached} if row.cached else {})


def _fit_text(text: str, chars: int | None = None) -> JsonObject:
    """Return a text with its full length, where it was cut here or before."""
    whole = chars if chars is not None else len(text)
    shown: JsonObject = {"text": truncate(text, TEXT_CHARS)} if text else {}
    return shown | ({"chars": whole} if whole > TEXT_CHARS else {})


def _fit_value(value: Any) -> Any:
    match value:
        case str():
            return truncate(value, TEXT_CHARS, "… ({total:,} characters)")
        case dict():
            return {name: _fit_value(each) for name, each in value.items()}
        case list():
            return [_fit_value(each) for each in value]
        case _:
            return value


def fit_step(step: JsonObject, chars: int) -> JsonObject:
    """Return a step cut to about `chars` characters: its text and the texts in its arguments by equal shares."""
    room = max(80, chars // 4)
    fitted = dict(step)
    if len(fitted.get("text", "")) > room:
        fitted["chars"] = step.get("chars", len(step["text"]))
        fitted["text"] = truncate(step["text"], room)
    if "arguments" in step and len(text := json.dumps(step["arguments"], ensure_ascii=False)) > room:
        fitted["arguments"] = {"…": truncate(text, room)}
    return fitted
