"""A report of usage that can't be is none, on every route: the estimate or the bound holds, and the result says so."""

from __future__ import annotations

from typing import Any

import pytest
from support.app import ME, Place, answer_run, assert_lawful, rests, start_run
from support.daily_accounts import usage_of
from support.provider_server import Standin, chat, sends

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments

IMPOSSIBLE: dict[str, dict[str, int]] = {
    "nothing at all for a text": {"input_tokens": 0, "output_tokens": 0},
    "nothing written for a text": {"input_tokens": 900, "output_tokens": 0},
    "nothing read": {"input_tokens": 0, "output_tokens": 5},
    "more from a cache than was read": {"input_tokens": 10, "output_tokens": 5, "cached_tokens": 11},
}


def doubts(degraded: tuple[str, ...]) -> list[str]:
    return [text for text in degraded if "can't be" in text]


@pytest.mark.parametrize("usage", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
async def test_the_callers_report_that_can_not_be_is_none(place: Place, usage: dict[str, int]) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, "go")
        answer = {"content": "A text of some length.", "finish": "stop", "usage": usage}
        report = await answer_run(app, run_id, round_1=answer)
        assert report.status == "completed"
        assert report.usage["exactness"] == "estimated"
        assert report.usage["input_tokens"] > 100
        assert report.usage["output_tokens"] == 6
        assert report.usage["cached_tokens"] == 0
        assert len(doubts(report.degraded)) == 1
        await app.answers.submit(run_id, {"round-1": answer}, ME)  # the same again is no error
        assert_lawful(place, run_id)


async def test_a_report_that_can_be_is_believed(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, "go")
        usage = {"input_tokens": 10, "output_tokens": 5, "cached_tokens": 10}
        report = await answer_run(app, run_id, round_1={"content": "Done.", "finish": "stop", "usage": usage})
        assert (report.usage["exactness"], report.usage["input_tokens"], report.usage["cached_tokens"]) == (
            *("reported", 10),
            10,
        )
        assert doubts(report.degraded) == []


async def test_what_is_no_count_is_refused_as_ever(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, "go")
        with pytest.raises(BadArguments):
            await app.answers.submit(run_id, {"round-1": {"content": "x", "usage": {"input_tokens": -1}}}, ME)


async def test_a_scripts_report_that_can_not_be_is_none(place: Place) -> None:
    line: dict[str, Any] = {"content": "Done.", "finish": "stop", **usage_of(0, 0)}
    async with App.open(place.settings(line), via="mcp") as app:
        report = await rests(app, await start_run(app, "go"))
        assert (report.status, report.usage["exactness"]) == ("completed", "estimated")
        assert len(doubts(report.degraded)) == 1


async def test_a_providers_report_that_can_not_be_is_charged_as_bounded(place: Place, server: Standin) -> None:
    server.will(sends(chat("Done.", usage=(100, 20, 4_000))))
    settings = place.settings(model="openai:small", base_url=server.openai)
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, "go")
        report = await rests(app, run_id)
        assert (report.status, report.usage["exactness"]) == ("completed", "bounded")
        assert report.usage["input_tokens"] > 1_000
        assert len(doubts(report.degraded)) == 1
        assert_lawful(place, run_id)
