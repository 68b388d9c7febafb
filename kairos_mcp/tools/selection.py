"""What of many tools a loop is shown: all where they are few, else those that only read and a search for the rest.

A thousand tools then cost a round as much as forty: the rest is behind the search, frozen with the run, and joins the
offer in the order in which it is found.
"""

from __future__ import annotations

from dataclasses import dataclass

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSet, ToolSpec
from kairos_mcp.core.tool_discovery import SEARCH
from kairos_mcp.tools.around import Surroundings
from kairos_mcp.tools.searching import ranked, whole
from kairos_mcp.tools.tool import Tool

TOOLS = 40  # RULINGS.md, "Registry, network"
SPEC_CHARS = 24_000
FOUND = 8  # of one search: each stays in every later request


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of a loop: `shown` from its first round on; `behind` is what its search may find, empty where all is
    shown. Both are frozen with the run."""

    shown: ToolSet
    behind: ToolSet
    notes: tuple[str, ...] = ()


def offered(granted: ToolSet) -> Offer:
    """The offer to a loop that may use these tools. What a caller brought along is shown if there is room for it.

    Raises BadArguments where a tool of another has the search's name.
    """
    if not _too_many(granted):
        return Offer(granted, ToolSet())
    if granted.find(SEARCH) is not None:
        raise BadArguments(f"With over {TOOLS} tools {SEARCH} is the search for them.", "Give that tool another name.")
    shown = ToolSet((*_kept(granted), SEARCH_SPEC))
    behind = ToolSet([spec for spec in granted if shown.find(spec.name) is None])
    note = f"tools: {len(granted)} are too many to show; the run begins with {len(shown)} and finds {len(behind)} more."
    return Offer(shown, behind, (note,))


def search_tool(behind: ToolSet) -> Tool:
    """The search of one loop over what is behind its offer.

    Its result says what was found, a line each; its data, {"offer": [specs]}, is for the flow, which offers them from
    then on. Names that are not behind the offer are not found, whatever the registry has.
    """

    def run(arguments: JsonObject, _around: Surroundings) -> ToolResult:
        names, query = arguments.get("names"), arguments.get("query")
        if names:
            found = [spec for name in dict.fromkeys(names) if (spec := behind.find(name)) is not None]
        elif query:
            found = ranked(behind, query)
        else:
            raise BadArguments(f"{SEARCH} needs a query or names.", 'As query="read issue".')
        if not found:
            return ToolResult(f"Nothing was found among {len(behind)} tools. Try other words.", data={"offer": []})
        taken = found[:FOUND]
        lines = [f"{spec.name} ({spec.effect}): {spec.description.partition(chr(10))[0][:300]}" for spec in taken]
        more = f"\n{len(found) - FOUND} more; narrower words find them." if len(found) > FOUND else ""
        text = "You can call these from now on:\n" + "\n".join(lines) + more
        return ToolResult(text, data={"offer": [whole(spec) for spec in taken]})

    return Tool(SEARCH_SPEC, run, timeout_s=10, examples=({"query": "read issue"},))


def _kept(granted: ToolSet) -> list[ToolSpec]:
    """What stays in sight: all that only reads and all of the caller, or of them what is not the crowd itself."""
    ours = [spec for spec in granted if spec.effect == "read" and spec.source == "builtin"]
    callers = [spec for spec in granted if spec.source == "caller"]
    reads = [spec for spec in granted if spec.effect == "read" and spec.source != "caller"]
    for kept in ([*reads, *callers], [*ours, *callers]):
        if not _too_many(ToolSet(kept)):
            return kept
    return ours


def _too_many(tools: ToolSet) -> bool:
    return len(tools) > TOOLS or tools.size > SPEC_CHARS


SEARCH_SPEC = ToolSpec(
    SEARCH,
    "Finds further tools by words of their names and descriptions; what it finds can be called from then on.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 500},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 64}, "maxItems": FOUND},
        },
        "additionalProperties": False,
    },
    "read",
    "agent_control",
)
