"""The record of a run in pages: its events, calls, messages, usage, plan and changes, and whole texts behind refs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from kairos_mcp.core.errors import BadArguments, NotFound
from kairos_mcp.core.messages import Completion, JsonObject, Message, ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.patterns import compile_line_search
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Answer, Failure, Refused
from kairos_mcp.core.text import truncate
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.report_queries import DecisionRow
from kairos_mcp.store.rows import decode
from kairos_mcp.views.file_diffs import list_call_diffs
from kairos_mcp.views.team_view import TeamView
from kairos_mcp.views.transcript import (
    answers_by_path,
    calls_by_path,
    kinds_by_path,
    list_entries,
)

View = Literal["events", "calls", "messages", "usage", "plan", "diff"]
EVENT_CHARS = 200  # of the text in an event: view=messages and a ref have all of it


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """What to show of a run: a view in pages, or the text behind `ref`. `grep` (RE2) keeps what matches.

    `max_chars` bounds a page; `cursor` is the `next_cursor` of the page before.
    """

    view: View = "events"
    ref: str | None = None
    grep: str | None = None
    cursor: str | None = None
    max_chars: int = 8_000


@dataclass(frozen=True, slots=True)
class TraceInput:
    """What a trace is made from: the run, its rows, its brief (none where there is no one conversation) and its
    texts by ref. `talks`: the conversations of a run that has
    several; `output`: what one that has not ended shows so far; `decided`: by path, what was decided about a step, by
    whom, through what, with which client; `team`: what a team has come to, where its plan is asked for."""

    run: RunRow
    record: Sequence[StepRow]
    brief: PlannerInput | None
    text_of: Callable[[str], str | None]
    talks: Callable[[], Mapping[str, Sequence[Message]]] = dict
    output: Any = None
    decided: Mapping[str, Sequence[DecisionRow]] = field(default_factory=dict)
    team: TeamView | None = None


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """What a query asks for, read from the rows of a run: the items of a view, or the one text behind a ref.

    `head`: what its pages say besides.
    """

    head: JsonObject
    items: Sequence[JsonObject] = ()
    text: str | None = None


def find_trace(traced: TraceInput, query: TraceQuery) -> FoundTrace:
    """Read what is asked for. Raises NotFound for a ref."""
    if query.ref is not None:
        text = _text_of(traced, query.ref)
        if text is None:
            reason = f"This run has nothing under the ref {query.ref[:120]!r}."
            raise NotFound(reason, "run_trace view=events lists the refs.")
        return FoundTrace({"run_id": traced.run.id, "ref": query.ref}, text=text)
    phase = {"phase": traced.team.phase} if traced.team is not None else {}
    return FoundTrace({"run_id": traced.run.id, "view": query.view, **phase}, list(_items(traced, query.view)))


def cut_page(found: FoundTrace, query: TraceQuery) -> JsonObject:
    """Return one page of what was found, searched by `grep`: that belongs into a worker thread.

    Raises BadArguments for a cursor or a pattern.
    """
    if found.text is not None:
        return found.head | _text_page(found.text, query)
    return found.head | _page(list(matching_items(found.items, query.grep)), query)


def _items(traced: TraceInput, view: View) -> Iterator[JsonObject]:
    match view:
        case "events":
            answers = answers_by_path(traced.record)
            return (
                _event(row, answers.get(row.path)) | _decision_item(traced.decided.get(row.path, ()))
                for row in traced.record
            )
        case "calls":
            return _calls(traced)
        case "messages":
            return _messages(traced)
        case "usage":
            return (_usage(row) for row in traced.record if row.body is not None)
        case "plan":
            return (task.as_json() for task in (traced.team.tasks if traced.team is not None else ()))
        case "diff":
            return (each.as_json() for each in list_call_diffs(traced.record, traced.text_of))


def _event(row: StepRow, answer: Answer | None) -> JsonObject:
    event: JsonObject = {"ref": row.path, "kind": row.kind, "at": row.at, "digest": row.digest.hex()[:16]}
    if row.sent.route is not None:
        event["route"] = row.sent.route
    if row.sent.dialect is not None:
        event["dialect"] = row.sent.dialect
    if row.further_attempts:
        event["attempts"] = row.further_attempts + row.was_begun_here
    match answer:
        case None:
            return event | {"state": _open_state(row)}
        case Completion() as turn:
            calls = [call.name for call in turn.tool_calls]
            event |= {
                "answer": "completion",
                "finish": turn.finish,
                "text": truncate(turn.content, EVENT_CHARS),
                "calls": calls,
            }
        case ToolResult() as result:
            event |= {
                "answer": result.code or ("error" if result.is_error else "ok"),
                "text": truncate(result.content, EVENT_CHARS),
            } | _remark(result)
        case Refused(limit=limit, used=used, allowed=allowed):
            event |= {"answer": "refused", "limit": limit, "used": used, "allowed": allowed}
        case Failure(code=code, message=message):
            event |= {"answer": "failure", "code": code, "text": truncate(message, EVENT_CHARS)}
        case other:
            event["answer"] = other.kind
    return event | {"by": row.by_route, "ms": (row.answered_at or row.at) - row.at}


def _decision_item(found: Sequence[DecisionRow]) -> JsonObject:
    return {"decided": [each.as_json() for each in found]} if found else {}


def _remark(result: ToolResult) -> JsonObject:
    return {} if result.remark is None else {"remark": result.remark}


def _calls(traced: TraceInput) -> Iterator[JsonObject]:
    answers = answers_by_path(traced.record)
    calls = calls_by_path(traced.record, answers)
    for row in traced.record:
        if row.kind != "call":
            continue
        call, answer = calls[row.path], answers.get(row.path)
        shown: JsonObject = {"ref": row.path, "name": call.name, "arguments": call.arguments}
        if isinstance(answer, ToolResult):
            shown |= {
                "ok": not answer.is_error,
                "ms": row.spent.milliseconds,
                "content": truncate(answer.content, 400),
            } | _remark(answer)
        else:
            shown["state"] = answer.kind if answer is not None else _open_state(row)
        yield shown | _decision_item(traced.decided.get(row.path, ()))


def _messages(traced: TraceInput) -> Iterator[JsonObject]:
    if traced.brief is None:
        for path, messages in traced.talks().items():
            yield from ({"path": path, **message.as_json()} for message in messages)
        return
    yield {"role": "system", "content": traced.brief.system}
    # An export has no row of an unanswered call, and calls it incomplete; here it is seen what it waits for.
    states = {row.path: _open_state(row) for row in traced.record if row.kind == "call" and row.body is None}
    for entry in list_entries(traced.brief, answers_by_path(traced.record), kinds_by_path(traced.record)):
        if entry.message.role == "tool" and entry.path in states:
            yield {"role": "tool", "tool_call_id": entry.path, "content": "", "state": states[entry.path]}
        else:
            yield entry.message.as_json()


def _open_state(row: StepRow) -> str:
    """Return the state of a step without an answer: whether it waits for somebody, or was begun here."""
    return "open" if row.is_waiting else "begun"


def _usage(row: StepRow) -> JsonObject:
    spent = {unit: amount for unit, amount in row.spent._asdict().items() if amount}
    return {"ref": row.path, "by": row.by_route, "exactness": row.exactness, **spent}


def matching_items(items: Iterable[JsonObject], grep: str | None) -> Iterator[JsonObject]:
    """Yield the items that match `grep`; all where there is none. Raises BadArguments for an invalid pattern.

    With `grep` it belongs into a worker thread.
    """
    if grep is None:
        yield from items
        return
    matches = compile_line_search(grep)
    yield from (item for item in items if matches(json.dumps(item, ensure_ascii=False).encode()))


def _page(items: Sequence[JsonObject], query: TraceQuery) -> JsonObject:
    """As many items as fit, at least one; an item that does not fit alone has its texts cut."""
    start, size = _start(query.cursor, len(items)), 0
    shown: list[JsonObject] = []
    for item in items[start:]:
        length = len(json.dumps(item, ensure_ascii=False))
        if shown and size + length > query.max_chars:
            break
        shown.append(item if length <= query.max_chars else _fit_item(item, query.max_chars))
        size += length
    end = start + len(shown)
    return {"items": shown, "total": len(items), "next_cursor": str(end) if end < len(items) else None}


def _fit_item(item: JsonObject, max_chars: int) -> JsonObject:
    """The item with each long text cut, so that the page stays within its bound."""
    room = max(80, max_chars // 4)
    cut = {name: truncate(value, room) if isinstance(value, str) else value for name, value in item.items()}
    if len(json.dumps(cut, ensure_ascii=False)) > max_chars:
        cut = {name: value for name, value in cut.items() if isinstance(value, str | int | bool)}
        cut["cut"] = "arguments or calls left out"
    return cut


def _text_page(text: str, query: TraceQuery) -> JsonObject:
    if query.grep is not None:
        matches = compile_line_search(query.grep)
        numbered = enumerate(text.splitlines(), 1)
        text = "\n".join(f"{n}: {line}" for n, line in numbered if matches(line.encode()))
    start = _start(query.cursor, len(text))
    end = start + query.max_chars
    following = str(end) if end < len(text) else None
    return {"text": text[start:end], "chars": len(text), "next_cursor": following}


def _text_of(traced: TraceInput, ref: str) -> str | None:
    if ref not in ("summary", "record", "output"):
        return traced.text_of(ref)
    outcome: Outcome | None = decode(Outcome, traced.run.outcome) if traced.run.outcome is not None else None
    wanted: Any = (traced.output if ref == "output" else None) if outcome is None else getattr(outcome, ref)
    return wanted if isinstance(wanted, str | None) else json.dumps(wanted, ensure_ascii=False, indent=2)


def _start(cursor: str | None, length: int) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 12 or int(cursor) > length:
        raise BadArguments("This cursor was not given for this page.", "Leave it out to start from the beginning.")
    return int(cursor)
