"""A model: a function that completes a conversation, with its input and the options that a run sets for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kairos_mcp.core import redact_values
from kairos_mcp.core.messages import Completion, Message, Private
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.step_path import call_path
from kairos_mcp.core.steps import DialectName, Failure, RequestCompletion, Sent
from kairos_mcp.models.dialects import TextPrompts


def _no_private_part(_turn: Message) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model is given: the path of the step, the flow's request, and what the server sends beside it.

    `find_private` returns the private part of an earlier turn, which its provider wants back.
    """

    path: str
    step: RequestCompletion
    sent: Sent
    find_private: Callable[[Message], Private | None] = _no_private_part


RemoteModel = Callable[[ModelInput], Awaitable[Completion | Failure]]
"""A model that has to be waited for."""

Model = RemoteModel | Callable[[ModelInput], Awaitable[Completion | Failure] | Completion | Failure]
"""A model that may also answer at once, as a script does."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of a run's completions, from its stored spec. `prompts`: those of the text dialect."""

    temperature: float | None = None
    dialect: DialectName = "native"
    prompts: TextPrompts = field(default_factory=lambda: TextPrompts("", "", ""))


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


def redact_model(model: RemoteModel, redactor: Redactor) -> RemoteModel:
    """Wrap a model so that no secret stands in its answers."""

    async def complete(model_input: ModelInput) -> Completion | Failure:
        answer = await model(model_input)
        if isinstance(answer, Completion):
            return redact_values.redact_completion(answer, redactor)
        return redact_values.redact_failure(answer, redactor)

    return complete
