"""The loop of the benchmark `workers` as a workflow of DBOS, run by DBOS's own Python: a step for each completion and
one for each call, nothing else.

    python -P dbos_rounds.py DATABASE RUNS ROUNDS

It says `ready`, waits for a line, and prints when it began and ended, and its CPU, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from dbos import DBOS


@DBOS.step()
async def complete(n: int, rounds: int) -> dict[str, Any]:
    """What the script says in this round, as `turn` in subjects.py has it."""
    usage = {"input_tokens": 100, "output_tokens": 3}
    if n > rounds:
        return {"content": "done", "finish": "stop", "usage": usage}
    arguments = {"path": f"{n % 128:03}.txt", "start_line": 1 + n // 128 % 8, "end_line": 1 + n // 128 % 8}
    return {"content": "I look.", "tool_calls": [{"name": "noop", "arguments": arguments}], "usage": usage}


@DBOS.step()
async def call(_name: str, _arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": "nothing", "is_error": False}


@DBOS.workflow()
async def loop(_goal: str, rounds: int) -> str:
    for n in range(1, rounds + 2):
        completion = await complete(n, rounds)
        for each in completion.get("tool_calls", ()):
            await call(each["name"], each["arguments"])
    return str(completion["content"])


async def main(runs: int, rounds: int) -> None:
    await run_beside(["warm"], 2)
    print("ready", flush=True)
    sys.stdin.readline()
    began, spent = time.monotonic(), time.process_time()
    said = await run_beside([f"{os.getpid()} {n}" for n in range(runs)], rounds)
    print(json.dumps([began, time.monotonic(), time.process_time() - spent]), flush=True)
    assert said == ["done"] * runs
    await asyncio.to_thread(sys.stdin.readline)


async def run_beside(goals: list[str], rounds: int) -> list[str]:
    handles = [await DBOS.start_workflow_async(loop, goal, rounds) for goal in goals]
    return [await each.get_result() for each in handles]


if __name__ == "__main__":
    own = {"system_database_url": sys.argv[1], "executor_id": str(os.getpid())}
    DBOS(config={"name": "peer", "log_level": "ERROR", **own})
    DBOS.launch()
    asyncio.run(main(int(sys.argv[2]), int(sys.argv[3])))
    DBOS.destroy()
