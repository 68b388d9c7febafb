"""Briefs, tools and turns for the tests of flows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kairos_mcp.core.messages import Completion, Conversation, Finish, JsonObject, ToolCall, ToolSet, ToolSpec, Usage
from kairos_mcp.flows.planner_input import PlannerInput, Prompts

PROMPTS = Path(__file__).parents[2] / "config" / "prompts"
OBJECT: JsonObject = {"type": "object"}
TOOLS = ToolSet(
    [
        ToolSpec("look", "Looks.", OBJECT, "read"),
        ToolSpec("find", "Finds.", OBJECT, "read"),
        ToolSpec("write", "Writes.", OBJECT, "irreversible"),
    ]
)
ANSWER_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 1}},
    "required": ["answer"],
    "additionalProperties": False,
}


def prompts() -> Prompts:
    return Prompts.load(lambda name: (PROMPTS / f"{name}.md").read_text())


def brief(**changes: Any) -> PlannerInput:
    start = PlannerInput("You are a test.", (), "Reach the goal.", TOOLS, None, 100_000, 4_096, prompts())
    return replace(start, **changes)


def call(tool: str = "look", **arguments: Any) -> ToolCall:
    return ToolCall("from-outside", tool, arguments)


def turn(*calls: ToolCall, content: str = "", tokens: int | None = None) -> Completion:
    """A turn with calls."""
    usage = None if tokens is None else Usage(tokens, 10)
    return Completion(content, calls, "tool_calls", usage)


def says(content: str, finish: Finish | None = "stop") -> Completion:
    return Completion(content, finish=finish)


def conversation_faults(conversation: Conversation) -> list[str]:
    """What is wrong with a conversation: each call is answered once, in order, right after its turn."""
    waiting: list[str] = []
    seen: set[str] = set()
    wrong: list[str] = []
    for message in conversation:
        if message.role == "tool":
            expected = waiting.pop(0) if waiting else None
            wrong += [] if message.tool_call_id == expected else [f"{message.tool_call_id} in place of {expected}"]
            continue
        wrong += [f"{name} has no result" for name in waiting]
        waiting = [each.id for each in message.tool_calls]
        wrong += [f"{name} is used twice" for name in waiting if name in seen]
        seen.update(waiting)
    return wrong + [f"{name} has no result" for name in waiting]
