"""How a result is brought to a size that a host's model can be shown; whatever is cut is named in `degraded`.

Works on results as JSON and knows no protocol. A completion's conversation, which alone may be long, is cut
by a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import truncate
from kairos_mcp.server.framing import on_one_line

RESULT_CHARS = 6_000
CONVERSATION_CHARS = 24_000
APPROVAL_CHARS = 8_000
SUMMARY_CHARS = 2_200  # what a summary and an output have at least when both are long
OUTPUT_CHARS = 1_800
PREVIEW_CHARS = 80
NOTE_CHARS = 120  # a note, the one that names a cut included
NOTES = 5


def size(value: Any) -> int:
    """Characters of the value as compact JSON, as the text has it."""
    return len(on_one_line(to_json(value).decode()))


def fit_result(result: JsonObject, chars: int = RESULT_CHARS) -> JsonObject:
    """The result in at most `chars` characters, its waiting items apart, which are cut by their own rule."""
    items = [_cut_item(item) for item in result["waiting"]]
    body = {
        **result,
        "waiting": [],
        "degraded": [*result["degraded"], *(note for _, notes in items for note in notes)],
    }
    for cut in _CUTS:
        if size(body) <= chars:
            break
        body = cut(body, chars)
    return {**body, "waiting": [item for item, _ in items]}


def with_whole_output(result: JsonObject) -> JsonObject:
    """The result fitted but for its output, which the next call takes unchanged and whole."""
    return {**fit_result({**result, "output": None}), "output": result["output"]}


def _with_note(body: JsonObject, note: str, **changed: Any) -> JsonObject:
    return {**body, **changed, "degraded": [*body["degraded"], note]}


def _room(body: JsonObject, name: str, chars: int, least: int) -> int:
    """What is left for one long field beside the others, and its own least if they leave less."""
    left = chars - size({**body, name: None}) - NOTE_CHARS
    return max(left, least * chars // RESULT_CHARS)


def _shorter_previews(body: JsonObject, _chars: int) -> JsonObject:
    calls = [call | {"preview": truncate(call["preview"], PREVIEW_CHARS, "...")} for call in body["calls"]]
    if calls == body["calls"]:
        return body
    return _with_note(body, "previews of calls cut: run_trace view=calls", calls=calls)


def _no_calls(body: JsonObject, _chars: int) -> JsonObject:
    return _with_note(body, "calls left out: run_trace view=calls", calls=[]) if body["calls"] else body


def _output_by_ref(body: JsonObject, chars: int) -> JsonObject:
    """A tool's content keeps its head and tail; any other JSON can't be cut and stay valid."""
    output, room = body["output"], _room(body, "output", chars, OUTPUT_CHARS)
    long = size(output)
    if long <= room:
        return body
    match output:
        case {"content": str() as content, "is_error": bool()}:
            data = output.get("data") if size(output.get("data")) <= room // 2 else None
            shown: JsonObject = {**output, "content": _ends(content, room // 2), "data": data}
        case {"mandate_status": _}:
            brief = ("mandate_id", "mandate_status", "reason")
            shown = {name: output[name] for name in brief if name in output} | {"ref": "output", "chars": long}
        case _:
            shown = {"ref": "output", "chars": long}
    return _with_note(body, f"output cut from {long} characters: run_trace ref=output", output=shown)


def _shorter_summary(body: JsonObject, chars: int) -> JsonObject:
    summary, room = body["summary"] or "", _room(body, "summary", chars, SUMMARY_CHARS)
    if size(summary) <= room:
        return body
    note = f"summary cut from {len(summary)} characters: run_trace ref=summary"
    return _with_note(body, note, summary=_ends(summary, room))


def _shorter_plan(body: JsonObject, _chars: int) -> JsonObject:
    plan = [task | {"description": truncate(task["description"], PREVIEW_CHARS, "...")} for task in body["plan"]]
    return body if plan == body["plan"] else _with_note(body, "plan cut: run_trace view=events", plan=plan)


def _no_plan(body: JsonObject, _chars: int) -> JsonObject:
    return _with_note(body, "plan left out: run_trace view=events", plan=[]) if body["plan"] else body


def _fewer_notes(body: JsonObject, _chars: int) -> JsonObject:
    notes = body["degraded"]
    kept = [note if size(note) <= NOTE_CHARS else _head(note, NOTE_CHARS) for note in notes[-NOTES:]]
    return {**body, "degraded": [*kept, f"{len(notes)} notes, some cut: run_trace view=events"]}


_CUTS: tuple[Callable[[JsonObject, int], JsonObject], ...] = (
    _shorter_previews,
    _shorter_plan,
    _output_by_ref,
    _shorter_summary,
    _no_plan,
    _no_calls,
    _fewer_notes,
)
"""In this order, each only while the result is too long: what is easiest to get again goes first."""


def _head(text: str, room: int) -> str:
    """The beginning of a text in about `room` characters of JSON."""
    return text[: max(10, len(text) * room // size(text) - 20)] + "..."


def _ends(text: str, room: int) -> str:
    """Head and tail of a text in `room` characters of JSON, with a word on how much is missing between."""
    kept = len(text)
    while True:
        head, tail = text[: kept * 2 // 3], text[len(text) - kept // 3 :]
        short = f"{head}\n[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"
        if size(short) <= room or kept < 20:
            return short
        kept = kept * room // size(short) - 20  # again, since escapes may crowd where it was cut


def _cut_item(item: JsonObject) -> tuple[JsonObject, list[str]]:
    """A completion item, its older tool results shrunk to refs where the conversation is too long; an approval's long
    preview as a ref: one that was cut could not be decided on."""
    if len(item.get("preview") or "") > APPROVAL_CHARS:
        told = f'[{len(item["preview"])} characters: run_trace ref="{item["key"]}", or the command show]'
        return {**item, "preview": told}, [f"{item['key']}: the preview is too long to be shown here"]
    messages = item.get("messages") or []
    over = sum(len(message["content"]) for message in messages) - CONVERSATION_CHARS
    shrunk: list[str] = []
    shown = list(messages)
    newest_turn = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    for at, message in enumerate(messages[:newest_turn]):
        if over <= 0:
            break
        if message["role"] == "tool":
            ref, length = str(message.get("tool_call_id")), len(message["content"])
            note = f'[{length} characters left out: run_trace ref="{ref}"]'
            if len(note) < length:
                over -= length - len(note)
                shown[at] = {**message, "content": note}
                shrunk.append(ref)
    if not shrunk:
        return item, []
    return {**item, "messages": shown}, [
        f"{item['key']}: {len(shrunk)} older tool results shrunk to refs ({shrunk[0]} to {shrunk[-1]})"
    ]
