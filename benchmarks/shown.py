"""What a model that calls this server is shown, in characters, by what of it is new: a fix of one line with its test
and three approvals by command, a question that takes nine rounds, and a team of three.

Of each result the longer of its text and its structured content counts: hosts show a model the one or the other. New
are system texts, tools, messages and previews, each once, and what a run ends with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp.client.client import Client

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.views.cuts import size

PERSON = Caller(via="command")
ERA = "2026-07-28"
SOURCE = "".join(f"def part_{n}(value):\n    return value[{n}:{n + 1}]\n\n\n" for n in range(40))
CHECKS = "".join(f"assert parts.part_{n}('x' * 40) == 'x'\n" for n in range(39))


class Reader:
    """A model that calls tools, and what it was shown and had not read before."""

    def __init__(self, app: App, client: Client) -> None:
        self.app, self.client = app, client
        self.shown = self.new = self.decided = 0
        self._read = set[str]()

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await self.client.call_tool(name, arguments)
        assert not result.is_error, result.structured_content
        body: dict[str, Any] = result.structured_content or {}
        self.shown += max(sum(len(part.text) for part in result.content if part.type == "text"), size(body))
        for run in body.get("runs", [body]):
            self._count(run)
        (run,) = body.get("runs", [body])
        return {**run, "next": body["next"]}

    def _count(self, run: dict[str, Any]) -> None:
        for item in run.get("waiting", ()):
            texts = [item.get("system", ""), item.get("preview", ""), *map(repr, item.get("tools", ()))]
            turns = [message for message in item.get("messages", ()) if message["role"] != "assistant"]
            for text in (*texts, *(message["content"] for message in turns)):
                self.new += 0 if text in self._read else len(text)
                self._read.add(text)
        self.new += len(run.get("summary") or "")

    async def answer(self, run: dict[str, Any], turns: dict[str, Any]) -> dict[str, Any]:
        """Answer what waits, as `next` says, and have a person decide by command whatever needs it."""
        after = run["next"]["arguments"].get("after")
        answers = {"run_id": run["run_id"], "answers": turns, **({"after": after} if after else {})}
        run = await self.call("run_continue", answers)
        while run["status"] in ("input_required", "working") and run["next"]["tool"] == "run_status":
            for item in run.get("waiting", ()):
                await self.app.answers.decide(run["run_id"], item["key"], "approve", None, PERSON)
                self.decided += 1
            run = await self.call("run_status", run["next"]["arguments"])
        return run


def _calls(name: str, *arguments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": each} for each in arguments]}


def _edit(path: str, old: str, new: str) -> dict[str, Any]:
    return _calls("edit_file", {"path": path, "old_string": old, "new_string": new})


async def fix(reader: Reader, workspace: Path) -> None:
    """Mend a line, add a test, run the tests; a person approves each of the three by command."""
    (workspace / "parts.py").write_text(SOURCE.replace("value[7:8]", "value[7:7]"))
    (workspace / "check.py").write_text(f"import parts\n{CHECKS}")
    turns = (
        _calls("file_tree", {}),
        _calls("read_file", {"path": "check.py"}, {"path": "parts.py"}),
        _edit("parts.py", "value[7:7]", "value[7:8]"),
        _edit("check.py", "assert parts.part_38", "assert parts.part_39('x' * 40) == 'x'\nassert parts.part_38"),
        _calls("run_command", {"argv": ["python3", "check.py"]}),
        "part_7 returned nothing; it returns one character now, and all 40 checks pass.",
    )
    tools = ["file_tree", "read_file", "edit_file", "run_command"]
    await _go(reader, {"goal": "python3 check.py fails. Mend it.", "tools": tools}, turns)


async def question(reader: Reader, workspace: Path) -> None:
    """Read nine long files, a round each, and answer."""
    for n in range(9):
        (workspace / f"part-{n}.txt").write_text(f"Part {n}: {'a word and another ' * 4}\n" * 80)
    turns = (*(_calls("read_file", {"path": f"part-{n}.txt"}) for n in range(9)), "Nine parts say the same.")
    await _go(reader, {"goal": "What do the parts say?", "tools": ["read_file"]}, turns)


async def _go(reader: Reader, goal: dict[str, Any], turns: Sequence[Any]) -> None:
    run = await reader.call("planner_run", {"route": "caller", "limits": {"rounds": 12}, **goal})
    for turn in turns:
        (item,) = run["waiting"]
        run = await reader.answer(run, {item["key"]: turn})
    assert run["status"] == "completed", run


async def team(reader: Reader, workspace: Path) -> None:
    """Split a goal into three tasks side by side, each of two files, and bring their answers together."""
    for n in range(6):
        (workspace / f"part-{n}.txt").write_text(f"Part {n}: {'a word and another ' * 4}\n" * 25)
    tasks = [
        {"id": str(n), "agent": "file_manager", "description": f"Read parts {2 * n} and {2 * n + 1}."} for n in range(3)
    ]
    plan = {"analysis": "Read all.", "strategy": "decomposed", "tasks": tasks}
    run = await reader.call("team_run", {"goal": "What do the parts say?", "plan": plan, "route": "caller"})
    rounds = dict.fromkeys((0, 1, 2), 0)
    while run["status"] != "completed":
        turns: dict[str, Any] = {}
        for key in run["next"]["arguments"]["answers"]:
            number = next((n for n in rounds if key.startswith(f"task-{n}/")), None)
            if number is None or rounds[number] == 2:
                turns[key] = "They say the same."
                continue
            turns[key] = _calls("read_file", {"path": f"part-{2 * number + rounds[number]}.txt"})
            rounds[number] += 1
        run = await reader.answer(run, turns)


async def measure(task: Any, **changes: Any) -> Reader:
    """Have a task done, by settings with these changes; return who did it."""
    with TemporaryDirectory() as folder:
        workspace = Path(folder) / "work"
        workspace.mkdir()
        plain = load_settings(Flags(home=str(Path(folder) / "home"), workspaces=(str(workspace),)), {})
        settings = replace(plain, **{"commands": "bare", "durability": "process", **changes})
        async with App.open(settings, via="mcp") as app:

            async def reach() -> App:
                return app

            async with Client(build_server(reach, settings), mode=ERA) as client:
                reader = Reader(app, client)
                await task(reader, workspace)
                return reader


def figures() -> dict[str, float]:
    """Characters shown and new, and the one by the other."""
    found: dict[str, float] = {}
    for task in (fix, question, team):
        reader, name = asyncio.run(measure(task)), task.__name__
        found |= {f"{name}_chars": reader.shown, f"{name}_new": reader.new, f"{name}_times": reader.shown / reader.new}
    return found
