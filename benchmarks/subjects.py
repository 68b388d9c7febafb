"""The two things that are compared: the floor, which is the least a durable loop can be, and the app itself.

The floor is asyncio and the standard library's sqlite3 in WAL mode, two commits a round, writing what a round of the
app says: the answer of the step before and the mark of the next. It checks nothing, limits nothing, digests nothing.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import ToolResult, ToolSpec
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.tool import Tool
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Durability, Flags, Settings
from kairos_mcp.store import accounts
from kairos_mcp.tools.registry import ToolRegistry

ME = Caller()
FILES, LINES = 128, 8  # each round reads another line: the same call with the same result five times is a stall
TOLD = {"path": "001.txt", "lines": 8, "start_line": 1, "end_line": 1, "bytes": 447, "sha256": "0" * 64}
ENDS = {"content": "done", "finish": "stop", "usage": {"input_tokens": 100, "output_tokens": 3}}

# -- the floor -------------------------------------------------------------------------------------------------------


def open_floor(folder: Path, durability: Durability) -> sqlite3.Connection:
    floor = sqlite3.connect(folder / "floor.db", isolation_level=None)
    floor.execute("pragma journal_mode = wal")
    floor.execute(f"pragma synchronous = {'full' if durability == 'full' else 'normal'}")
    floor.execute(
        "create table step(id integer primary key, run integer, path text, kind text, digest blob, at integer,"
        " held text)"
    )
    floor.execute("create table answer(step integer primary key, at integer, body text, spent text)")
    return floor


async def floor_run(floor: sqlite3.Connection, rounds: int) -> None:
    """So many rounds of a completion and a call, both made up on the spot."""
    mark = _commit(floor, None, {}, "round-1", "round")
    for n in range(1, rounds + 1):
        await asyncio.sleep(0)
        completion = turn(n, "read_file") | {"kind": "completion"}
        mark = _commit(floor, mark, completion, f"round-{n}/call-1", "call")
        await asyncio.sleep(0)
        result = {"content": line(n), "is_error": False, "data": TOLD}
        mark = _commit(floor, mark, result, f"round-{n + 1}", "round")


def _commit(floor: sqlite3.Connection, answered: int | None, body: dict[str, Any], path: str, kind: str) -> int | None:
    at = time.time_ns() // 1_000_000
    floor.execute("begin immediate")
    if answered is not None:
        floor.execute(
            "insert into answer values (?, ?, ?, ?)", (answered, at, json.dumps(body), "[1,1,100,3,103,0,0,0]")
        )
    marked = floor.execute(
        "insert into step(run, path, kind, digest, at, held) values (?, ?, ?, ?, ?, ?)",
        (1, path, kind, b"0" * 32, at, "[1,1,2200,4096,6296,0,0,300000]"),
    )
    floor.execute("commit")
    return marked.lastrowid


# -- the app -------------------------------------------------------------------------------------------------------


def line(n: int) -> str:
    return f"line {n}: of a file that is read one line at a time"


def place(n: int) -> tuple[str, int]:
    """The file and the line that the n-th round reads."""
    return f"{n % FILES:03}.txt", 1 + n // FILES % LINES


def turn(n: int, tool: str) -> dict[str, Any]:
    """The n-th completion: one call, with arguments that no other round has."""
    path, number = place(n)
    arguments = {"path": path, "start_line": number, "end_line": number}
    usage = {"input_tokens": 100, "output_tokens": 3}
    return {"content": "I look.", "tool_calls": [{"name": tool, "arguments": arguments}], "usage": usage}


def settings(folder: Path, rounds: int, durability: Durability, tool: str = "read_file") -> Settings:
    """An app in this folder whose script has so many turns with a call, then one that ends."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    for file in range(FILES):
        (workspace / place(file)[0]).write_text("\n".join(line(n) for n in range(LINES)), encoding="utf-8")
    script = folder / f"script-{rounds}.jsonl"
    turns = [*(turn(n, tool) for n in range(1, rounds + 1)), ENDS]
    script.write_text("\n".join(json.dumps(each) for each in turns), encoding="utf-8")
    plain = load_settings(Flags(home=str(folder / "home"), workspaces=(str(workspace),)), {})
    return replace(plain, script=script, durability=durability, limits=Limits(), context_tokens=100_000_000)


@asynccontextmanager
async def open_app(chosen: Settings, *, noop: bool = False, threaded: bool = False) -> AsyncIterator[App]:
    """The app, warm: adapters made, file open, threads started. `noop`: the one tool there is does nothing; `threaded`:
    in a thread."""
    async with App.open(chosen, via="serve") as app:
        if noop:
            tool = replace(NOOP, at_once=None if threaded else _nothing)
            means = replace(app._context.factory.resources(None), registry=ToolRegistry([tool]))
            app._context.factory.resources = lambda _workspace: means
        await ended(app, await start(app, 2, ["warm"]))
        yield app


async def charge_to(app: App, shared: int) -> None:
    """Charge model calls to so many accounts, as that of the day: each has caps to be held against."""
    days, caps = app._context.pool.daily_accounts, Limits(model_calls=10**6, total_tokens=10**10, nano_usd=10**12)
    ((whose, _),) = days._known.items()
    (day, charged) = days._known[whose]
    more = [
        (
            await app._store.submit(partial(accounts.ensure_day_account, principal=f"shared {n}", day="any", caps=caps))
        ).id
        for n in range(1, shared)
    ]
    days._known[whose] = day, charged._replace(shared_accounts=(*charged.shared_accounts, *more))


async def start(app: App, rounds: int, goals: Sequence[str]) -> list[str]:
    """One run for each goal, each of so many rounds and a last word: frozen, recorded, and about to move."""
    limits = Limits(rounds=rounds + 1, total_tokens=10**9)
    return [(await app.runs.start(PlannerRequest(goal, limits=limits), ME)).run_id for goal in goals]


async def start_with(app: App, rounds: int, globs: Sequence[str]) -> str:
    """A run of so many rounds over the tools that the globs name."""
    limits = Limits(rounds=rounds + 1, total_tokens=10**9)
    return (await app.runs.start(PlannerRequest("measured", tools=tuple(globs), limits=limits), ME)).run_id


async def ended(app: App, runs: Sequence[str]) -> None:
    await app.runs.wait(runs, until="done", wait_s=600, caller=ME)


async def must_have_run(app: App, runs: Sequence[str], rounds: int) -> None:
    """A figure of a run that ended otherwise than meant is no figure."""
    for run in runs:
        report = await app.runs.report(run, ME)
        assert (report.stop_reason, report.rounds) == ("assistant_stop", rounds + 1), report


def _nothing(_arguments: object, _around: object) -> ToolResult:
    return ToolResult("nothing")


NOOP = Tool(ToolSpec("noop", "Does nothing.", {"type": "object"}, effect="read", reaches="inside"), _nothing)
