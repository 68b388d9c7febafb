"""The tool by which an agent of a team ends its task where the plan is wrong. It does nothing but take the report."""

from __future__ import annotations

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.tool import Tool, ToolContext

PLAN_PROBLEM_SPEC = BUILTIN["report_plan_problem"].spec(
    "End your task because the plan does not fit: what it takes for granted is not so, or another task has to come"
    " first. The planner may then plan anew. Not for a task that is merely hard, or done in part.",
    {
        "type": "object",
        "properties": {
            "problem": {
                "type": "string",
                "minLength": 20,
                "maxLength": 2_000,
                "description": "What does not fit, and what you found instead",
            }
        },
        "required": ["problem"],
        "additionalProperties": False,
    },
    category="agent_control",
)


def plan_problem_tool() -> Tool:
    """Make report_plan_problem; the flow of the team reads the report from the call."""

    def report_plan_problem(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return ToolResult("The planner is told. Your task has ended.")

    return Tool(PLAN_PROBLEM_SPEC, report_plan_problem, internal=True, at_once=report_plan_problem)
