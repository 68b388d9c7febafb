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
    """What a model is given: the step's path in the run, the request of the flow, what was sent beside it, and how to
    find the private parts that a provider wants back of an earlier turn."""

    path: str
    step: RequestCompletion
    sent: Sent
    private: Callable[[Message], Private | None] = _nothing_private


Model = Callable[[ModelInput], Awaitable[Completion | Failure]]


@dataclass(frozen=True, slots=True)
class ModelManner:
    """How a run wants its completions, from its stored spec: temperature, dialect, prompts of the text dialect."""

    temperature: float | None = None
    dialect: DialectName = "native"
    prompts: TextPrompts = field(default_factory=lambda: TextPrompts("", "", ""))


_Turn = tuple[str, tuple[str, ...]]


@dataclass(slots=True)
class PrivateParts:
    """What a provider wants back of its earlier turns (thinking, signatures, ids), kept by turn.

    A turn is identified by its text and the ids of its calls, which are ordinals and so unique; two turns of the same
    text without calls are the same to their provider.
    """

    _by_turn: dict[_Turn, Private] = field(default_factory=dict)

    def keep(self, name: str, turn: Completion) -> None:
        """Store the private part of the answer to the step `name`."""
        if turn.private is not None:
            ids = tuple(f"{name}/call-{n}" for n in range(1, len(turn.tool_calls) + 1))
            self._by_turn[turn.content, ids] = turn.private

    def of(self, message: Message) -> Private | None:
        """Return the private part of an assistant turn of a conversation, if it has one."""
        if message.role != "assistant" or not self._by_turn:
            return None
        return self._by_turn.get((message.content, tuple(call.id for call in message.tool_calls)))


def redact_model(model: Model, redactor: Redactor) -> Model:
    async def complete(model_input: ModelInput) -> Completion | Failure:
        answer = await model(model_input)
        return (
            redact_values.redact_completion(answer, redactor)
            if isinstance(answer, Completion)
            else redact_values.redact_failure(answer, redactor)
        )

    return complete
