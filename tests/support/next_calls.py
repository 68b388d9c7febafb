"""The call that a result names as the next: whether it is one that its tool takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import Placeholder
from kairos_mcp.server import results
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.server.validation import validate_arguments

FILLED = {
    Placeholder.ANSWER: "yes",
    Placeholder.RESULT: "yes",
    Placeholder.DECISION: "deny",
    Placeholder.SETTLEMENT: "already_done",
}
"""What a caller puts in the places that it has to fill."""


def fill(arguments: Any) -> Any:
    """The arguments as a caller would send them."""
    match arguments:
        case dict():
            return {name: fill(value) for name, value in arguments.items()}
        case list():
            return [fill(value) for value in arguments]
        case str():
            return FILLED.get(arguments, arguments)
        case _:
            return arguments


def next_calls(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The calls that the structured content of a result names: its own, and those of the runs in it."""
    for holder in (body, body.get("run") or {}, *(body.get("runs") or ())):
        if isinstance(holder, Mapping) and isinstance(holder.get("next"), Mapping):
            yield holder["next"]


def find_problems(body: Mapping[str, Any]) -> list[str]:
    """What is wrong with the calls that a result names, by the listed schema of their tool and by its own checks."""
    return [f"{call}: {problem}" for call in next_calls(body) for problem in _problems_of(call)]


def _problems_of(call: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(call.get("why"), str) or not call["why"]:
        yield "no reason"
    schemas, classes = _tools()
    if call["tool"] not in schemas:
        yield "no such tool"
        return
    yield from (error.message for error in schemas[call["tool"]].iter_errors(call["arguments"]))
    try:
        validate_arguments(classes[call["tool"]], fill(call["arguments"]))
    except BadArguments as refused:
        yield refused.message


@cache
def _tools() -> tuple[dict[str, Draft202012Validator], dict[str, Any]]:
    schemas = {tool.name: Draft202012Validator(tool.as_tool().input_schema) for tool in TOOLS}
    return schemas, {tool.name: tool.arguments for tool in TOOLS}


def watch_results(found: list[str]) -> Callable[[], None]:
    """Look at each result that a server of this process makes from now on; returns what ends that."""
    make = results._result

    def make_and_look(body: Any, *given: Any, **more: Any) -> Any:
        found.extend(find_problems(body))
        return make(body, *given, **more)

    results._result = make_and_look

    def end() -> None:
        results._result = make

    return end
