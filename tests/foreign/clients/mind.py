"""The model of every Python client here: looks at the folder, reads the note, tells the word that stands in it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

GOAL = "Which word does the note hold?"
Json = dict[str, Any]


def turn(seen: Any, turns: int) -> Json:
    """What is said next, after `turns` of its own, having seen all of `seen`; in the shape of a caller's answer."""
    shown = json.dumps(seen, default=str)
    if "read_file" not in shown:
        return {"content": "no tools were shown", "finish": "stop"}
    if turns == 0:
        return _calls("list_files", {})
    if turns == 1:
        return _calls("read_file", {"path": "note.txt"})
    found = re.search(r"word-[0-9a-f]{12}", shown)
    return {"content": found[0] if found else "no word was seen", "finish": "stop"}


def written(said: Json) -> str:
    """The same in the text dialect."""
    if "tool_calls" not in said:
        return json.dumps({"final": said["content"]})
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in said["tool_calls"]]
    return json.dumps({"tool_calls": calls})


async def by_caller(call: Callable[[str, Json], Awaitable[Json]]) -> Json:
    """A run that the calling model drives; `call` gives a tool's structured content."""
    result = await call("planner_run", {"goal": GOAL})
    while result["status"] == "input_required":
        answers = {item["key"]: answer(item) for item in result["waiting"]}
        result = await call("run_continue", {"run_id": result["run_id"], "answers": answers})
    return result


def answer(item: Json) -> Json:
    """The answer to a waiting completion."""
    return turn(item, sum(message["role"] == "assistant" for message in item["messages"]))


def job() -> Json:
    """What the test asks of this client: `transport`, `command` or `url`, `era`, `way`."""
    given: Json = json.loads(sys.argv[1])
    return given


def tell(result: Json, **more: Any) -> None:
    """The last line of a client: how the run ended as the client saw it."""
    print(json.dumps({"result": result, **more}))


def _calls(name: str, arguments: Json) -> Json:
    return {"tool_calls": [{"id": "c1", "name": name, "arguments": arguments}]}
