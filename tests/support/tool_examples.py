"""For each MCP tool what users say that leads to it, and calls of it: a row that many tests try.

A new tool has a row here. Tools of phases are made of one class, so they have none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TOOL = {
    "name": "ask_person",
    "description": "Asks.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "string", "description": "A."}}},
}
TURN = {
    "content": "look",
    "tool_calls": [{"id": "1", "name": "ask_person", "arguments": {"question": "?", "more": {"deep": ["x"]}}}],
    "finish": "tool_calls",
}
MANDATE = {
    "id": "links",
    "goal": "Every link leads to a file.",
    "observe": ["file_tree", {"tool": "read_file", "args": {"path": "a.txt"}}],
    "decide_hints": {"prefer_scope": "docs"},
    "acceptance": [
        {"check": "file_contains", "path": "a.txt", "text": "x"},
        {"check": "command_succeeds", "argv": ["true", "x"], "cwd": "."},
    ],
    "tools": ["read_file"],
}
PLAN = {
    "analysis": "One part.",
    "strategy": "decomposed",
    "tasks": [{"id": "one", "agent": "code_analyzer", "description": "Read the file.", "depends_on": []}],
}


class ToolExample(NamedTuple):
    said: tuple[str, ...] = ()
    """Phrases by which a search through the listing finds the tool first."""
    calls: tuple[dict[str, Any], ...] = ()
    """Arguments that between them have each text it takes, without a key, which would refuse a second start. Without
    any, each required argument is an `x`. A tool that starts a run has at least one, which starts it on any route."""


EXAMPLES = {
    "planner_run": ToolExample(
        said=(
            "fix this overnight",
            "ask me before you change anything",
            "keep working on this in the background",
            "go on after I close this chat",
            "it must survive a restart",
            "spend at most two dollars on this",
            "refactor the parser, with my approval for each edit",
        ),
        calls=(
            {
                "goal": "look",
                "context": "c",
                "system": "s",
                "messages": [
                    {"role": "user", "content": "u"},
                    {"role": "assistant", "content": "a", "tool_calls": TURN["tool_calls"]},
                    {"role": "tool", "content": "r", "tool_call_id": "1"},
                ],
                "tools": ["read_file"],
                "caller_tools": [TOOL],
                "output_schema": {"type": "object", "properties": {"a": {"type": "string", "description": "A."}}},
                "model": "m",
            },
        ),
    ),
    "planner_plan": ToolExample(
        said=("plan this first", "break this down into tasks"), calls=({"goal": "look", "context": "c"},)
    ),
    "team_run": ToolExample(
        said=(
            "three agents in parallel",
            "split the work among several agents",
            "have a team look at every module at the same time",
        ),
        calls=({"goal": "look", "context": "c", "model": "m"}, {"goal": "look", "plan": PLAN}),
    ),
    "ooda_run": ToolExample(
        said=("keep going until all tests pass", "start the mandate now"), calls=({"mandate": MANDATE},)
    ),
    "mandate_save": ToolExample(
        said=(
            "check every morning that the build is green",
            "every day, look for broken links",
            "make sure that the docs match the code",
            "watch the log and repair whatever fails",
            "do this each week on Monday",
        ),
        calls=({"mandate": MANDATE},),
    ),
    "mandate_list": ToolExample(said=("which standing goals do I have",)),
    "run_status": ToolExample(said=("is it done yet", "how far is that run")),
    "run_continue": ToolExample(said=("yes, I approve it",)),
    "run_control": ToolExample(said=("stop that run", "give it ten more rounds")),
    "run_trace": ToolExample(said=("show me the diff", "why did it fail")),
    "registry_search": ToolExample(said=("which tools are available",)),
    "registry_call": ToolExample(calls=({"name": "read_file", "arguments": {"path": "a.txt"}},)),
    "registry_register": ToolExample(
        said=("connect the MCP server of our tracker",),
        calls=(
            {
                "spec": {
                    "kind": "http_tool",
                    "name": "weather",
                    "description": "Tells the weather.",
                    "url": "https://api.example.com/w",
                    "method": "GET",
                    "parameters": [{"name": "q", "in": "query", "schema": {"type": "string", "description": "Q."}}],
                    "headers": {"X-Key": "env:WEATHER_KEY"},
                    "result": "/a",
                    "effect": "read",
                }
            },
            {
                "spec": {
                    "kind": "server",
                    "name": "files",
                    "command": "python3",
                    "args": ["-c", "pass"],
                    "env": {"A": "env:B"},
                    "effects": {"*": "read"},
                }
            },
        ),
    ),
    "budget_status": ToolExample(said=("how much did that cost today",)),
}
