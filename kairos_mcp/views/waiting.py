"""What a run waits for, item by item, as whoever may answer is shown it; and the shape of the answer to each."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from kairos_mcp.core.already_read import NOTHING_READ, AlreadyRead, text_id
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.input_checks import Placeholder
from kairos_mcp.core.messages import JsonObject, Message, ToolSpec, canonical_json
from kairos_mcp.core.routes import OUTSIDE_ROUTES, is_answered_by
from kairos_mcp.core.steps import CallTool, RequestCompletion, Sent, Step, last_part, loop_of
from kairos_mcp.core.text import truncate
from kairos_mcp.models import dialects
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.queries import RunRow, WaitingRow

ABOUT_CHARS = 200
_LABELS = ("key", "kind", "agent", "about")
_TEXT_IDS = {"system_id": "system", "tools_id": "tools"}


class OpenStep(NamedTuple):
    """A step that a run's flow waits for; in a branch, whose it is and what it is for."""

    step: Step
    agent: str | None = None
    about: str | None = None


class ShownBefore(NamedTuple):
    """What a caller needs not be shown that has read this, and whose call answered at `answered_at` (milliseconds since
    1970; None: it answered nothing)."""

    read: AlreadyRead = NOTHING_READ
    answered_at: int | None = None

    def covers(self, key: str, path: str, opened_at: int) -> bool:
        """Whether to name the item of a step alone: the caller says that it has it, it was there before the answers
        were given, or it goes on in a loop that this call answered nothing in, so that whoever did is shown it."""
        if key in self.read.after:
            return True
        if self.answered_at is None or opened_at < self.answered_at:
            return self.answered_at is not None
        loop = loop_of(path)
        is_first = not loop or last_part(path) == ("round", 1)
        return not is_first and all(loop_of(key) != loop for key in self.read.answered)


NOTHING_SHOWN = ShownBefore()


def waiting_items(
    run: RunRow,
    waits: WaitingItems,
    steps: Mapping[str, OpenStep] | None,
    before: ShownBefore = NOTHING_SHOWN,
    *,
    for_person: bool = False,
) -> Iterator[JsonObject]:
    """Yield an item for everything that waits. Without `steps`, the requests by path, keys and kinds alone.

    Of a completion that goes on with a conversation which the caller has read up to some key, only what is new since
    then is shown. What waited already when this call gave its answers, or follows the answers of others, is named
    alone. `for_person`: for the person who decides, on the terminal or on the page, who alone is shown what depends on
    a file that may not be read unasked.
    """
    yield from _step_items(waits.steps, steps, before)
    yield from _approval_items(run, waits, steps, before, for_person=for_person)
    yield from _unsettled_items(run, waits, steps, before)


def name_item(item: JsonObject) -> JsonObject:
    """Return of an item what names it: key, kind, and in a branch whose it is and what it is about."""
    return {label: item[label] for label in _LABELS if label in item}


def is_named_only(item: JsonObject) -> bool:
    """Whether of an item no more is shown than what names it."""
    return item.keys() <= set(_LABELS)


def text_ids(item: JsonObject) -> set[str]:
    """Return the ids of the long texts of an item: its system text, and its tools."""
    return {item[name] for name in _TEXT_IDS if name in item}


def leave_out_texts(item: JsonObject, known: Collection[str]) -> JsonObject:
    """Return an item in which the long texts with these ids are named alone."""
    left_out = {text for name, text in _TEXT_IDS.items() if item.get(name) in known}
    return {name: value for name, value in item.items() if name not in left_out} if left_out else item


def answered_by(kind: str, route: str) -> str:
    """Return who answers items of this kind."""
    match kind:
        case "approval" | "settle":
            return "a person"
        case "completion" if is_answered_by("client", route):
            return "a client's model"
        case _:
            return "the caller"


def answer_template(item: JsonObject) -> JsonObject:
    """Return the shape of an answer, to be filled in."""
    kind = item["kind"]
    if kind == "approval":
        return {"decision": Placeholder.DECISION, "digest": item.get("digest", Placeholder.DIGEST)}
    if kind == "settle":
        return {"settlement": Placeholder.SETTLEMENT, "digest": item.get("digest", Placeholder.DIGEST)}
    return {"content": Placeholder.RESULT if kind == "tool_call" else Placeholder.ANSWER}


def _label_item(key: str, kind: str, step: OpenStep | None) -> JsonObject:
    labels: JsonObject = {"key": key, "kind": kind}
    if step is not None and step.agent is not None:
        labels["agent"] = step.agent
    if step is not None and step.about is not None:
        labels["about"] = truncate(" ".join(step.about.split()), ABOUT_CHARS)
    return labels


def _step_items(
    waiting: Mapping[str, WaitingRow], steps: Mapping[str, OpenStep] | None, before: ShownBefore
) -> Iterator[JsonObject]:
    shown = steps or {}
    for path, row in waiting.items():
        if row.kind == "pause" or (row.kind != "call" and row.sent.route not in (None, *OUTSIDE_ROUTES)):
            continue  # the latter waits for the end of a provider's outage
        found = shown.get(path)
        labels = _label_item(path, "tool_call" if row.kind == "call" else "completion", found)
        if found is None or path in before.read.after:
            yield labels
            continue
        new = _new_part(path, found.step, row.sent, before.read.keys)
        if new is not None:
            yield labels | new
        elif before.covers(path, path, row.opened_at):
            yield labels
        else:
            yield labels | _request(found.step, row.sent)


def _approval_items(
    run: RunRow,
    waits: WaitingItems,
    steps: Mapping[str, OpenStep] | None,
    before: ShownBefore,
    *,
    for_person: bool,
) -> Iterator[JsonObject]:
    for key, row in waits.approvals.items():
        item = _label_item(key, "approval", (steps or {}).get(row.path))
        if steps is not None and not before.covers(key, row.path, row.asked_at):
            preview = row.person_preview if for_person else row.preview
            item |= {"name": row.tool, "effect": row.effect, "preview": preview, "digest": row.digest}
            if for_person and row.divisible_files:
                item["files"] = list(row.divisible_files)
            item |= {"expires_at": format_time(row.expires_at), "command": decision_command(run, key)}
        yield item


def _unsettled_items(
    run: RunRow, waits: WaitingItems, steps: Mapping[str, OpenStep] | None, before: ShownBefore
) -> Iterator[JsonObject]:
    """Yield the calls of unknown outcome: a server ended during them, and a person says how to go on."""
    shown = steps or {}
    for path, row in waits.lost_calls.items():
        key = path + settlements.KEY_SUFFIX
        item = _label_item(key, "settle", shown.get(path))
        match shown.get(path):
            case OpenStep(step=CallTool(call=call)) if not before.covers(key, path, row.opened_at):
                item |= {"name": call.name, "arguments": call.arguments}
                yield item | {
                    "digest": settlements.settlement_digest(run, path, row),
                    "command": decision_command(run, key),
                }
            case _:
                yield item


def format_time(at: int) -> str:
    """Format milliseconds since 1970 as a UTC time in ISO 8601."""
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _request(step: Step, sent: Sent) -> JsonObject:
    """Return what a step asks for, as the caller sees it; the newest turn ends with reminder and status line."""
    match step:
        case RequestCompletion():
            return _completion_item(step, sent)
        case CallTool(call=call):
            return {"name": call.name, "arguments": call.arguments}
        case _:
            raise AssertionError("a pause is shown by its status")


def _completion_item(step: RequestCompletion, sent: Sent) -> JsonObject:
    encoded = dialects.encode_native(step, sent)
    tools = _tool_items(encoded.tools)
    item: JsonObject = {
        "system": encoded.system,
        "messages": [message.as_json() for message in encoded.messages],
        "tools": tools,
        "max_tokens": sent.max_tokens or step.max_tokens,
    }
    item |= {"system_id": text_id(encoded.system)} if encoded.system else {}
    item |= {"tools_id": text_id(canonical_json(tools))} if tools else {}
    return item if step.output_schema is None else item | {"schema": step.output_schema}


def _tool_items(tools: Sequence[ToolSpec]) -> list[JsonObject]:
    return [{"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools]


def _new_part(path: str, step: Step, sent: Sent, read: Collection[str]) -> JsonObject | None:
    """Return what a completion adds to the newest one of its conversation that was read and answered: that turn's
    calls, by the ids that they got in place of the caller's, then the messages after the turn, and the tools that were
    added, or none where all of them are gone. None where it has to be shown whole."""
    if not (read and isinstance(step, RequestCompletion) and step.predecessor):
        return None
    within = path.removesuffix(step.name)
    before = step.predecessor.newest_of(read, within)
    if before is None or (step.tools and step.tools[: len(before.tools)] != before.tools[:]):
        return None
    turn, *others = dialects.encode_newest(step, sent, before.messages)
    messages = [_without_text(turn) if turn.role == "assistant" else turn.as_json()]
    messages += [message.as_json() for message in others]
    item: JsonObject = {"after": within + before.name, "messages": [each for each in messages if len(each) > 1]}
    has_same_tools = len(step.tools) == len(before.tools)
    if not has_same_tools:
        item["tools"] = _tool_items(step.tools[len(before.tools) :])
    known = {
        "system": step.conversation[0].role == "system",
        "tools": len(step.tools) and has_same_tools,
        "schema": step.output_schema,
    }
    unchanged = [name for name, has in known.items() if has]
    return item | ({"unchanged": unchanged} if unchanged else {})


def _without_text(turn: Message) -> JsonObject:
    """Return of a turn, which its reader wrote, nothing but the ids of its calls."""
    calls = [{"id": call.id, "name": call.name} for call in turn.tool_calls]
    return {"role": turn.role} | ({"tool_calls": calls} if calls else {})


def decision_command(run: RunRow, key: str) -> str:
    """Return the command that approves what waits under the key (`deny` in its place denies), or that says that a lost
    call was made already (`reattempt`: make it again). It is in canonical form; callers pass it through
    `complete_commands`."""
    if settlements.is_settlement_key(key):
        return run_command(run, "settle", key, "already_done")
    return run_command(run, "approve", key)


def run_command(run: RunRow, verb: str, *words: str) -> str:
    """Return the command that does this with a run, in canonical form."""
    whose = [] if run.principal == LOCAL else ["--principal", run.principal]
    return shlex.join(["kairos-mcp", verb, *whose, run.id, *words])
