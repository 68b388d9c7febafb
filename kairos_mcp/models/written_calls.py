"""Take a tool call that a model wrote as its text, as small models and wrong templates do, for the call that it is.

This is the one place where a text decides what is done, so it is narrow: the whole reply, less thinking and one fence,
has to be exactly one object or tag in a known form, or such tags one behind another, and all that it names are tools
that were offered. A reply that the run's own schema
admits is its answer, whatever it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kairos_mcp.core.errors import SchemaRejected
from kairos_mcp.core.input_checks import Undecodable, parse_strict_json
from kairos_mcp.core.json_bounds import MAX_VALUES, has_more_values
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import Completion, ToolCall, ToolSpec
from kairos_mcp.core.steps import RequestCompletion, call_path

NAMESPACE = "functions."  # that templates put before the names of tools
MAX_WRITTEN_CHARS = 100_000  # of a reply that is looked at

_THINKING = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_FENCE = re.compile(r"\A```[\w+-]{0,20}[ \t]*\n(.*)\n[ \t]*```\Z", re.DOTALL)
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|call|>", "</s>")  # of a turn
_TAGS = (
    *((f"<{name}>", f"</{name}>") for name in ("tool_call", "function_call", "tool", "tools", "toolcall", "TOOLCALL")),
    *((f"<{name}>", f"</{name}>") for name in ("tool_calls", "function_calls", "minimax:tool_call", "seed:tool_call")),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),  # Kimi
    ("<|tool_call_begin|>", "<|tool_call_end|>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("<|tool_call|>", "<|tool_call_end|>"),
    ("<|tool_call|>", "<|tool_call|>"),
    ("<|python_tag|>", ""),
    ("[TOOL_CALLS]", ""),
    ("<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"),  # DeepSeek
    ("<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁call▁end\uff5c>"),
    ("<|START_ACTION|>", "<|END_ACTION|>"),  # Cohere
)
"""What stands around a call where a template is wrong or a server has no parser for it; either end may be missing."""
_DSML = "\uff5cDSML\uff5c"  # in each tag of a newer DeepSeek
_MAX_TAGS = 2  # in each other
_NAMED_TAG = re.compile(r"<(?:function=([\w.-]+)|invoke name=\"([\w.-]+)\")>")
_BEFORE_NAMED_TAG = re.compile(r"(?=<(?:function=|invoke name=))")
_PARAMETER = re.compile(
    r"\s*<(?:parameter=([\w.-]+)|parameter name=\"([\w.-]+)\"(?: string=\"\w{4,5}\")?)>\n?(.*?)\n?</parameter>\s*",
    re.DOTALL,
)
_PAIR = re.compile(r"\s*<arg_key>([\w.-]+)</arg_key>()\s*<arg_value>\n?(.*?)\n?</arg_value>\s*", re.DOTALL)  # GLM
_ADDRESSED = re.compile(  # gpt-oss
    r"(?:<\|start\|>assistant)?(?:<\|channel\|>commentary)? ?to=([\w.-]+)(?:<\|channel\|>commentary)?"
    r"(?: ?<\|constrain\|>\w+| json)?<\|message\|>"
)
_NAME_AHEAD = re.compile(
    r"(?:function<\uff5ctool▁sep\uff5c>)?([\w.-]+)(?::\d+)?"
    r"(?:<\uff5ctool▁sep\uff5c>|<\|tool_call_argument_begin\|>|(?:\[CALL_ID\]\w+)?\[ARGS\])?"
)
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_NAMES = ("name", "tool", "tool_name", "function")
_OTHERS = frozenset({"type", "id", "call_id", "tool_call_id"})  # what may stand beside a name and arguments


class WrittenCall(NamedTuple):
    """A call that stands in a text. `arguments`: an object, or what else was written there. `has_texts`: they come
    from a tag, which can hold nothing but texts."""

    name: str
    arguments: object
    has_texts: bool = False


def take_written_call(reply: Completion, step: RequestCompletion, path: str, note: Callable[[str], None]) -> Completion:
    """Return the reply with the calls that its text is; unreadable, so that the model is asked back, where the
    arguments don't fit the tool's schema; unchanged where it is no such call."""
    if reply.tool_calls or reply.unreadable or reply.finish not in (None, "stop", "tool_calls") or len(step.tools) == 0:
        return reply
    written = find_written_calls(reply.content)
    found = ((call, step.tools.find(call.name.removeprefix(NAMESPACE))) for call in written)
    offered = [(call, spec) for call, spec in found if spec is not None]
    if not written or len(offered) < len(written) or _is_answer(reply.content, step):
        return reply
    calls = list[ToolCall]()
    for number, (call, spec) in enumerate(offered, 1):
        arguments = _type_texts(call.arguments, spec.input_schema) if call.has_texts else call.arguments
        problem = _find_problem(arguments, spec)
        if problem is not None or not isinstance(arguments, dict):
            reason = f"it writes a call of {spec.name} as its text, whose arguments don't fit ({problem})"
            return Completion(
                reply.content, (), reply.finish, reply.usage, reply.context_tokens, reason, model=reply.model
            )
        calls.append(ToolCall(call_path(path, number), spec.name, arguments))
    note("The model wrote a tool call as its text, and it was taken as the call.")
    # What the provider would want back is of the text; the conversation goes on with calls.
    return Completion("", tuple(calls), "tool_calls", reply.usage, reply.context_tokens, model=reply.model)


def find_written_calls(text: str) -> list[WrittenCall]:
    """Return the calls that a whole text is; none where it is anything else."""
    if len(text) > MAX_WRITTEN_CHARS:
        return []
    bare = _THINKING.sub("", text, count=1).strip()
    if (fenced := _FENCE.match(bare)) is not None:
        bare = fenced[1].strip()
    bare = bare.replace(_DSML, "") if bare.startswith(f"<{_DSML}") else bare
    for end in _ENDS:
        bare = bare.removesuffix(end).rstrip()
    return _read_calls(bare)


def _read_calls(text: str, tags: int = 0) -> list[WrittenCall]:
    """Read a text that is one call, or several that `tags` around it, at most _MAX_TAGS, hold together."""
    if (call := _read_one(text, is_tagged=tags > 0)) is not None:
        return [call]
    if _NAMED_TAG.match(text) and len(pieces := _BEFORE_NAMED_TAG.split(text)[1:]) > 1:
        return _read_each(pieces, _MAX_TAGS)
    for begin, end in _TAGS if tags < _MAX_TAGS else ():
        if text.startswith(begin) or (end and text.endswith(end)):
            inner = text.removeprefix(begin).removesuffix(end).strip()
            pieces = [piece.strip().removesuffix(end) for piece in inner.split(begin)]
            return _read_calls(inner, tags + 1) or _read_each([piece for piece in pieces if piece], tags + 1)
    match _parse(text):
        case {"tool_calls": list(values), **rest} if not rest:
            return _read_list(values)
        case list(values) if tags:
            return _read_list(values)
        case _:
            return []


def _read_each(pieces: list[str], tags: int) -> list[WrittenCall]:
    """Read pieces that each hold calls; return none if a piece holds none."""
    found = [_read_calls(piece.strip(), tags) for piece in pieces] if len(pieces) > 1 else []
    return [call for calls in found for call in calls] if all(found) else []


def _read_list(values: list[Any]) -> list[WrittenCall]:
    calls = [_read_call(value, is_tagged=True) for value in values]
    return [call for call in calls if call is not None] if None not in calls else []


def _read_one(text: str, *, is_tagged: bool) -> WrittenCall | None:
    if (begun := _NAMED_TAG.match(text)) is not None:
        return _read_named_tag(begun[1] or begun[2], text[begun.end() :])
    if (begun := _ADDRESSED.match(text) or (_NAME_AHEAD.match(text) if is_tagged else None)) is not None:
        rest = text[begun.end() :].strip()
        return _read_behind_name(begun[1], rest) if rest or not is_tagged else WrittenCall(begun[1], {})
    return _read_call(_parse(text), is_tagged=is_tagged)


def _parse(text: str) -> object:
    """Return the JSON object or list that a text is; None for any other text."""
    if text[:1] + text[-1:] not in ("{}", "[]"):
        return None
    try:
        return parse_strict_json(text)
    except Undecodable:
        return None


def _read_call(value: object, *, is_tagged: bool) -> WrittenCall | None:
    match value:
        case {"function": dict(function), **rest} if not rest.keys() - _OTHERS:
            value = function
    if not isinstance(value, dict):
        return None
    names = [name for name in _NAMES if isinstance(value.get(name), str)]
    arguments = [name for name in _ARGUMENTS if name in value]
    if len(names) != 1 or len(arguments) > 1 or value.keys() - {*names, *arguments} - _OTHERS:
        return None
    if not arguments and not is_tagged:
        return None  # a name alone is the call of nothing: it may be any object
    return WrittenCall(value[names[0]], _decode(value[arguments[0]]) if arguments else {})


def _decode(arguments: Any) -> object:
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return parse_strict_json(arguments)
    except Undecodable:
        return arguments


def _read_named_tag(name: str, text: str) -> WrittenCall | None:
    """Read what is behind `<function=NAME>`, or the same with `invoke name=`: parameters, or JSON."""
    body = text
    for end in ("</function>", "</invoke>"):
        body = body.removesuffix(end)
    if body.strip().startswith("{"):
        return _read_behind_name(name, body.strip())
    arguments = _read_texts(body, _PARAMETER)
    if arguments is None or (body == text and not arguments):
        return None
    return WrittenCall(name, arguments, has_texts=True)


def _read_behind_name(name: str, text: str) -> WrittenCall | None:
    """Read the arguments that follow a name: JSON, in a fence perhaps, or pairs of a key and its value."""
    if (fenced := _FENCE.match(text)) is not None:
        text = fenced[1].strip()
    if text.startswith("{"):
        try:
            return WrittenCall(name, parse_strict_json(text))
        except Undecodable:
            return None
    arguments = _read_texts(text, _PAIR)
    return WrittenCall(name, arguments, has_texts=True) if arguments else None


def _read_texts(body: str, form: re.Pattern[str]) -> dict[str, str] | None:
    """Return the arguments of this form which are all of a body; None where more stands there."""
    arguments, at = {}, 0
    while at < len(body) and (found := form.match(body, at)) is not None:
        arguments[found[1] or found[2]] = found[3]
        at = found.end()
    return None if body[at:].strip() else arguments


def _is_answer(text: str, step: RequestCompletion) -> bool:
    """Whether the run's schema admits the reply as its answer."""
    if step.output_schema is None:
        return False
    bare = text.strip()
    fenced = _FENCE.match(bare)
    try:
        return not compile_schema(step.output_schema).problems(parse_strict_json(fenced[1] if fenced else bare))
    except (Undecodable, SchemaRejected):
        return False


def _find_problem(arguments: object, spec: ToolSpec) -> str | None:
    if not isinstance(arguments, dict):
        return "they are no JSON object"
    try:
        problems = compile_schema(spec.input_schema).problems(arguments)
    except SchemaRejected:
        return None  # the call itself is checked by whoever executes it
    return "; ".join(problems) or None


def _type_texts(arguments: object, schema: Mapping[str, Any]) -> object:
    """Turn the texts of a tag into what the schema says that they are; leave them where they hold too many values."""
    properties = schema.get("properties")
    if not isinstance(arguments, dict) or not isinstance(properties, dict):
        return arguments
    kinds = {name: inner.get("type") for name, inner in properties.items() if isinstance(inner, dict)}
    coded = {name: text for name, text in arguments.items() if kinds.get(name) not in (None, "string")}
    if has_more_values(",".join(coded.values()), MAX_VALUES):
        return arguments
    return arguments | {name: _decode(text) for name, text in coded.items()}
