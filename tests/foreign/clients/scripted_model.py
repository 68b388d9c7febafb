"""The model of every Python client here: lists the folder, reads the note, answers with the word in it.

Where the job has a `team`, it says that team's lines instead: support/team_on_source.py has them.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

GOAL = "Which word does the note hold?"
Json = dict[str, Any]


def next_answer(seen: Any, turns: int) -> Json:
    """Give the next answer of a model that was shown `seen` and has answered `turns` times; in a caller's form."""
    shown = json.dumps(seen, default=str)
    if team := job().get("team"):
        step = next(step for marker, step in team["markers"] if marker in shown)
        line: Json = team["lines"][f"{step}/try-1/round-{turns + 1}" if step.startswith("task") else step]
        return line
    if "read_file" not in shown:
        return {"content": "no tools were shown", "finish": "stop"}
    if turns == 0:
        return _tool_call("list_files", {})
    if turns == 1:
        return _tool_call("read_file", {"path": "note.txt"})
    found = re.search(r"word-[0-9a-f]{12}", shown)
    return {"content": found[0] if found else "no word was seen", "finish": "stop"}


def write_in_dialect(answer: Json) -> str:
    """Write an answer in the text dialect."""
    if "tool_calls" not in answer:
        return json.dumps({"final": answer["content"]})
    wanted = [{"name": call["name"], "arguments": call["arguments"]} for call in answer["tool_calls"]]
    return json.dumps({"tool_calls": wanted})


def job() -> Json:
    """Read what the test asks of this client: `transport`, `command` or `url`, `era`, `way`."""
    given: Json = json.loads(sys.argv[1])
    return given


def report(result: Json, **more: Any) -> None:
    """Print a client's last line: how the run ended as the client saw it."""
    print(json.dumps({"result": result, **more}))


def _tool_call(name: str, arguments: Json) -> Json:
    return {"tool_calls": [{"id": "c1", "name": name, "arguments": arguments}]}
