"""Answers from outside as our values, strict, bounded, nothing coerced: of callers and clients, and of a script.

Of a completion the forms are accepted in which models write one: its content alone; a content that is an object where
the request has a schema, or a list of Anthropic's blocks; calls in OpenAI's and in Anthropic's form. A form is known by
all its keys; what has none of them is refused.

A script is for tests and demos, and public. It is JSON Lines, one completion per line, in the shape of an answer of
`run_continue`. A line may also have `for`, the path of the one step that it answers; `delay_s`, how many seconds the
answer takes; and, in place of a completion, `error {code, message, retryable?}`. Lines without `for` are taken in
order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kairos_mcp.core.builtin_tools import MAX_SUBMITTED_FILES
from kairos_mcp.core.decision_rights import Actor, Settlement, Verdict
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.input_checks import Undecodable, find_unfit_value, first_problem, parse_strict_json
from kairos_mcp.core.messages import Completion, Finish, JsonObject, ToolResult, Usage, make_tool_call
from kairos_mcp.core.model import Model, ModelInput
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Failure, RequestCompletion, call_path
from kairos_mcp.flows.tool_calls import number_calls
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.settlements import SettlementRequest

MAX_FEEDBACK_CHARS = 4_000
_Tokens = Annotated[int, Field(ge=0, le=2**53 - 1)]  # the largest count that every JSON reader holds exactly


class UsageInvalid(BadArguments):
    """The usage of an answer is not a number of tokens, so the whole answer is refused."""

    code = "usage_invalid"


class _AnswerModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class _CallModel(_AnswerModel):
    id: str | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: JsonObject | str


class _UsageModel(_AnswerModel):
    input_tokens: _Tokens
    output_tokens: _Tokens
    cached_tokens: _Tokens | None = None


class _CompletionModel(_AnswerModel):
    content: str | None = None
    tool_calls: list[_CallModel] | None = None
    usage: _UsageModel | None = None
    finish: Finish | None = None


class _ToolResultModel(_AnswerModel):
    content: str
    is_error: bool | None = None
    data: Any = None


_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of what the person was shown


class _DecisionModel(_AnswerModel):
    decision: Verdict
    digest: _Digest
    feedback: Annotated[str, Field(max_length=MAX_FEEDBACK_CHARS)] | None = None
    files: Annotated[list[str], Field(min_length=1, max_length=MAX_SUBMITTED_FILES)] | None = None


class _SettlementModel(_AnswerModel):
    settlement: Settlement
    digest: _Digest
    note: Annotated[str, Field(max_length=MAX_FEEDBACK_CHARS)] | None = None


_EXAMPLES: dict[type[_AnswerModel], str] = {
    _CompletionModel: '{"content": "text"}, or {"tool_calls": [{"name": "read_file", "arguments": {"path": "a.md"}}]}',
    _ToolResultModel: '{"content": "text"}, or {"content": "why", "is_error": true}',
    _DecisionModel: '{"decision": "deny", "digest": "(that of the item)", "feedback": "why"}',
    _SettlementModel: '{"settlement": "already_done", "digest": "(that of the item)"}',
}
_AnyAnswerModel = TypeVar("_AnyAnswerModel", bound=_AnswerModel)


def parse_completion(value: object, path: str) -> Completion:
    """Parse `{content?, tool_calls?: [{id?, name, arguments}], usage?, finish?}`, the answer of the step at `path`.

    Ids from outside are replaced by ordinals (`PATH/call-1`). Arguments given as a text are not decoded: the call is
    marked unreadable. An empty turn is legal; the flow decides what it means.
    Raises BadArguments, and UsageInvalid where only the usage is wrong.
    """
    answer = _parse_answer(_CompletionModel, value, "completion")
    calls = tuple(
        make_tool_call(call_path(path, n), call.name, call.arguments)
        for n, call in enumerate(answer.tool_calls or (), 1)
    )
    used = answer.usage
    usage = None if used is None else Usage(used.input_tokens, used.output_tokens, used.cached_tokens or 0)
    return Completion(answer.content or "", calls, answer.finish, usage)


def parse_caller_completion(value: object, path: str) -> Completion:
    """Parse the completion that a caller answers with. Raises BadArguments also where it has neither text nor call.

    A model may fall silent; a caller who sends nothing has forgotten something, and no step is spent on that.
    """
    turn = parse_completion(value, path)
    match value:
        case {"content": str()}:
            return turn
        case _ if not turn.tool_calls and turn.finish not in ("length", "content_filter", "refusal"):
            raise BadArguments(
                "The completion answer has neither content nor tool_calls.", _valid_answer(_CompletionModel)
            )
        case _:
            return turn


def parse_tool_result(value: object) -> ToolResult:
    """Parse a tool's result `{content, is_error?, data?}`. Raises BadArguments."""
    answer = _parse_answer(_ToolResultModel, value, "tool_call")
    return ToolResult(answer.content, bool(answer.is_error), answer.data)


def parse_settlement(value: object, path: str) -> SettlementRequest:
    """Parse how a caller resolves a call of unknown outcome: `{settlement: reattempt | already_done, digest, note?}`.

    Raises BadArguments.
    """
    answer = _parse_answer(_SettlementModel, value, "settle")
    return SettlementRequest(path, answer.settlement, answer.note or None, answer.digest)


def parse_approval_decision(value: object, key: str, who: Actor) -> Decision:
    """Parse a decision `{decision: approve | deny, digest, feedback?, files?}` about the approval under this key.

    Raises BadArguments.
    """
    answer = _parse_answer(_DecisionModel, value, "approval")
    files = None if answer.files is None else tuple(dict.fromkeys(answer.files))
    return Decision(key, answer.decision, answer.digest, who, answer.feedback or None, files=files)


def _parse_answer(shape: type[_AnyAnswerModel], value: object, kind: str) -> _AnyAnswerModel:
    """Parse an answer. Raises BadArguments: what is wrong and what is valid, without repeating what was sent."""
    if not isinstance(value, dict):
        raise BadArguments(f"The {kind} answer must be an object.", _valid_answer(shape))
    if (reason := find_unfit_value(value)) is not None:
        raise BadArguments(f"The {kind} answer is refused: {reason}.", "Send plain JSON of less than 4 MiB.")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
    texts = "; ".join(f"{_format_location(problem['loc'])}: {problem['msg']}" for problem in problems[:5])
    leaf = UsageInvalid if all(problem["loc"][:1] == ("usage",) for problem in problems) else BadArguments
    raise leaf(f"The {kind} answer does not fit: {texts}.", _valid_answer(shape))


def _valid_answer(shape: type[_AnswerModel]) -> str:
    return f"A valid answer: {_EXAMPLES[shape]}. Its keys: {', '.join(shape.model_fields)}."


def _format_location(location: tuple[int | str, ...]) -> str:
    # A key from outside may be long, so each is cut.
    return ".".join(str(part)[:60] for part in location) or "the answer"


_COMPLETION_KEYS = frozenset({"content", "tool_calls", "usage", "finish"})


def to_stored_form(answer: object, *, is_json_asked: bool) -> object:
    """Return the answer as `{content?, tool_calls?, usage?, finish?}`, if it has one of the forms that models use.

    `is_json_asked`: whether the request has a schema, so that an object is a text that was not encoded.
    """
    if find_unfit_value(answer) is not None:
        return answer
    match answer:
        case dict() if answer.keys() & _COMPLETION_KEYS:
            completion = answer
        case dict() if not is_json_asked:
            return answer if (call := _plain_call(answer)) is answer else {"tool_calls": [call]}
        case str() | list() | dict():
            completion = {"content": answer}
        case _:
            return answer
    return _with_plain_calls(_with_plain_content(completion, is_json_asked=is_json_asked))


def _with_plain_content(answer: JsonObject, *, is_json_asked: bool) -> JsonObject:
    match answer.get("content"):
        case dict() as content if is_json_asked:
            return {**answer, "content": json.dumps(content, ensure_ascii=False)}
        case list(blocks) if blocks and all(map(_is_block, blocks)):
            calls = [block for block in blocks if block["type"] == "tool_use"]
            if calls and answer.get("tool_calls"):
                return answer  # two lists of calls: neither is known to be the whole one
            text = "".join(block["text"] for block in blocks if block["type"] == "text")
            return {**answer, "content": text, **({"tool_calls": calls} if calls else {})}
        case _:
            return answer


def _is_block(block: Any) -> bool:
    """Whether this is one of Anthropic's blocks: `{type: text, text}` or `{type: tool_use, id?, name, input}`."""
    match block:
        case {"type": "text", "text": str(), **rest}:
            return not rest
        case _:
            return _is_anthropic_call(block)


def _is_anthropic_call(call: Any) -> bool:
    match call:
        case {"type": "tool_use", "name": str(), "input": dict(), **rest}:
            return not rest.keys() - {"id"}
        case _:
            return False


def _with_plain_calls(answer: JsonObject) -> JsonObject:
    match answer.get("tool_calls"):
        case list(calls):
            return {**answer, "tool_calls": [_plain_call(call) for call in calls]}
        case _:
            return answer


def _plain_call(call: Any) -> Any:
    """Return OpenAI's `{type: function, id?, function: {name, arguments}}` and Anthropic's `{type: tool_use, id?, name,
    input}` as `{id?, name, arguments}`; anything else as it is."""
    match call:
        case {
            "type": "function",
            "function": {"name": str(name), "arguments": str() | dict() as given, **more},
            **rest,
        }:
            is_known = not more and not rest.keys() - {"id"}
            return {**rest, "name": name, "arguments": _decode_arguments(given)} if is_known else call
        case {"type": "tool_use", "name": name, "input": arguments, **rest} if _is_anthropic_call(call):
            return {**rest, "name": name, "arguments": arguments}
        case _:
            return call


def _decode_arguments(given: str | JsonObject) -> object:
    """Decode arguments that are a JSON text, as OpenAI's are. Any other text stays, and makes the call unreadable."""
    if isinstance(given, dict):
        return given
    try:
        value = parse_strict_json(given)
    except Undecodable:
        return given
    return value if isinstance(value, dict) else given


_EXTRA_KEYS = ("for", "delay_s", "error")


class _ErrorLine(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)

    code: Annotated[str, Field(min_length=1, max_length=100)]
    message: Annotated[str, Field(max_length=2_000)]
    retryable: bool = False


class _LineExtras(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)

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
                if calls is not completion.tool_calls:
                    completion = completion.with_turn(completion.content, calls, completion.finish)
                return ScriptedAnswer(completion, self.delay_s)
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
    return ConfigError(f"Line {number} of the script is not an answer: {reason}", "One JSON object a line.")


def scripted_model(script: Script) -> Model:
    """Make a model of a script: each completion takes the line that was reserved for its step."""

    async def answer_late(line: ScriptedAnswer) -> Completion | Failure:
        await asyncio.sleep(line.delay_s)
        return line.answer

    def complete(model_input: ModelInput) -> Completion | Failure | Awaitable[Completion | Failure]:
        number = -1 if model_input.sent.line is None else model_input.sent.line
        line = script.answer_for(model_input.path, number, model_input.step)
        return answer_late(line) if line.delay_s else line.answer

    return complete
