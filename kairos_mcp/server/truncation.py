"""Cut a result to a size that a host's model can be shown; whatever is cut is named in `degraded`.

Works on results as JSON, independent of the protocol. A completion's conversation, which may be long, is cut by a rule
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import to_json

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import truncate
from kairos_mcp.server.framing import on_one_line
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.views.waiting import is_named_only, name_item

RESULT_CHARS = 6_000
ITEMS_CHARS = 60_000  # of all waiting items in a result; those beyond are named
CONVERSATION_CHARS = 24_000
APPROVAL_CHARS = 8_000
MIN_SUMMARY_CHARS = 2_200  # for a summary and an output if both are long
MIN_OUTPUT_CHARS = 1_800
PREVIEW_CHARS = 80
NOTE_CHARS = 120  # a note, the one that names a cut included
MAX_NOTES = 5


def size(value: Any) -> int:
    """The length of the value as compact JSON, in characters, as in a result's text."""
    return len(on_one_line(to_json(value).decode()))


def fit_result(result: JsonObject, chars: int = RESULT_CHARS, items_chars: int = ITEMS_CHARS) -> JsonObject:
    """Cut the result to at most `chars` characters, without its waiting items, which are cut by their own rule to
    `items_chars`."""
    items, notes = _fit_items(result["waiting"], items_chars)
    body = {**result, "waiting": [], "degraded": [*result["degraded"], *notes]}
    for cut in _CUTS:
        if size(body) <= chars:
            break
        body = cut(body, chars)
    return {**body, "waiting": items}


def fit_keeping_output(result: JsonObject) -> JsonObject:
    """Cut the result except for its output, which the next phase takes unchanged."""
    return {**fit_result({**result, "output": None}), "output": result["output"]}


def _with_note(body: JsonObject, note: str, **changed: Any) -> JsonObject:
    return {**body, **changed, "degraded": [*body["degraded"], note]}


def _room_for(body: JsonObject, name: str, chars: int, minimum: int) -> int:
    """The characters that are left for one long field beside the others, but at least its share of `chars`."""
    left = chars - size({**body, name: None}) - NOTE_CHARS
    return max(left, minimum * chars // RESULT_CHARS)


def _cut_previews(body: JsonObject, _chars: int) -> JsonObject:
    calls = [call | {"preview": truncate(call["preview"], PREVIEW_CHARS, "...")} for call in body["calls"]]
    if calls == body["calls"]:
        return body
    return _with_note(body, "previews of calls cut: run_trace view=calls", calls=calls)


def _drop_calls(body: JsonObject, _chars: int) -> JsonObject:
    return _with_note(body, "calls left out: run_trace view=calls", calls=[]) if body["calls"] else body


def _cut_output(body: JsonObject, chars: int) -> JsonObject:
    """Replace a long output by its ref; of a tool's content keep head and tail. Other JSON would not stay valid."""
    output, room = body["output"], _room_for(body, "output", chars, MIN_OUTPUT_CHARS)
    length = size(output)
    if length <= room:
        return body
    match output:
        case {"content": str() as content, "is_error": bool()}:
            data = output.get("data") if size(output.get("data")) <= room // 2 else None
            shown: JsonObject = {**output, "content": _ends(content, room // 2), "data": data}
        case {"answer": str(), "tasks": [*tasks]} if (
            kind_of(body["flow"]).tells_tasks and size(tasks) <= room - NOTE_CHARS
        ):
            shown = {"ref": "output", "chars": length, "tasks": tasks}  # the answer is the summary
        case {"mandate_status": _}:
            brief = ("mandate_id", "mandate_status", "reason")
            shown = {name: output[name] for name in brief if name in output} | {"ref": "output", "chars": length}
        case _:
            shown = {"ref": "output", "chars": length}
    return _with_note(body, f"output cut from {length} characters: run_trace ref=output", output=shown)


def _cut_summary(body: JsonObject, chars: int) -> JsonObject:
    """Cut the summary, or the record that stands in its place."""
    name = "summary" if body["record"] is None else "record"
    text, room = body[name] or "", _room_for(body, name, chars, MIN_SUMMARY_CHARS)
    if size(text) <= room:
        return body
    note = f"{name} cut from {len(text)} characters: run_trace ref={name}"
    return _with_note(body, note, **{name: _ends(text, room)})


def _cut_plan(body: JsonObject, _chars: int) -> JsonObject:
    plan = [task | {"description": truncate(task["description"], PREVIEW_CHARS, "...")} for task in body["plan"]]
    return body if plan == body["plan"] else _with_note(body, "plan cut: run_trace view=plan", plan=plan)


def _drop_plan(body: JsonObject, _chars: int) -> JsonObject:
    return _with_note(body, "plan left out: run_trace view=plan", plan=[]) if body["plan"] else body


def _cut_notes(body: JsonObject, _chars: int) -> JsonObject:
    notes = body["degraded"]
    kept = [note if size(note) <= NOTE_CHARS else _head(note, NOTE_CHARS) for note in notes[-MAX_NOTES:]]
    return {**body, "degraded": [*kept, f"{len(notes)} notes, some cut: run_trace view=events"]}


_CUTS: tuple[Callable[[JsonObject, int], JsonObject], ...] = (
    _cut_previews,
    _cut_plan,
    _cut_output,
    _cut_summary,
    _drop_plan,
    _drop_calls,
    _cut_notes,
)
"""Applied in this order while the result is too long: what is easiest to get again goes first."""


def _head(text: str, room: int) -> str:
    """The beginning of a text in about `room` characters of JSON."""
    return text[: max(10, len(text) * room // size(text) - 20)] + "..."


def _ends(text: str, room: int) -> str:
    """Head and tail of a text in `room` characters of JSON; between them, how much is left out."""
    kept = len(text)
    while True:
        head, tail = text[: kept * 2 // 3], text[len(text) - kept // 3 :]
        short = f"{head}\n[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"
        if size(short) <= room or kept < 20:
            return short
        kept = kept * room // size(short) - 20  # again: the part that is left may have more escapes


def _fit_items(items: Sequence[JsonObject], chars: int) -> tuple[list[JsonObject], list[str]]:
    """The waiting items that find room, each cut by its own rule, and of the others what names them; with notes on what
    was cut. What follows an answer of this call comes first, then what waits longest. In a result with nothing else the
    first is always shown: it is answered before there is room for more."""
    shown = [name_item(item) for item in items]
    notes: list[str] = []
    left = chars - sum(map(size, shown))
    in_turn = sorted(range(len(items)), key=lambda at: "after" not in items[at])
    left_out = 0
    for number, at in enumerate(in_turn):
        if is_named_only(items[at]):
            continue
        is_first = chars == ITEMS_CHARS and not number
        room = left + size(shown[at])
        cut, cuts = _cut_item(items[at], room if is_first else None)
        if size(cut) > room and not is_first:
            left_out += 1
            continue
        left = room - size(cut)
        shown[at] = cut
        notes += cuts
    if left_out:
        many = f"{left_out} of {len(items)} waiting items are named only, for want of room"
        notes.append(f"{many}: run_status view=full shows those that wait longest; answer others first")
    return shown, notes


def _cut_item(item: JsonObject, chars: int | None) -> tuple[JsonObject, list[str]]:
    """A waiting item, and notes on what was cut. A long preview becomes a ref, since nobody could decide on a part of
    it. In a completion's long conversation older tool results shrink to refs; where the item has more than `chars`
    characters even so, those of the newest turn too. What the caller gave itself is never cut."""
    if len(item.get("preview") or "") > APPROVAL_CHARS:
        shown_at = f'[{len(item["preview"])} characters: run_trace ref="{item["key"]}", or the command show]'
        return {**item, "preview": shown_at}, [f"{item['key']}: the preview is too long to be shown here"]
    messages = item.get("messages") or []
    excess = sum(len(message.get("content", "")) for message in messages) - CONVERSATION_CHARS
    newest_turn = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    shown, older = _shrink_results(messages, newest_turn, excess)
    newest: list[str] = []
    if chars is not None and messages:
        shown, newest = _shrink_results(shown, len(shown), size({**item, "messages": shown}) - chars)
    notes = [
        f"{item['key']}: {len(refs)} {which} tool results shrunk to refs ({refs[0]} to {refs[-1]})"
        for which, refs in (("older", older), ("new", newest))
        if refs
    ]
    return ({**item, "messages": shown} if notes else item), notes


def _shrink_results(messages: list[JsonObject], before: int, excess: int) -> tuple[list[JsonObject], list[str]]:
    """The messages with refs in place of tool results, oldest first and only `before` that position, until so many
    characters are gone; and those refs."""
    shown, shrunk = list(messages), list[str]()
    for at, message in enumerate(messages[:before]):
        if excess <= 0:
            break
        if message["role"] == "tool":
            ref, length = str(message.get("tool_call_id")), len(message["content"])
            note = f'[{length} characters left out: run_trace ref="{ref}"]'
            if len(note) < length:
                excess -= length - len(note)
                shown[at] = {**message, "content": note}
                shrunk.append(ref)
    return shown, shrunk
