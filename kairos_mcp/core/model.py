"""A model: a function that completes a conversation, with what it is given, and what its provider wants back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field

from kairos_mcp.core.messages import Completion, Message, Private
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Failure, RequestCompletion, Sent, call_path


def _ignore(_note: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model is given: the path of the step, the flow's request, and what the server sends beside it.

    `find_private` returns the private part of an earlier turn, which its provider wants back. `on_text`: is given the
    text of the answer piece by piece as it comes, by a model that can; the answer itself holds all of it. `headers`:
    of the HTTP request to a provider, which say what trace it belongs to. `note`: takes a sentence about the reply
    for the run's result; the same sentence is noted once.
    """

    path: str
    step: RequestCompletion
    sent: Sent
    find_private: Callable[[Message], Private | None] = lambda _turn: None
    on_text: Callable[[str], None] | None = None
    headers: Mapping[str, str] | None = None
    note: Callable[[str], None] = _ignore


RemoteModel = Callable[[ModelInput], Awaitable[Completion | Failure]]
"""A model that has to be waited for. It writes at most the granted tokens: `sent.max_tokens`, or `step.max_tokens`."""

Model = RemoteModel | Callable[[ModelInput], Awaitable[Completion | Failure] | Completion | Failure]
"""A model that may also answer at once, as a script does."""


_TurnKey = tuple[str, tuple[str, ...]]


@dataclass(slots=True)
class PrivateParts:
    """What a provider wants back of its earlier turns: thinking, signatures, ids.

    A turn is identified by its text and the ids of its calls, which are unique in a run. Two turns of the same text
    without calls are the same to their provider.
    """

    _by_turn: dict[_TurnKey, Private] = field(default_factory=dict)

    def keep(self, name: str, turn: Completion) -> None:
        """Store the private part of the answer to the step `name`."""
        if turn.private is not None:
            ids = tuple(call_path(name, n) for n in range(1, len(turn.tool_calls) + 1))
            self._by_turn[turn.content, ids] = turn.private

    def find(self, message: Message) -> Private | None:
        """Return the private part of an assistant turn of a conversation, if it has one."""
        if message.role != "assistant" or not self._by_turn:
            return None
        return self._by_turn.get((message.content, tuple(call.id for call in message.tool_calls)))
