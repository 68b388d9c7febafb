"""What a provider wants back of its earlier turns (thinking, signatures, ids), found by the turn it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field

from kairos_mcp.core.messages import Completion, Message, Private

_Turn = tuple[str, tuple[str, ...]]


@dataclass(slots=True)
class PrivateParts:
    """The private parts of one conversation's turns. A turn is known by its text and the ids of its calls, which are
    ordinals and so unique; two turns of the same text without calls are alike to their provider."""

    _by_turn: dict[_Turn, Private] = field(default_factory=dict)

    def keep(self, name: str, turn: Completion) -> None:
        """Take note of the answer to the step `name`."""
        if turn.private is not None:
            ids = tuple(f"{name}/call-{n}" for n in range(1, len(turn.tool_calls) + 1))
            self._by_turn[turn.content, ids] = turn.private

    def of(self, message: Message) -> Private | None:
        """What belongs to an assistant turn of a conversation."""
        if message.role != "assistant" or not self._by_turn:
            return None
        return self._by_turn.get((message.content, tuple(call.id for call in message.tool_calls)))
