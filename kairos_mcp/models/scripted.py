"""A model that reads its answers from a script: for tests and demos, and public.

A script is JSON Lines, one completion per line, in the shape of an answer of `run_continue`. A line may also have
`for`, the path of the one step that it answers; `delay_s`, how many seconds the answer takes; and, in place of a
completion, `error {code, message, retryable?}`. Lines without `for` are taken in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.input_checks import Undecodable, first_problem, parse_strict_json
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.steps import Failure, RequestCompletion
from kairos_mcp.flows.tool_calls import number_calls
from kairos_mcp.models.answer_parsing import parse_completion

_EXTRA_KEYS = ("for", "delay_s", "error")


class _ErrorLine(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    code: Annotated[str, Field(min_length=1, max_length=100)]
    message: Annotated[str, Field(max_length=2_000)]
    retryable: bool = False


class _LineExtras(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(None, alias="for")
    delay_s: Annotated[float, Field(ge=0, le=3_600)] = 0
    error: _ErrorLine | None = None


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """A line's answer to a step, and how many seconds it takes."""

    answer: Completion | Failure
    delay_s: float = 0


@dataclass(frozen=True, slots=True)
class _ScriptLine:
    answer: Completion | Failure
    delay_s: float

    def answer_at(self, path: str) -> ScriptedAnswer:
        match self.answer:
            case Completion() as completion:
                calls = number_calls(completion, path)
                own = completion if calls is completion.tool_calls else completion.with_calls(calls)
                return ScriptedAnswer(own, self.delay_s)
            case failure:
                return ScriptedAnswer(failure, self.delay_s)


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script. `requests` keeps each (path, request) that was put to it."""

    in_order: tuple[_ScriptLine, ...]
    by_path: dict[str, _ScriptLine]
    requests: list[tuple[str, RequestCompletion]] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Script:
        """Parse a script. Raises ConfigError that names the first line which is no answer."""
        in_order: list[_ScriptLine] = []
        by_path: dict[str, _ScriptLine] = {}
        for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            if not raw.strip():
                continue
            step, line = _parse_line(number, raw)
            if step is None:
                in_order.append(line)
            elif step in by_path:
                raise _line_error(number, f"there is another line for {step}")
            else:
                by_path[step] = line
        return cls(tuple(in_order), by_path)

    def next_ordinal(self, earlier_paths: Iterable[str]) -> int:
        """Return the ordinal of the next completion. Steps that have a line of their own don't count."""
        return sum(path not in self.by_path for path in earlier_paths)

    def answer_for(self, path: str, ordinal: int, request: RequestCompletion | None = None) -> ScriptedAnswer:
        """Return the answer for the step at `path`: its own line, else line number `ordinal`, from 0, of the others.

        The same step always gets the same line, so a retry does. After the last line the answer is a Failure.
        """
        if request is not None:
            self.requests.append((path, request))
        if (own := self.by_path.get(path)) is not None:
            return own.answer_at(path)
        if 0 <= ordinal < len(self.in_order):
            return self.in_order[ordinal].answer_at(path)
        message = f"The script has ended: {path} is completion {ordinal + 1} of {len(self.in_order)}."
        return ScriptedAnswer(Failure("provider_error", message))


def _parse_line(number: int, raw: str) -> tuple[str | None, _ScriptLine]:
    try:
        value = parse_strict_json(raw)
    except Undecodable as error:
        raise _line_error(number, error.reason) from None
    if not isinstance(value, dict):
        raise _line_error(number, "it is no JSON object")
    extras = _parse_extras(number, {key: value[key] for key in _EXTRA_KEYS if value.get(key) is not None})
    completion = {key: part for key, part in value.items() if key not in _EXTRA_KEYS}
    if extras.error is not None:
        if completion:
            raise _line_error(number, "it has an error and a completion")
        failure = Failure(extras.error.code, extras.error.message, extras.error.retryable)
        return extras.step, _ScriptLine(failure, extras.delay_s)
    try:
        answer = parse_completion(completion, "line")
    except BadArguments as refusal:
        raise _line_error(number, str(refusal)) from None
    return extras.step, _ScriptLine(answer, extras.delay_s)


def _parse_extras(number: int, value: dict[str, Any]) -> _LineExtras:
    try:
        return _LineExtras.model_validate(value)
    except ValidationError as error:
        _, place, message = first_problem(error)
        raise _line_error(number, f"{place}: {message}") from None


def _line_error(number: int, reason: str) -> ConfigError:
    return ConfigError(f"Line {number} of the script is no answer: {reason}", "One JSON object a line.")
