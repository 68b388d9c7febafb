"""The options that a run sets for its models, and what every model is wrapped in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

from kairos_mcp.core import redact_values
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.model import ModelInput, RemoteModel
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import DialectName, Failure
from kairos_mcp.models.dialects import TextPrompts


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of a run's completions, from its stored spec. `prompts`: those of the text dialect."""

    temperature: float | None = None
    dialect: DialectName = "native"
    prompts: TextPrompts = field(default_factory=lambda: TextPrompts("", "", ""))


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


def report_failures(model: RemoteModel, listener: Callable[[str, Failure], None]) -> RemoteModel:
    """Wrap a model so that each failure is reported when it happens, with the path of its step: those that are
    followed by another attempt are not stored with their words."""

    async def complete(model_input: ModelInput) -> Completion | Failure:
        answer = await model(model_input)
        if isinstance(answer, Failure):
            listener(model_input.path, answer)
        return answer

    return complete
