"""A model: a function that completes a conversation, with its input and the options that a run sets for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace

from kairos_mcp.core import redact_values
from kairos_mcp.core.messages import Completion, Message, Private
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import DialectName, Failure, RequestCompletion, Sent, call_path
from kairos_mcp.models.dialects import TextPrompts


def _no_private_part(_turn: Message) -> None:
    return None


def _ignore(_note: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model is given: the path of the step, the flow's request, and what the server sends beside it.

    `find_private` returns the private part of an earlier turn, which its provider wants back. `on_text`: is given the
    text of the answer piece by piece as it comes, by a model that can; the answer itself holds all of it. `headers`:
    of the HTTP request to a provider, which say what trace it belongs to. `note`: is given what the run's result
    should tell of the reply; the same sentence is told once.
    """

    path: str
    step: RequestCompletion
    sent: Sent
    find_private: Callable[[Message], Private | None] = _no_private_part
    on_text: Callable[[str], None] | None = None
    headers: Mapping[str, str] | None = None
    note: Callable[[str], None] = _ignore


RemoteModel = Callable[[ModelInput], Awaitable[Completion | Failure]]
"""A model that has to be waited for. It writes at most the granted tokens: `sent.max_tokens`, or `step.max_tokens`."""

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
        note = model_input.note
        noted = replace(model_input, note=lambda text: note(redactor.redact_text(text).text))
        answer = await _complete_redacted(model, noted, redactor)
        if isinstance(answer, Completion):
            return redact_values.redact_completion(answer, redactor)
        return redact_values.redact_failure(answer, redactor)

    return complete


async def _complete_redacted(model: RemoteModel, model_input: ModelInput, redactor: Redactor) -> Completion | Failure:
    """Have a model complete, with no secret in what is heard meanwhile: one may come in two pieces."""
    listener = model_input.on_text
    if listener is None:
        return await model(model_input)
    stream = redactor.open_stream()
    try:
        return await model(replace(model_input, on_text=lambda piece: listener(stream.add(piece))))
    finally:
        listener(stream.end())


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A piece of what a model is saying in a step of a run, redacted; `ends`: nothing more of this attempt comes."""

    run_id: str
    path: str
    text: str
    ends: bool = False


def let_hear(model: RemoteModel, run_id: str, listener: Callable[[SpokenText], None]) -> RemoteModel:
    """Wrap a model so that the turns of a conversation are heard while they are made."""

    async def complete(model_input: ModelInput) -> Completion | Failure:
        if model_input.step.purpose not in ("round", "closing") or model_input.step.output_schema is not None:
            return await model(model_input)
        path = model_input.path
        try:
            return await model(replace(model_input, on_text=lambda text: listener(SpokenText(run_id, path, text))))
        finally:
            listener(SpokenText(run_id, path, "", ends=True))

    return complete


def report_failures(model: RemoteModel, listener: Callable[[Failure], None]) -> RemoteModel:
    """Wrap a model so that each failure is reported when it happens: those that are followed by another attempt are
    not stored with their words."""

    async def complete(model_input: ModelInput) -> Completion | Failure:
        answer = await model(model_input)
        if isinstance(answer, Failure):
            listener(answer)
        return answer

    return complete
