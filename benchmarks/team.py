"""A team whose plan has independent tasks: how many are under way at once, and what a round of one costs, beside as
many runs side by side that do the same.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import rounds as alone
from benchmarks import subjects
from benchmarks.fresh import fresh
from benchmarks.peers import TEAM_PEERS, peer_samples
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.settings.settings import Settings

WAITING_ROUNDS, WAITING_MS = 2, 1_000  # of each task where every completion takes so long
AGENT = "---\nname: reader\ndescription: Reads.\ntools: [read_file]\nmax_rounds: {rounds}\n---\nYou read.\n"


def plan(tasks: int) -> JsonObject:
    """A plan of so many tasks that depend on nothing."""
    listed = [{"id": f"t{n}", "agent": "reader", "description": f"Read part {n}."} for n in range(1, tasks + 1)]
    return {"analysis": "Each part by itself.", "strategy": "decomposed", "tasks": listed}


def settings(folder: Path, tasks: int, rounds: int, delay_s: float = 0) -> Settings:
    """An app in this folder whose script has the rounds of each task, its last word, and the answer."""
    plain = subjects.settings(folder, rounds, "process")
    (folder / "config" / "agents").mkdir(parents=True)
    (folder / "config" / "agents" / "reader.md").write_text(AGENT.format(rounds=rounds + 1), encoding="utf-8")
    turns = [*(subjects.turn(n, "read_file") for n in range(1, rounds + 1)), subjects.ENDS]
    lines = [
        {"for": f"task-{task}/try-1/round-{n}", "delay_s": delay_s, **turn}
        for task in range(1, tasks + 1)
        for n, turn in enumerate(turns, 1)
    ]
    lines.append({"for": "synthesis", "delay_s": delay_s, **subjects.ENDS})
    script = folder / "script-team.jsonl"
    script.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return replace(plain, script=script, config_dirs=(*plain.config_dirs, folder / "config"))


async def start(app: App, tasks: int, rounds: int) -> str:
    limits = Limits(rounds=2 * tasks * (rounds + 1), total_tokens=10**9)  # a share is kept for the answer
    request = TeamRequest("measured", plan=plan(tasks), max_parallel=tasks, limits=limits)
    return (await app.runs.start(request, subjects.ME)).run_id


async def must_have_run(app: App, run: str, tasks: int, rounds: int) -> None:
    report = await app.runs.report(run, subjects.ME)
    assert (report.stop_reason, report.rounds) == ("team_done", tasks * (rounds + 1)), report


async def one_run(folder: Path, tasks: int, rounds: int) -> float:
    """CPU seconds a round of tasks in one run, without its start."""
    async with App.open(settings(folder, tasks, rounds), via="serve") as app:
        await subjects.ended(app, [await start(app, 2, rounds)])  # warm
        run = await start(app, tasks, rounds)
        began = time.process_time()
        await subjects.ended(app, [run])
        took = time.process_time() - began
        await must_have_run(app, run, tasks, rounds)
    return took / (tasks * rounds)


async def many_runs(folder: Path, tasks: int, rounds: int) -> float:
    """CPU seconds a round of as many runs side by side, without their start."""
    async with subjects.open_app(subjects.settings(folder, rounds, "process")) as app:
        runs = await subjects.start(app, rounds, [f"run {n}" for n in range(tasks)])
        began = time.process_time()
        await subjects.ended(app, runs)
        took = time.process_time() - began
        await subjects.must_have_run(app, runs, rounds)
    return took / (tasks * rounds)


async def waiting(folder: Path, tasks: int, rounds: int, delay_ms: int) -> tuple[int, float]:
    """The most completions that were under way at once where each takes so long, and the seconds of the whole run."""
    chosen = settings(folder, tasks, rounds, delay_ms / 1000)
    async with App.open(chosen, via="serve") as app:
        await subjects.ended(app, [await start(app, 1, rounds)])  # warm
        run, began = await start(app, tasks, rounds), time.monotonic()
        await subjects.ended(app, [run])
        took = time.monotonic() - began
        await must_have_run(app, run, tasks, rounds)
    return most_at_once(chosen.home, run), took


def most_at_once(home: Path, run: str) -> int:
    """How many completions of a run were under way at once, by the times of their rows."""
    query = (
        "select m.at, a.at from step m join answer a on a.step = m.id join run r on r.n = m.run"
        " where r.id = ? and m.kind = 'round'"
    )
    with closing(sqlite3.connect(home / "kairos.db")) as store:
        spans = store.execute(query, (run,)).fetchall()
    return max(sum(began <= at < ended for began, ended in spans) for at, _ in spans)


def figures(tasks: int = 8, rounds: int = 50, times: int = 5, peers: int = 0) -> dict[str, float]:
    """`peers`: measure also so many of the other frameworks, from the first; each has eight tasks."""
    samples: dict[str, Callable[[], float]] = {
        "tasks": lambda: fresh(one_run, tasks, rounds),
        "runs": lambda: fresh(many_runs, tasks, rounds),
    }
    for name, sample in peer_samples(dict(list(TEAM_PEERS.items())[:peers])).items():
        samples[name] = lambda sample=sample: sample(rounds)[0]
    floors: list[float] = []
    spent: dict[str, list[float]] = {name: [] for name in samples}
    for _ in range(times):  # in turns: the machine is not even
        floors.append(fresh(alone.floor, rounds))
        for name, measure in samples.items():
            spent[name].append(measure())
    measured = {"floor_us": median(floors) * 1e6}
    measured |= {f"round_of_{name}": median(each) / median(floors) for name, each in spent.items()}
    measured["tasks_by_runs"] = median(spent["tasks"]) / median(spent["runs"])
    measured["tasks_by_runs_least"] = min(spent["tasks"]) / min(spent["runs"])
    under_way, took = fresh(waiting, tasks, WAITING_ROUNDS, WAITING_MS)
    asked = WAITING_ROUNDS + 2  # one after the other: the rounds of a task, its last word, and the answer
    return measured | {"under_way_at_once": under_way, "wall_by_waits": took * 1000 / (asked * WAITING_MS)}
