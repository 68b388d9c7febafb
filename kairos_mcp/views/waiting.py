"""What a run waits for, item by item, as whoever may answer is shown it; and the shape of the answer to each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from kairos_mcp.core import placeholders
from kairos_mcp.core.messages import JsonObject, Message
from kairos_mcp.core.steps import CallTool, RequestCompletion, Sent, Step
from kairos_mcp.models import dialects
from kairos_mcp.store import settlements
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.queries import RunRow, WaitingRow
from kairos_mcp.views.shell_commands import command_of

ELICITED_CHARS = 8_000  # a longer preview is not put into a dialog, nor is it ever cut


def waiting_items(
    run: RunRow, waits: WaitingItems, steps: Callable[[], Mapping[str, Step]] | None
) -> Iterator[JsonObject]:
    """One item for each; without `steps`, which gives what was asked, keys and kinds alone."""
    yield from _step_items(waits.steps, steps)
    yield from _approval_items(run, waits, full=steps is not None)
    yield from _unsettled_items(run, waits, steps)


def blank(item: JsonObject) -> JsonObject:
    """The shape of an answer, to be filled in."""
    kind = item["kind"]
    if kind == "approval":
        return {"decision": placeholders.DECISION, "digest": item.get("digest", placeholders.DIGEST)}
    if kind == "settle":
        return {"settlement": placeholders.SETTLEMENT, "digest": item.get("digest", placeholders.DIGEST)}
    return {"content": placeholders.RESULT if kind == "tool_call" else placeholders.ANSWER}


def _step_items(
    waiting: Mapping[str, WaitingRow], steps: Callable[[], Mapping[str, Step]] | None
) -> Iterator[JsonObject]:
    shown = steps() if waiting and steps is not None else {}
    for path, row in waiting.items():
        if row.kind != "pause":
            brief = {"key": path, "kind": "tool_call" if row.kind == "call" else "completion"}
            yield _item(path, row.sent, shown[path]) if path in shown else brief


def _approval_items(run: RunRow, waits: WaitingItems, *, full: bool) -> Iterator[JsonObject]:
    for key, row in waits.approvals.items():
        item: JsonObject = {"key": key, "kind": "approval"}
        if full:
            item |= {"name": row.tool, "effect": row.effect, "preview": row.preview, "digest": row.digest}
            item |= {"expires_at": iso(row.expires_at), "command": command_of(run, key)}
        yield item


def _unsettled_items(
    run: RunRow, waits: WaitingItems, steps: Callable[[], Mapping[str, Step]] | None
) -> Iterator[JsonObject]:
    """Calls that were begun by a server that ended: made once more, or gone on from, as a person says."""
    shown = steps() if waits.lost_calls and steps is not None else {}
    for path, row in waits.lost_calls.items():
        key = path + settlements.KEY_SUFFIX
        item: JsonObject = {"key": key, "kind": "settle"}
        match shown.get(path):
            case CallTool(call=call):
                item |= {"name": call.name, "arguments": call.arguments}
                yield item | {"digest": settlements.settlement_digest(run, path, row), "command": command_of(run, key)}
            case _:
                yield item


def iso(at: int) -> str:
    """Milliseconds since 1970 as a time that people and programs read, in UTC."""
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _item(path: str, sent: Sent, step: Step) -> JsonObject:
    """A waiting item as the caller sees it; the hands' line and the flow's reminder stand in the newest turn."""
    match step:
        case RequestCompletion():
            return {"key": path, "kind": "completion", **_completion_item(step, sent)}
        case CallTool(call=call):
            return {"key": path, "kind": "tool_call", "name": call.name, "arguments": call.arguments}
        case _:
            raise AssertionError("a pause is shown by its status")


def _completion_item(step: RequestCompletion, sent: Sent) -> JsonObject:
    encoded = dialects.encode_native(step, sent)
    item: JsonObject = {
        "system": encoded.system,
        "messages": [_message(message) for message in encoded.messages],
        "tools": [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in encoded.tools
        ],
        "max_tokens": sent.max_tokens or step.max_tokens,
    }
    return item if step.output_schema is None else item | {"schema": step.output_schema}


def _message(message: Message) -> JsonObject:
    shown: JsonObject = {"role": message.role, "content": message.content}
    if message.tool_calls:
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        shown["tool_calls"] = calls
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown
