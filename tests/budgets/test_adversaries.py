"""A provider that lies about what it used, or says nothing: no call that was let through takes an account over, and
what it reports beyond its reservation is recorded, named, and ends the run."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from killed import WHY
from support.app import ME, WITHIN_S, Place, start_run
from support.branches import assert_books_agree, branches_of, put_reader
from support.daily_accounts import (
    NOON,
    ZONE,
    Clock,
    app_at,
    assert_days_add_up,
    count_passed_caps,
    days_of,
    reserved_over,
    watch_peaks,
    watch_reservations,
)
from support.provider_server import Reply, Standin, breaks_off, calls, chat, raw, refuses, sends

from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import TeamRequest

RUNS, MANY, BRANCHES = 20, 1_000, 16
DAY = Limits(model_calls=400, total_tokens=4_000_000)
DAY_OF_TEAMS = Limits(model_calls=1_000, total_tokens=20_000_000)
NARROW = ("read_file",)
FINE, NOTHING, TOO_MUCH, ODD, FAILS = "fine", "nothing", "too much", "odd", "fails after charging"


def lie(chance: random.Random, lies: list[str], asks_more: float = 0) -> Reply:
    """The next reply of a provider that can't be trusted. `asks_more`: how often it asks for more rounds."""
    kind = chance.choice((FINE, FINE, NOTHING, TOO_MUCH, ODD, FAILS))
    lies.append(kind)
    asked = calls(("read_file", {"path": chance.choice(("a.txt", "b.txt")), "start_line": chance.randint(1, 3)}))
    if asks_more and chance.random() < asks_more:
        wanted = {"additional": chance.randint(1, 10), "justification": WHY, "progress_summary": "Much was found."}
        asked = calls(("request_more_rounds", wanted))
    usage: Any = (chance.randint(100, 1_500), chance.randint(1, 300), 0)
    match kind:
        case "nothing":
            usage = None
        case "too much":
            usage = (chance.randint(20_000, 90_000), chance.randint(5_000, 90_000), 0)
        case "odd":
            odd = chance.choice((-5, 1.5, "12", True, float("nan"), 2**63, None))
            usage = {"prompt_tokens": odd, "completion_tokens": 5, "total_tokens": 5}
        case "fails after charging":
            (reply,) = chance.choices(
                (breaks_off, raw(b"{"), refuses(400, "no")), (1, 2, 17)
            )  # the first are tried again
            return reply
    body = chat(None, asked, finish="tool_calls", usage=usage)
    return raw(json.dumps(body).encode()) if kind == ODD else sends(body)


async def count_overspent_runs(place: Place, server: Standin, seeds: range) -> int:
    """So many runs on a day of their own; how many of them were told too much."""
    clock = Clock(NOON + seeds.start // RUNS * 86_400_000)
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE, day=DAY)
    over = 0
    async with app_at(settings, clock) as app:
        for seed in seeds:
            chance, lies = random.Random(seed), list[str]()
            server.replies.clear()
            server.will(*(lie(chance, lies) for _ in range(12)))
            before = len(server.heard)
            cap = chance.choice((15_000, 40_000, 90_000))
            run_id = await start_run(app, f"run {seed}", tools=NARROW, limits=Limits(total_tokens=cap, rounds=6))
            if seed == 0:
                watch_peaks(place)
            report = await app.runs.report(run_id, ME)
            used = report.usage["input_tokens"] + report.usage["output_tokens"]
            heard = lies[: len(server.heard) - before]
            named = any("tokens were reported" in text for text in report.degraded)
            assert used <= cap or named, (seed, heard, used, cap)
            if TOO_MUCH in heard:
                over += 1
                assert named, (seed, heard)
            if used > cap:
                assert heard[-1] == TOO_MUCH, (seed, heard)  # nothing was asked after it
                assert report.status != "working"
    most = max(book.spent.total_tokens for book in days_of(place).values())
    assert count_passed_caps(place) == 0 or most > (DAY.total_tokens or 0)
    assert_days_add_up(place)
    return over


async def test_twenty_runs_with_a_provider_that_lies(place: Place, server: Standin) -> None:
    assert await count_overspent_runs(place, server, range(RUNS)) > 3


@pytest.mark.slow
async def test_1000_runs_with_a_provider_that_lies(place: Place, server: Standin) -> None:
    parts = [await count_overspent_runs(place, server, range(first, first + RUNS)) for first in range(0, MANY, RUNS)]
    assert sum(parts) > MANY // 10


TASKS = {
    "analysis": "Many parts that need nothing of each other.",
    "strategy": "decomposed",
    "tasks": [{"id": f"part {n}", "agent": "reader", "description": "Read it."} for n in range(BRANCHES)],
}


async def count_overspent_branches(place: Place, server: Standin, seeds: range) -> int:
    """So many teams of sixteen tasks at once; how many accounts a report has taken past a cap."""
    put_reader(place, max_rounds=3)
    clock = Clock(NOON + seeds.start * 86_400_000)
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE, day=DAY_OF_TEAMS)
    over = 0
    async with app_at(settings, clock) as app:
        for seed in seeds:
            chance, lies = random.Random(seed), list[str]()
            server.replies.clear()
            server.will(*(lie(chance, lies, asks_more=0.3) for _ in range(400)))
            cap = chance.choice((800_000, 2_000_000))
            request = TeamRequest(f"run {seed}", TASKS, max_parallel=BRANCHES, limits=Limits(total_tokens=cap))
            run_id = (await app.runs.start(request, ME)).run_id
            # What failed is asked again after pauses of seconds, and a task that failed is then tried once more.
            await app.runs.wait([run_id], until="rest", wait_s=10 * WITHIN_S, caller=ME)
            if seed == seeds.start:
                watch_reservations(place)
            report = await app.runs.report(run_id, ME)
            assert report.status in ("completed", "stopped", "paused", "failed"), (seed, report)
            for path, book in branches_of(place, run_id).items():
                most = book.caps.total_tokens
                if most is not None and book.spent.total_tokens > most:
                    over += 1
                    named = f"branch {path}.total_tokens is {most}; an answer"
                    assert any(named in text for text in report.degraded), (seed, path)
            if report.usage["input_tokens"] + report.usage["output_tokens"] > cap:
                assert any(f"limits.total_tokens is {cap}; an answer" in text for text in report.degraded), seed
    assert reserved_over(place) == 0
    assert_books_agree(place)
    granted = place.rows("select count(*) from inbox where kind = 'grant'")
    assert granted > [(0,)] or len(seeds) < 10  # which reply comes to which task differs; ten runs get some twenty
    return over


async def test_runs_of_sixteen_branches_with_a_provider_that_lies(place: Place, server: Standin) -> None:
    assert await count_overspent_branches(place, server, range(2)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
async def test_a_hundred_runs_of_sixteen_branches_with_a_provider_that_lies(
    place: Place, server: Standin, part: int
) -> None:
    assert await count_overspent_branches(place, server, range(10 * part, 10 * (part + 1))) > 0
