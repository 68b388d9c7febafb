"""Fold the events of an Anthropic message: its blocks, and reports of usage that add to each other."""

from __future__ import annotations

from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.calls import is_call_block
from kairos_mcp.models.replies.errors import error_of, read_error
from kairos_mcp.models.replies.exchange import BadProviderReply, ErrorInReply, Exchange
from kairos_mcp.models.replies.fold import REPEATS, cut_off, end_in_error, index_of
from kairos_mcp.models.replies.layout import finish_of, snake_keys
from kairos_mcp.models.replies.pieces import ArgumentPieces, GrowingText


class _Block:
    """A block as its pieces come. `kind`: of these, what grows."""

    def __init__(self, fields: JsonObject, exchange: Exchange) -> None:
        self.fields = fields
        self.kind = "tool_use" if is_call_block(fields) else str(fields.get("type"))
        self.text = GrowingText(exchange.hear) if self.kind == "text" else GrowingText()
        self.arguments = ArgumentPieces()
        if self.kind in ("text", "thinking") and isinstance(begun := fields.get(self.kind), str) and begun:
            self.text.add(begun)

    def as_json(self) -> JsonObject:
        if self.kind == "tool_use":
            return {**self.fields, "input": self.arguments.text()} if self.arguments else self.fields
        return {**self.fields, self.kind: text} if (text := str(self.text)) else self.fields


class MessageFold:
    """Folds the events of an Anthropic message."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reply: JsonObject = {}
        self._usage: JsonObject = {}
        self._bad_usage: object = None
        self._is_covered = True  # by the last report
        self._blocks: list[_Block] = []
        self._by_index: dict[Any, _Block] = {}
        self._ahead: list[JsonObject] = []  # blocks that came with the start, and may come once more
        self._said: JsonObject | None = None  # an event of no kind that says something
        self.has_ended = False

    def take(self, event: JsonObject) -> None:
        """Take an event. Raises ErrorInReply."""
        if (error := error_of(event)) is not None:
            self._take_usage(event.get("usage"))
            raise self._end_in(error)
        for holder in (event, event.get("delta"), event.get("message")):  # servers differ in where its end stands
            if isinstance(holder, dict):
                stop_reason = finish_of(snake_keys(holder), {})
                self._reply |= {"stop_reason": stop_reason} if stop_reason else {}
                self._take_usage(holder.get("usage"))
        match event:
            case {"type": "message_start", "message": dict(message)}:
                message = snake_keys(message)
                self._reply |= {key: message[key] for key in ("id", "model", "tool_calls") if message.get(key)}
                self._ahead = _blocks_of(message.get("content"))
            case {"type": "message_delta"}:
                pass
            case {"type": "message_stop"}:
                self.has_ended = True
            case {"type": "message", "content": content}:  # a whole reply as the one event
                self._reply, self.has_ended = {**event, "usage": None}, True
                for block in _blocks_of(content):
                    self._begin(None, block)
            case {"type": str(kind)} if kind.startswith("content_block"):
                self._take_piece(event, index_of(event))
            case _ if read_error(event).words:
                self._said = event
            case _:
                pass

    def _take_piece(self, event: JsonObject, index: int | None) -> None:
        match event:
            case {"type": "content_block_start", "content_block": dict(block)}:
                self._begin_ahead(index)
                self._begin(index, {**block})
            case {"type": "content_block_delta", "delta": dict(delta)}:
                self._begin_ahead(None if index is None else index + 1)
                self._add(index, delta)
            case {"type": "content_block_stop"} if index in self._by_index:
                self._by_index.pop(index).text.end()
            case _:
                pass

    def reply(self, *, is_done: bool) -> JsonObject:
        """Return the whole reply. Raises BadProviderReply where the stream ended without saying so."""
        if not (is_done or self.has_ended or self._reply.get("stop_reason")):
            raise BadProviderReply(cut_off(self._said), retryable=True)
        self._begin_ahead(None)
        if self._said is not None and not (self._blocks or self._reply):
            raise self._end_in(self._said)
        for block in self._blocks:
            block.text.end()
        if any(block.text.repeats for block in self._blocks):
            self._exchange.note_repair(REPEATS)
        content = [block.as_json() for block in self._blocks]
        return {**self._reply, "content": content, "usages": [self._usage or None, self._bad_usage]}

    def _end_in(self, error: object) -> ErrorInReply:
        return end_in_error(
            error,
            self._exchange,
            (self._usage or None, self._bad_usage),
            has_begun=bool(self._blocks),
            is_covered=self._is_covered,
            cache_is_apart=True,
        )

    def _begin_ahead(self, end: int | None) -> None:
        """Begin the blocks that came with the start of the message, up to this index; those behind it come again."""
        for number, block in enumerate(self._ahead[:end]):
            self._begin(number, block)
        self._ahead = []

    def _begin(self, index: object, block: JsonObject) -> None:
        self._is_covered = False
        for each in self._blocks[-1:]:
            each.text.end()
        self._blocks.append(_Block(block, self._exchange))
        self._by_index[index] = self._blocks[-1]

    def _add(self, index: object, delta: JsonObject) -> None:
        self._is_covered = False
        match delta:
            case {"text": str(text)}:
                self._block(index, "text").text.add(text)
            case {"thinking": str(text)}:
                self._block(index, "thinking").text.add(text)
            case {"signature": str(signature)}:
                self._block(index, "thinking").fields["signature"] = signature
            case {"partial_json": str(piece)}:
                self._block(index, "tool_use").arguments.add(piece)
            case {"partial_json": dict(arguments)} if arguments:  # all of them at once
                self._block(index, "tool_use").fields["input"] = arguments
            case _:
                pass

    def _block(self, index: object, kind: str) -> _Block:
        """Return the block of this kind that is under way at this index, or has begun last; else a new one."""
        block = self._by_index.get(index)
        if block is not None and block.kind == kind:
            return block
        for each in reversed(self._blocks):
            if each.kind == kind:
                return each
        self._begin(index, {"type": kind})
        return self._blocks[-1]

    def _take_usage(self, usage: object) -> None:
        """Merge a report: each is of all so far, and none has to name what has not changed."""
        if not isinstance(usage, dict):
            self._bad_usage = usage or self._bad_usage
            return
        self._is_covered = True
        for name, value in usage.items():
            before = self._usage.get(name)
            is_less = isinstance(before, int) and type(value) is int and 0 <= value < before
            if value is not None and not is_less:
                self._usage[name] = value


def _blocks_of(content: object) -> list[JsonObject]:
    """Return the blocks of a content: a list, one block, or a text."""
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    return [{**block} if isinstance(block, dict) else {"type": "text", "text": block} for block in blocks]
