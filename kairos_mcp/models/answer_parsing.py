"""Parse answers from outside (callers, scripts, clients) into our values: strict, bounded, nothing coerced."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kairos_mcp.core.decision_rights import Actor, Settlement, Verdict
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import find_unfit_value
from kairos_mcp.core.messages import Completion, Finish, JsonObject, ToolResult, Usage, make_tool_call
from kairos_mcp.core.steps import call_path
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.settlements import SettlementRequest

MAX_FEEDBACK_CHARS = 4_000
_Tokens = Annotated[int, Field(ge=0, le=2**53 - 1)]  # the largest count that every JSON reader holds exactly


class UsageInvalid(BadArguments):
    """The usage of an answer is no count of tokens, so the whole answer is refused."""

    code = "usage_invalid"


class _AnswerModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


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
    return Completion(answer.content or "", calls, answer.finish, _to_usage(answer.usage))


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
    """Parse a decision `{decision: approve | deny, digest, feedback?}` about the approval under this key.

    Raises BadArguments.
    """
    answer = _parse_answer(_DecisionModel, value, "approval")
    return Decision(key, answer.decision, answer.digest, who, answer.feedback or None)


def _to_usage(usage: _UsageModel | None) -> Usage | None:
    if usage is None:
        return None
    return Usage(usage.input_tokens, usage.output_tokens, usage.cached_tokens or 0)


def _parse_answer(shape: type[_AnyAnswerModel], value: object, kind: str) -> _AnyAnswerModel:
    if not isinstance(value, dict):
        raise BadArguments(f"The {kind} answer must be an object.", _valid_answer(shape))
    if (reason := find_unfit_value(value)) is not None:
        raise BadArguments(f"The {kind} answer is refused: {reason}.", "Send plain JSON of less than 4 MiB.")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise _invalid_answer(shape, kind, error) from None


def _invalid_answer(shape: type[_AnswerModel], kind: str, error: ValidationError) -> BadArguments:
    """Say what is wrong and what is valid, without repeating what was sent."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    texts = "; ".join(f"{_format_location(problem['loc'])}: {problem['msg']}" for problem in problems[:5])
    leaf = UsageInvalid if all(problem["loc"][:1] == ("usage",) for problem in problems) else BadArguments
    return leaf(f"The {kind} answer does not fit: {texts}.", _valid_answer(shape))


def _valid_answer(shape: type[_AnswerModel]) -> str:
    return f"A valid answer: {_EXAMPLES[shape]}. Its keys: {', '.join(shape.model_fields)}."


def _format_location(location: tuple[int | str, ...]) -> str:
    # A key from outside may be long, so each is cut.
    return ".".join(str(part)[:60] for part in location) or "the answer"
