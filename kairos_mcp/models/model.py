"""A model is a function that completes a conversation; what it is given, and what a run wants of its completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kairos_mcp.core import redact_values
from kairos_mcp.core.messages import Completion, Message, Private
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import DialectName, Failure, RequestCompletion, Sent
from kairos_mcp.models.dialects import TextPrompts


def _nothing_private(_turn: Message) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A step on its way to a model: its path in the run, what the flow asked, what the hands added, and how to find
    what a provider wants back of an earlier turn."""

    path: str
    step: RequestCompletion
    sent: Sent
    private: Callable[[Message], Private | None] = _nothing_private


Model = Callable[[ModelInput], Awaitable[Completion | Failure]]


@dataclass(frozen=True, slots=True)
class ModelManner:
    """From the run's frozen spec: temperature, dialect, and the prompts of the text dialect."""

    temperature: float | None = None
    dialect: DialectName = "native"
    prompts: TextPrompts = field(default_factory=lambda: TextPrompts("", "", ""))


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


def masked_model(model: Model, mask: Redactor) -> Model:
    async def complete(asked: ModelInput) -> Completion | Failure:
        answer = await model(asked)
        return (
            redact_values.redact_completion(answer, mask)
            if isinstance(answer, Completion)
            else redact_values.redact_failure(answer, mask)
        )

    return complete
