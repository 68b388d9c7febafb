"""A model whose price nobody knows was not free: reports, books and commands say that it is not counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.app import ME, Place, answer_run, open_checked_app, reads, rests, start_run
from support.app import says as line_says
from support.environment import plain_environ
from support.forked_program import run_program
from support.provider_server import Standin, calls, refuses, talks

from kairos_mcp.core.limits import Limits
from kairos_mcp.settings.settings import Settings
from kairos_mcp.views.run_report import RunReport

UNKNOWN = "The price of openai:small is not known"
LOOKS = talks(None, calls(("read_file", {"path": "a.txt"})), finish="tool_calls")


def openai(place: Place, server: Standin, **more: Any) -> Settings:
    """Settings for this server by an address that does not say that it is on this machine."""
    address = server.openai.replace("127.0.0.1", "0.0.0.0")
    return place.settings(model="openai:small", base_url=address, **more)


def count_notes(report: RunReport) -> int:
    return sum(UNKNOWN in text for text in report.degraded)


async def test_a_run_on_a_model_without_a_known_price_says_so_once_from_its_start_on(
    place: Place, server: Standin
) -> None:
    server.will(refuses(429, Retry_After="0"), LOOKS, talks("done"))
    async with open_checked_app(openai(place, server)) as app:
        report = await app.runs.report(await start_run(app), ME)
        day = await app.records.read_spending("day", ME)
    assert (report.status, report.usage["usd"], report.usage["unpriced"]) == ("completed", 0, ["openai:small"])
    assert count_notes(report) == 1
    sent = place.rows("select sent from step where kind = 'round' union all select sent from attempt")
    assert [json.loads(text)["unpriced"] for (text,) in sent] == [
        True,
        True,
        True,
    ]  # two rounds, and the attempt after the refusal
    assert (day["unpriced"], [each["unpriced"] for each in day["by"]]) == (["openai:small"], [["openai:small"]])


async def test_a_stated_price_is_counted_and_nothing_is_said(place: Place, server: Standin) -> None:
    server.will(talks("done", usage=(1_000, 100, 0)))
    async with open_checked_app(openai(place, server, price_input=1.0, price_output=10.0)) as app:
        report = await app.runs.report(await start_run(app), ME)
        assert (await app.records.read_spending("day", ME))["unpriced"] is None
    assert (report.usage["usd"], report.usage["unpriced"]) == (pytest.approx(0.002), None)
    assert count_notes(report) == 0


async def test_a_model_on_this_machine_is_free_and_is_no_unknown(place: Place, server: Standin) -> None:
    server.will(talks("done", usage=(1_000, 100, 0)))
    async with open_checked_app(place.settings(model="openai:small", base_url=server.openai)) as app:
        report = await app.runs.report(await start_run(app, limits=Limits(nano_usd=1)), ME)  # a limit that can be kept
        assert (await app.records.read_spending("day", ME))["unpriced"] is None
    assert (report.status, report.usage["usd"], report.usage["unpriced"]) == ("completed", 0, None)
    assert count_notes(report) == 0


async def test_routes_that_cost_this_server_nothing_are_free_and_are_no_unknown(place: Place) -> None:
    async with open_checked_app(place.settings(reads("a.txt"), line_says("done"))) as app:
        scripted = await app.runs.report(await start_run(app, "on a script"), ME)
        asked = await start_run(app, "of the caller", route="caller")
        by_caller = await answer_run(app, asked, round_1={"content": "done", "finish": "stop"})
        assert (await app.records.read_spending(asked, ME))["unpriced"] is None
    for report in (scripted, by_caller):
        assert (report.status, report.usage["usd"], report.usage["unpriced"]) == ("completed", 0, None)
        assert not any("price" in text for text in report.degraded)


async def test_a_run_that_comes_to_such_a_model_later_says_so_then(place: Place, server: Standin) -> None:
    server.will(talks("done"))
    async with open_checked_app(openai(place, server)) as app:
        run_id = await start_run(app, route="caller")
        assert count_notes(await app.runs.report(run_id, ME)) == 0
        await app.control.reroute(run_id, "provider", ME)
        report = await rests(app, run_id)
    assert (report.summary, report.usage["unpriced"], count_notes(report)) == ("done", ["openai:small"], 1)


async def test_no_command_shows_it_as_free(place: Place, server: Standin) -> None:
    server.will(talks("done"))
    async with open_checked_app(openai(place, server)) as app:
        run_id = await start_run(app)
    for words in (["show", run_id], ["budget"], ["budget", run_id], ["budget", "--days"]):
        said = kairos(place, *words)
        assert "price unknown" in said, words
        assert "$0.0000" not in said, words
    assert json.loads(kairos(place, "show", run_id, "--json"))["usage"]["usd"] == 0


def kairos(place: Place, *words: str) -> str:
    environ = plain_environ()
    done = run_program([words[0], "--home", str(place.home), *words[1:]], env=environ)
    done.check_returncode()
    return done.stdout
