"""The tool by which a loop asks for more rounds. The run's own limits answer it, in the commit of its step.

What is granted is in store/more_rounds.py, and by what in budget/more_rounds.py; here is only what a model is shown.
"""

from __future__ import annotations

from kairos_mcp.budget.more_rounds import MAX_GRANTED_ROUNDS, MAX_GRANTS
from kairos_mcp.core.errors import ToolNotOffered
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSet, ToolSpec
from kairos_mcp.tools.tool import Tool, ToolContext

JUSTIFICATION_CHARS = 100  # at least
TEXT_CHARS = 4_000

MORE_ROUNDS_SPEC = ToolSpec(
    "request_more_rounds",
    "Ask for more rounds, before the last one is used.\n"
    "They are granted by what was done since the start or the last grant: new results, and few repeated calls. At most "
    f"{MAX_GRANTS} grants and {MAX_GRANTED_ROUNDS} rounds in all. Returns how many were granted, how many are left and "
    "why.",
    {
        "type": "object",
        "properties": {
            "additional": {"type": "integer", "minimum": 1, "maximum": MAX_GRANTED_ROUNDS, "description": "How many"},
            "justification": {
                "type": "string",
                "minLength": JUSTIFICATION_CHARS,
                "maxLength": TEXT_CHARS,
                "description": "What is still to be done, and why it takes so many",
            },
            "progress_summary": {
                "type": "string",
                "minLength": 1,
                "maxLength": TEXT_CHARS,
                "description": "What was found or done so far",
            },
        },
        "required": ["additional", "justification", "progress_summary"],
        "additionalProperties": False,
    },
    effect="idempotent",
    category="agent_control",
)


def asks_more_rounds(spec: ToolSpec | None) -> bool:
    """Whether a call of this tool is such a request."""
    return spec is not None and (spec.name, spec.source) == (MORE_ROUNDS_SPEC.name, "builtin")


def offer_more_rounds(tools: ToolSet) -> ToolSet:
    """Return the tools with request_more_rounds at their end."""
    return ToolSet((*withhold_more_rounds(tools), MORE_ROUNDS_SPEC))


def withhold_more_rounds(tools: ToolSet) -> ToolSet:
    """Return the tools without request_more_rounds."""
    return ToolSet([spec for spec in tools if not asks_more_rounds(spec)])


def more_rounds_tool() -> Tool:
    """Make request_more_rounds. It is answered before it would be run, so running it is an error."""

    def run(_arguments: JsonObject, _ctx: ToolContext) -> ToolResult:
        raise ToolNotOffered("Only the limits of a loop answer this.", "Go on with the rounds that are left.")

    example = {
        "additional": 4,
        "justification": "Two of five modules are unread, and each takes a search and a read; "
        "after that I compare what all five say.",
        "progress_summary": "Read parser, writer and tests: the names differ in 3 places.",
    }
    return Tool(MORE_ROUNDS_SPEC, run, examples=(example,), exact_only=True)
