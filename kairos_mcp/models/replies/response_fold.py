"""Fold the events of OpenAI's responses: only the text is heard before the last one, which holds the whole."""

from __future__ import annotations

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.exchange import BadProviderReply, Exchange
from kairos_mcp.models.replies.fold import CUT_OFF, end_in_error


class ResponseFold:
    """Folds the events of a response of OpenAI's newer interface, whose last one holds the whole."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reply: JsonObject | None = None
        self._usages: list[object] = []
        self._has_begun = False

    def take(self, event: JsonObject) -> None:
        """Take an event. Raises ErrorInReply."""
        response = event.get("response")
        self._usages += [event.get("usage"), response.get("usage") if isinstance(response, dict) else None]
        match event:
            case {"type": "response.output_text.delta", "delta": str(text)}:
                self._has_begun = True
                self._exchange.hear(text)
            case {"type": "response.completed" | "response.incomplete" | "response.failed", "response": dict(response)}:
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
            raise BadProviderReply(CUT_OFF, retryable=True)
        return self._reply
