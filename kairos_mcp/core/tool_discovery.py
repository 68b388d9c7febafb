"""Add the tools that a search has found to those that a model is offered, from the recorded result, so that it replays.

The flow that asks the model and the executor that makes its calls both use this; the search itself is a tool.
"""

from __future__ import annotations

from collections.abc import Iterable

from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSet, ToolSpec

SEARCH = "registry_search"
_FIELDS = ("name", "description", "input_schema", "effect", "category", "source")


def add_discovered_tools(offered: ToolSet, results: Iterable[tuple[str, object]]) -> ToolSet:
    """Add the tools that a search has found to those offered; return the same set where it found nothing new.

    `results`: the names of the tools that were called, each with the answer. Only our own search widens an offer: a
    caller's tool or one from outside may give back whatever it likes.
    """
    search = offered.find(SEARCH)
    if search is None or search.source != "builtin":
        return offered
    found: dict[str, ToolSpec] = {}
    for name, answer in results:
        if name == SEARCH and isinstance(answer, ToolResult):
            found |= {spec.name: spec for spec in discovered_tools(answer) if offered.find(spec.name) is None}
    return ToolSet((*offered, *found.values())) if found else offered


def discovered_tools(result: ToolResult) -> tuple[ToolSpec, ...]:
    """Return the specs in the recorded result of a search; none for any other result."""
    offer = result.data.get("offer") if isinstance(result.data, dict) else None
    return tuple(ToolSpec(**_spec_fields(tool)) for tool in offer or () if isinstance(tool, dict))


def _spec_fields(offered_tool: JsonObject) -> JsonObject:
    return {name: offered_tool[name] for name in _FIELDS}
