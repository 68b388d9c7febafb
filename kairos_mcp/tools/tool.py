"""One tool: what it is, and the one way to call it, which gives every failure as a result.

A tool's effect class, category and schema are in its ToolSpec; whether it may run is for gate.py to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from kairos_mcp.core.errors import BadArguments, KairosError
from kairos_mcp.core.json_schema import Schema, compiled
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.tools.around import Preview, ProbeResult, ToolContext

T = TypeVar("T")

UNEXPECTED = "tool_failed"  # a bug or a fault below a tool; every expected failure has a code of its own


@dataclass(frozen=True)  # not slotted: the compiled schema is cached on the instance
class Tool:
    """A tool and the function behind it. `run` blocks and is called in a worker thread.

    It raises a leaf of KairosError for what the model can act on. `preview` says what an approval shows of a call
    that was not made yet (raising as `run` would); without it the arguments are shown. `probe` looks, after a crash,
    whether a `checked` call was carried out. `internal`: flows of ours call it; it is offered to no model, found by no
    glob and called by no caller. `named_only`: offered only where somebody names it, although it only reads.
    """

    spec: ToolSpec
    run: Callable[[JsonObject, ToolContext], ToolResult]
    timeout_s: float = 60
    examples: tuple[JsonObject, ...] = ()
    preview: Callable[[JsonObject, ToolContext], Preview] | None = None
    probe: Callable[[JsonObject, ToolContext], ProbeResult] | None = None
    internal: bool = False
    named_only: bool = False

    @cached_property
    def schema(self) -> Schema:
        return compiled(self.spec.input_schema)


def call(tool: Tool, arguments: JsonObject, around: ToolContext) -> ToolResult:
    """Check the arguments, run the tool, and give every failure as a result; never raises."""
    return _surely(tool, arguments, lambda given: tool.run(given, around))


def previewed(tool: Tool, arguments: JsonObject, around: ToolContext) -> Preview | ToolResult:
    """What a person is shown of a call before it is made, or the failure that it would be; never raises."""
    if tool.preview is None:
        return _surely(tool, arguments, lambda given: Preview(as_arguments(tool.spec, given)))
    preview = tool.preview
    return _surely(tool, arguments, lambda given: preview(given, around))


def probed(tool: Tool, arguments: JsonObject, around: ToolContext) -> ProbeResult:
    """What a look after a crash finds of a call; never raises: what fails to look can't tell."""
    probe = tool.probe
    if probe is None:
        return ProbeResult("unclear")
    found = _surely(tool, arguments, lambda given: probe(given, around))
    return ProbeResult("unclear", found) if isinstance(found, ToolResult) else found


def as_arguments(spec: ToolSpec, arguments: JsonObject) -> str:
    """A call in full, for a person: the tool, then its arguments, a string with its line breaks as lines."""
    lines = [spec.name if spec.source == "builtin" else f"{spec.name} ({spec.source})"]
    for given, value in arguments.items():
        name = given if given.isidentifier() else json.dumps(given, ensure_ascii=False)
        if isinstance(value, str) and "\n" in value:
            lines += [f"{name}:", *(f"    {line}" for line in value.split("\n"))]
        else:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _surely(tool: Tool, arguments: JsonObject, act: Callable[[JsonObject], T]) -> T | ToolResult:
    try:
        given = _present(arguments, tool.spec.input_schema)
        problems = tool.schema.problems(given)
        if problems:
            wrong = f"{tool.spec.name}: {'; '.join(problems)}."
            return failed(BadArguments(wrong, _valid(tool.spec.input_schema)))
        return act(given)
    except KairosError as error:
        return failed(error)
    except Exception as error:  # a tool's bug must not take the run with it
        # Only the type's name: the text of a foreign exception may hold paths of this machine, or secrets.
        kind = type(error).__name__
        return _refusal(
            UNEXPECTED,
            f"{tool.spec.name} failed unexpectedly ({kind}); nothing is known to have changed.",
            "Try other arguments or another tool.",
            retryable=isinstance(error, OSError),
        )


def failed(error: KairosError) -> ToolResult:
    """An error as the result that a model reads."""
    return _refusal(error.code, error.message, error.hint, retryable=error.retryable)


def _refusal(code: str, message: str, hint: str, *, retryable: bool) -> ToolResult:
    told = {"code": code, "message": message, "hint": hint, "retryable": retryable}
    return ToolResult(f"{message} {hint}".rstrip(), is_error=True, data=told, code=code)


def _present(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Absent and null are the same, except where the schema itself admits null."""
    if None not in arguments.values():
        return arguments
    refusing = {name for name, kind in _kinds(schema).items() if kind != "any" and "null" not in kind}
    return {name: value for name, value in arguments.items() if value is not None or name not in refusing}


def _valid(schema: JsonObject) -> str:
    required = schema.get("required", [])
    shown = [f"{name} ({kind}{', required' * (name in required)})" for name, kind in _kinds(schema).items()]
    return f"Valid arguments: {', '.join(shown) or 'none'}."


def _kinds(schema: JsonObject) -> dict[str, str]:
    """The type of each argument in words; "any" where the schema states none."""
    kinds: dict[str, str] = {}
    for name, declared in schema.get("properties", {}).items():
        stated = declared.get("type", "any") if isinstance(declared, dict) else "any"
        kinds[name] = stated if isinstance(stated, str) else " or ".join(stated)
    return kinds
