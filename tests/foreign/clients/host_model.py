"""The model of a host: it makes a call, and then each call that the results ask for, until the run has ended."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from scripted_model import GOAL, Json, job, next_answer

Call = tuple[str, Json]
Conversation = Generator[Call, Json, Json]
READING_S = 0.5
COMMAND_S = 60


def follow(name: str, arguments: Json) -> Conversation:
    """Yield a call and those that its results ask for, each to be sent what the result says; return the last.

    What waits for a completion is answered, from all that was shown before: after an answer only what is new is shown.
    Where a person decides, the command that is shown is carried out as it stands.
    """
    result = yield name, arguments
    shown: list[Json] = []
    while result["status"] in ("input_required", "working"):
        completions = [item for item in result["waiting"] if item["kind"] == "completion"]
        if completions:
            shown += completions
            answers = {item["key"]: next_answer(shown, len(shown) - 1) for item in completions}
            result = yield "run_continue", {"run_id": result["run_id"], "answers": answers}
            continue
        for item in result["waiting"]:
            subprocess.run(shlex.split(item["command"]), check=True, capture_output=True, timeout=COMMAND_S)
        result = yield result["next"]["tool"], result["next"]["arguments"]
    return result


async def converse(call: Callable[[str, Json], Awaitable[Json]], name: str, arguments: Json) -> Json:
    """Have a client make the calls of such a conversation; `call` gives what its model is shown of a result."""
    conversation = follow(name, arguments)
    wanted = next(conversation)
    while True:
        shown = await call(*wanted)
        try:
            wanted = conversation.send(shown["runs"][0] if "runs" in shown else shown)
        except StopIteration as ended:
            return dict(ended.value)


async def take_steps(call: Callable[[str, Json], Awaitable[Json]], **ways: Callable[..., Awaitable[Any]]) -> list[Json]:
    """Take the job's steps, each the name of a way and what it is given; return the value of each, or its error."""

    async def talk(name: str, arguments: Json) -> Json:
        return await converse(call, name, arguments)

    ways["call"] = talk
    results: list[Json] = []
    for way, *given in job()["steps"]:
        try:
            results.append({"value": await ways[way](*given)})
        except Exception as error:
            results.append({"error": repr(error)})
    return results


async def approve() -> Json:
    """The user's answer to each dialog, after longer than a client takes that answers by itself."""
    await asyncio.sleep(READING_S)
    return {"decision": "approve"}


async def drive_by_job(call: Callable[[str, Json], Awaitable[Json]]) -> Json:
    """Drive the run that the job asks for to its end, in the way that it asks for."""
    team = job().get("team")
    if team is None:
        return await converse(call, "planner_run", {"goal": GOAL})
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
