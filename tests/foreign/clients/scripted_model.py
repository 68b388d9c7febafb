"""The model of every Python client here: lists the folder, reads the note, answers with the word in it.

Where the job has a `team`, it says that team's lines instead: support/team_on_source.py has them.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

GOAL = "Which word does the note hold?"
READING_S = 0.5
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


async def take_steps(**ways: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Take the job's steps, each the name of a way and what it is given; return what each one gave."""
    return [await ways[way](*given) for way, *given in job()["steps"]]


async def approve() -> Json:
    """The user's answer to each dialog, after longer than a client takes that answers by itself."""
    await asyncio.sleep(READING_S)
    return {"decision": "approve"}


async def drive_by_job(call: Callable[[str, Json], Awaitable[Json]]) -> Json:
    """Drive the run that the job asks for to its end, in the way that it asks for."""
    team = job().get("team")
    if team is None:
        return await (drive_as_caller(call) if job()["way"] == "caller" else call("planner_run", {"goal": GOAL}))
    result = await call("team_run", {"goal": team["goal"], "limits": {"rounds": 40}})
    while result["status"] == "input_required":
        if job()["way"] == "caller":
            result = await answer_side_by_side(call, result, team["lines"])
        elif result["route"] != "sampling":
            return result  # its answer was refused
        else:  # after so many rounds of one call
            result = await call("run_continue", {"run_id": result["run_id"]})
    return result


async def answer_side_by_side(call: Callable[[str, Json], Awaitable[Json]], run: Json, lines: Json) -> Json:
    """Answer each request that waits in a call of its own, as a host with sub-agents does; give the run afterwards.

    The first time that several wait, one of them alone is answered: the others wait on.
    """
    keys = [item["key"] for item in run["waiting"]]
    if "task-1/try-1/round-1" in keys:
        keys = keys[:1]
    calls = [call("run_continue", {"run_id": run["run_id"], "answers": {key: lines[key]}}) for key in keys]
    results = await asyncio.gather(*calls)
    if len(results) == 1:
        return results[0]
    runs: list[Json] = (await call("run_status", {"run_ids": [run["run_id"]], "view": "full"}))["runs"]
    return runs[0]


async def drive_as_caller(call: Callable[[str, Json], Awaitable[Json]]) -> Json:
    """Drive a run by the caller route to its end; `call` gives a tool's structured content.

    Its model has read what came before: after an answer it is shown only what is new.
    """
    result = await call("planner_run", {"goal": GOAL})
    shown: list[Json] = []
    while result["status"] == "input_required":
        (item,) = result["waiting"]
        shown.append(item)
        answers = {item["key"]: next_answer(shown, len(shown) - 1)}
        result = await call("run_continue", {"run_id": result["run_id"], "answers": answers})
    return result


def job() -> Json:
    """Read what the test asks of this client: `transport`, `command` or `url`, `era`, `way`."""
    given: Json = json.loads(sys.argv[1])
    return given


def report(result: Json, **more: Any) -> None:
    """Print a client's last line: how the run ended as the client saw it."""
    print(json.dumps({"result": result, **more}))


def _tool_call(name: str, arguments: Json) -> Json:
    return {"tool_calls": [{"id": "c1", "name": name, "arguments": arguments}]}
