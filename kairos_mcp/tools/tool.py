"""The one way to call a tool, which returns every failure as a result, and how a function is declared to be one.

gate.py decides whether a call may run, by its arguments; touched_paths.py says which of them the gate takes for paths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kairos_mcp.core import redact_values
from kairos_mcp.core.effects import REACHES, Effect, Reach
from kairos_mcp.core.errors import BadArguments, ConfigError, FenceLost, KairosError, NotMarked
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Preview, ProbeResult, Tool, ToolContext, error_result, failure_result
from kairos_mcp.tools.departure import mark_departure, probe_departure

T = TypeVar("T")

UNEXPECTED = "tool_failed"  # a bug or a fault below a tool; every expected failure has a code of its own


def call_tool(tool: Tool, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Check the arguments and run the tool; return every failure as a result. Raises FenceLost and NotMarked alone."""
    return _run_checked(tool, arguments, lambda checked: tool.run(checked, ctx))


def call_tool_at_once(tool: Tool, arguments: JsonObject, ctx: ToolContext) -> ToolResult | None:
    """Call the tool as `call_tool` does, but in the event loop; None where it needs a thread: nothing was done then."""
    at_once = tool.at_once
    return None if at_once is None else _run_checked(tool, arguments, lambda checked: at_once(checked, ctx))


def preview_call(tool: Tool, arguments: JsonObject, ctx: ToolContext) -> Preview | ToolResult:
    """Return what a person is shown of a call before it is made, or the failure that it would end in."""
    if tool.preview is None:
        return _run_checked(tool, arguments, lambda checked: Preview(format_call(tool.spec, checked)))
    preview = tool.preview
    return _run_checked(tool, arguments, lambda checked: preview(checked, ctx))


def probe_call(tool: Tool, arguments: JsonObject, ctx: ToolContext, effect: Effect | None = None) -> ProbeResult:
    """Have the tool finish, revert or report a call that a crash interrupted; a probe that fails is `unclear`.

    `effect`: with which it was begun, if not the tool's own. Raises FenceLost if another server has taken over the run.
    """
    probe = tool.probe
    if probe is None:
        return probe_departure(tool, effect or tool.spec.effect, ctx)
    found = _run_checked(tool, arguments, lambda checked: probe(checked, ctx))
    return ProbeResult("unclear", found) if isinstance(found, ToolResult) else found


def format_call(spec: ToolSpec, arguments: JsonObject) -> str:
    """Write out a call for a person: the tool, then its arguments; a string with line breaks as an indented block."""
    lines = [spec.name if spec.source == "builtin" else f"{spec.name} ({spec.source})"]
    for argument, value in arguments.items():
        name = argument if argument.isidentifier() else json.dumps(argument, ensure_ascii=False)
        if isinstance(value, str) and "\n" in value:
            lines += [f"{name}:", *(f"    {line}" for line in value.split("\n"))]
        else:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _run_checked(tool: Tool, arguments: JsonObject, act: Callable[[JsonObject], T]) -> T | ToolResult:
    try:
        checked = _drop_nulls(arguments, tool.spec.input_schema)
        problems = tool.schema.problems(checked)
        if problems:
            message = f"{tool.spec.name}: {'; '.join(problems)}."
            required = tool.spec.input_schema.get("required", [])
            shown = [
                f"{name} ({kind}{', required' * (name in required)})"
                for name, kind in _argument_types(tool.spec.input_schema).items()
            ]
            valid = f"Valid arguments: {', '.join(shown) or 'none'}."
            return error_result(BadArguments(message, valid))
        return act(checked)
    except KairosError as error:
        return error_result(error)
    except (FenceLost, NotMarked):
        raise  # else the result would be that nothing is known to have changed, while the call is made after all
    except Exception as error:  # a tool's bug must not take the run with it
        # Only the type's name: the text of a foreign exception may hold paths of this machine, or secrets.
        kind = type(error).__name__
        return failure_result(
            UNEXPECTED,
            f"{tool.spec.name} failed unexpectedly ({kind}); nothing is known to have changed.",
            "Try other arguments or another tool.",
            retryable=isinstance(error, OSError),
        )


def _drop_nulls(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Drop arguments that are null, which is the same as absent, unless the schema itself admits null."""
    if None not in arguments.values():
        return arguments
    refusing = {name for name, kind in _argument_types(schema).items() if kind != "any" and "null" not in kind}
    return {name: value for name, value in arguments.items() if value is not None or name not in refusing}


def _argument_types(schema: JsonObject) -> dict[str, str]:
    """Return the type of each argument in words; "any" where the schema states none."""
    kinds: dict[str, str] = {}
    for name, declared in schema.get("properties", {}).items():
        type_name = declared.get("type", "any") if isinstance(declared, dict) else "any"
        kinds[name] = type_name if isinstance(type_name, str) else " or ".join(type_name)
    return kinds


def call_redacted(redactor: Redactor, tool: Tool, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Call the tool as `call_tool` does, and redact its result in the same thread, before anything stores it.

    Raises FenceLost if another server has taken over the run: before a tool that does more than read is called, or
    where the tool itself checks. A call whose paths lead elsewhere than when it was authorized is not made either, and
    ends in an error result.
    """
    # The call may have waited for a thread, or this process may have been suspended. Tools that reach the outside
    # check again at the moment they do (ToolContext.recheck_for).
    if ctx.is_marked and not tool.marks_itself:
        mark_departure(ctx)
    elif tool.spec.effect != "read":
        ctx.memory.check_owner()
    try:
        if ctx.check_paths is not None:
            ctx.check_paths()
    except KairosError as refused:
        return redact_values.redact_result(error_result(refused), redactor)
    return _redact_result(tool, call_tool(tool, arguments, ctx), redactor)


def call_redacted_at_once(redactor: Redactor, tool: Tool, arguments: JsonObject, ctx: ToolContext) -> ToolResult | None:
    """Call the tool as `call_tool_at_once` does, and redact its result; None also where paths have to be checked."""
    result = call_tool_at_once(tool, arguments, ctx) if ctx.check_paths is None else None
    return None if result is None else _redact_result(tool, result, redactor)


def _redact_result(tool: Tool, result: ToolResult, redactor: Redactor) -> ToolResult:
    """Redact a result once: a form that only comes about by how lines are cut and put together is no secret."""
    if tool.masks_content and not result.is_error:
        return redact_values.redact_known_result(result, redactor)
    return redact_values.redact_result(result, redactor)


F = TypeVar("F", bound=Callable[..., Any])
ENTRY_POINT_GROUP = "kairos_mcp.tools"  # of entry points
_STATEMENT_ATTRIBUTE = "__kairos_tool__"


@dataclass(frozen=True, slots=True)
class ToolStatement:
    """What a function declares about itself as a tool; by default it is irreversible."""

    effect: Effect = "irreversible"
    category: str = "other"
    timeout_s: float = 60
    examples: tuple[JsonObject, ...] = ()
    reaches: Reach | None = None
    trusted: bool = False
    private: bool = True


def tool(
    *,
    effect: Effect = "irreversible",
    category: str = "other",
    timeout_s: float = 60,
    examples: Sequence[JsonObject] = (),
    reaches: Reach | None = None,
    trusted: bool = False,
    private: bool = True,
) -> Callable[[F], F]:
    """Declare how a function behaves when it is offered as a tool; the function itself is returned unchanged.

    `effect`: "read" (changes nothing; repeated freely, side by side), "idempotent" (may be repeated after a crash),
    "keyed" (may be repeated with the same `ToolContext.key`) or "irreversible". `reaches`, `trusted`, `private`: see
    `ToolSpec`. Raises ConfigError for another effect or reach.
    """
    if effect not in ("read", "idempotent", "keyed", "irreversible"):
        hint = "Use read, idempotent, keyed or irreversible."
        raise ConfigError(f"A function can't be of the effect {effect!r}.", hint)
    if reaches not in (None, *REACHES):
        raise ConfigError(f"A function can't reach {reaches!r}.", f"Use {', '.join(REACHES)}.")
    statement = ToolStatement(effect, category, timeout_s, tuple(examples), reaches, trusted, private)

    def state(function: F) -> F:
        setattr(function, _STATEMENT_ATTRIBUTE, statement)
        return function

    return state


def statement_of(function: object) -> ToolStatement:
    found = getattr(function, _STATEMENT_ATTRIBUTE, None)
    return found if isinstance(found, ToolStatement) else ToolStatement()
