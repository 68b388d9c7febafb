"""Fold the events of an Anthropic message: its blocks, and reports of usage that add to each other."""

from __future__ import annotations

from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.errors import error_of
from kairos_mcp.models.replies.exchange import BadProviderReply, Exchange
from kairos_mcp.models.replies.fold import CUT_OFF, end_in_error, index_of

_GROWING = {"text": "text", "thinking": "thinking", "tool_use": "input"}  # what of a block comes in pieces


class MessageFold:
    """Folds the events of an Anthropic message."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reply: JsonObject = {}
        self._usage: JsonObject = {}
        self._bad_usage: object = None
        self._is_covered = True  # by the last report
        self._blocks: list[JsonObject] = []
        self._by_index: dict[Any, JsonObject] = {}
        self._has_ended = False

    def take(self, event: JsonObject) -> None:
        """Take an event. Raises ErrorInReply."""
        if (error := error_of(event)) is not None:
            self._take_usage(event.get("usage"))
            raise end_in_error(
                error,
                self._exchange,
                (self._usage or None, self._bad_usage),
                has_begun=bool(self._blocks),
                is_covered=self._is_covered,
                cache_is_apart=True,
            )
        match event:
            case {"type": "message_start", "message": dict(message)}:
                self._reply = {key: message[key] for key in ("id", "model") if message.get(key)}
                self._take_usage(message.get("usage"))
            case {"type": "content_block_start", "content_block": dict(block)}:
                self._begin(index_of(event), {**block})
            case {"type": "content_block_delta", "delta": dict(delta)}:
                self._add(index_of(event), delta)
            case {"type": "content_block_stop"}:
                self._by_index.pop(index_of(event), None)
            case {"type": "message_delta", **rest}:
                ended = rest.get("delta")
                stop_reason = ended.get("stop_reason") if isinstance(ended, dict) else None
                self._reply |= {"stop_reason": stop_reason} if stop_reason else {}
                self._take_usage(rest.get("usage"))
            case {"type": "message_stop", **rest}:
                self._has_ended = True
                self._take_usage(rest.get("usage"))
            case {"type": "message", "content": _}:  # a whole reply as the one event
                self._reply, self._has_ended = {**event, "content": None}, True
                self._take_usage(event.get("usage"))
                blocks = event["content"]
                for block in blocks if isinstance(blocks, list) else [blocks]:
                    self._begin(None, {**block} if isinstance(block, dict) else {"type": "text", "text": block})
            case _:
                pass

    def reply(self, *, is_done: bool) -> JsonObject:
        """Return the whole reply. Raises BadProviderReply where the stream ended without saying so."""
        if not (is_done or self._has_ended):
            raise BadProviderReply(CUT_OFF, retryable=True)
        for block in self._blocks:
            pieces, name = "".join(block.pop("pieces", ())), _GROWING.get(str(block.get("type")), "text")
            if name == "input":
                block["input"] = pieces or block.get("input")
            elif pieces:
                block[name] = f"{block.get(name) or ''}{pieces}"
        return {**self._reply, "content": self._blocks, "usages": [self._usage or None, self._bad_usage]}

    def _begin(self, index: object, block: JsonObject) -> None:
        self._is_covered = False
        self._blocks.append(block)
        self._by_index[index] = block
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            self._exchange.hear(block["text"])

    def _add(self, index: object, delta: JsonObject) -> None:
        self._is_covered = False
        match delta:
            case {"text": str(text)}:
                self._block(index, "text").setdefault("pieces", []).append(text)
                self._exchange.hear(text)
            case {"thinking": str(text)}:
                self._block(index, "thinking").setdefault("pieces", []).append(text)
            case {"signature": str(signature)}:
                self._block(index, "thinking")["signature"] = signature
            case {"partial_json": str(piece)}:
                self._block(index, "tool_use").setdefault("pieces", []).append(piece)
            case {"partial_json": dict(arguments)} if arguments:  # all of them at once
                self._block(index, "tool_use")["input"] = arguments
            case _:
                pass

    def _block(self, index: object, kind: str) -> JsonObject:
        """Return the block of this kind that is under way at this index, or has begun last; else a new one."""
        block = self._by_index.get(index)
        if block is not None and block.get("type") == kind:
            return block
        for each in reversed(self._blocks):
            if each.get("type") == kind:
                return each
        self._begin(index, begun := {"type": kind})
        return begun

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
