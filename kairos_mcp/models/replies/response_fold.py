"""Fold the events of OpenAI's responses: only the text is heard before the last one, which holds the whole."""

from __future__ import annotations

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.exchange import BadProviderReply, Exchange
from kairos_mcp.models.replies.fold import cut_off, end_in_error

_LAST = ("completed", "incomplete", "failed", "done")  # what the last event is called


class ResponseFold:
    """Folds the events of a response of OpenAI's newer interface, whose last one holds the whole."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reply: JsonObject | None = None
        self._items: list[object] = []  # for a last event that holds the usage alone
        self._usages: list[object] = []
        self._has_begun = False

    @property
    def has_ended(self) -> bool:
        return self._reply is not None

    def take(self, event: JsonObject) -> None:
        """Take an event. Raises ErrorInReply."""
        response = event.get("response")
        self._usages += [event.get("usage"), response.get("usage") if isinstance(response, dict) else None]
        match event:
            case {"type": "response.output_text.delta", "delta": str(text)}:
                self._has_begun = True
                self._exchange.hear(text)
            case {"type": "response.output_item.done", "item": dict(item)}:
                self._items.append(item)
            case {"type": str(kind), "response": dict(response)} if kind.removeprefix("response.") in _LAST:
                self._reply = response
            case {"type": "error"} | {"error": dict() | str()}:
                is_covered = not self._has_begun  # only the last event has the usage, and there is none
                raise end_in_error(
                    event, self._exchange, self._usages, has_begun=self._has_begun, is_covered=is_covered
                )
            case _:
                pass

    def reply(self, *, is_done: bool) -> JsonObject:
        """Return the whole reply. Raises BadProviderReply where the stream ended without it."""
        if self._reply is None:
            raise BadProviderReply(cut_off(None), retryable=True)
        return self._reply if self._reply.get("output") else {**self._reply, "output": self._items}
