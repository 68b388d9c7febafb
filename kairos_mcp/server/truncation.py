"""Cut a result to a size that a host's model can be shown; whatever is cut is named in `degraded`.

Works on results as JSON, independent of the protocol. Each field says how it is cut (`RunReport`); a completion's
conversation, which may be long, is cut by a rule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.views.cuts import NOTE_CHARS, size
from kairos_mcp.views.result_fields import FieldCut
from kairos_mcp.views.run_report import FIELDS
from kairos_mcp.views.waiting import is_named_only, leave_out_texts, name_item, text_ids

RESULT_CHARS = 6_000
ITEMS_CHARS = 60_000  # of all waiting items in a result; those beyond are named
CONVERSATION_CHARS = 24_000
APPROVAL_CHARS = 8_000


_CUTS = sorted(((name, cut) for name, field in FIELDS.items() for cut in field.cuts), key=lambda each: each[1].turn)


def fit_result(
    result: JsonObject, chars: int = RESULT_CHARS, items_chars: int = ITEMS_CHARS, told: set[str] | None = None
) -> JsonObject:
    """Cut the result to at most `chars` characters, without its waiting items, which are cut by their own rule to
    `items_chars`. `told`: the ids of the long texts that stand in it already; those of its items are added."""
    items, notes = _fit_items(result["waiting"], items_chars, set() if told is None else told)
    body = {**result, "waiting": [], "degraded": [*result["degraded"], *notes]}
    for name, cut in _CUTS:
        if size(body) <= chars:
            break
        body = _cut_field(body, name, cut, chars)
    return {**body, "waiting": items}


def _cut_field(body: JsonObject, name: str, cut: FieldCut, chars: int) -> JsonObject:
    """Make a field shorter, which keeps what is left of `chars` beside the others, but at least its share of them."""
    room = 0
    if cut.least:
        left = chars - size({**body, name: None}) - NOTE_CHARS
        room = max(left, cut.least * chars // RESULT_CHARS)
    shorter = cut.shorten(body[name], room, body)
    if shorter == body[name]:
        return body
    changed = {**body, name: shorter}
    return {**changed, "degraded": [*changed["degraded"], cut.note.format(cut.measure(body[name]))]}


def _fit_items(items: Sequence[JsonObject], chars: int, told: set[str]) -> tuple[list[JsonObject], list[str]]:
    """The waiting items that find room, each cut by its own rule, and of the others what names them; with notes on what
    was cut. What follows an answer of this call comes first, then what waits longest. A long text stands in the first
    that has it, and the others name it. In a result with nothing else the first is always shown: it is answered before
    there is room for more."""
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
        cut, cuts = _cut_item(leave_out_texts(items[at], told), room if is_first else None)
        if size(cut) > room and not is_first:
            left_out += 1
            continue
        left = room - size(cut)
        shown[at] = cut
        told |= text_ids(cut)
        notes += cuts
    if left_out:
        many = f"{left_out} of {count_of(len(items), 'waiting item')} {'is' if left_out == 1 else 'are'} named only"
        rest = "run_status view=full shows those that wait longest; answer others first"
        notes.append(f"{many}, for want of room: {rest}")
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
    """Replace tool results by refs, oldest first and only `before` that position, until `excess` characters are gone.
    Return the messages and these refs."""
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
