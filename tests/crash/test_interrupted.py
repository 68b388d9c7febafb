"""Interrupted anywhere and gone on with elsewhere, again and again: the same steps, the same outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import (
    ASK,
    ME,
    Place,
    asked_digests,
    asks,
    assert_all_lawful,
    few,
    finish_run,
    open_checked_app,
    outcome_of,
    place_in,
    reads,
    says,
    use_key_of_tests,
)

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest

LINES = (reads("a.txt", "b.txt", "a.txt"), asks("why"), reads("b.txt"), reads("missing.txt", "a.txt"), says("done"))
REQUEST = PlannerRequest("look around", caller_tools=(ASK,), key="reference")


async def gone_through(app: App) -> str:
    run_id = (await app.runs.start(REQUEST, ME)).run_id
    await finish_run(app, run_id)
    return run_id


async def left_after(place: Place, commits: int) -> None:
    """Close an app, as politely as it may be, when it has made so many commits."""
    async with App.open(place.settings(*LINES), via="mcp") as app:
        use_key_of_tests(app)
        going = asyncio.create_task(gone_through(app))
        writer = app._store.writer
        while writer.commits < commits and not going.done():  # noqa: ASYNC110 - another's file or count has no event
            await asyncio.sleep(0)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)


@few
@given(st.lists(st.integers(1, 14), max_size=4))
async def test_a_run_left_again_and_again_comes_out_the_same(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    root = tmp_path_factory.mktemp("interrupted")
    reference, place = place_in(root / "reference"), place_in(root / "place")
    async with open_checked_app(reference.settings(*LINES)) as app:
        use_key_of_tests(app)
        run_id = await gone_through(app)
        expected = asked_digests(reference, run_id), outcome_of(reference, run_id), bodies(reference)
    for commits in cuts:
        await left_after(place, commits)
    async with open_checked_app(place.settings(*LINES)) as app:
        use_key_of_tests(app)
        run_id = await gone_through(app)
        assert (asked_digests(place, run_id), outcome_of(place, run_id), bodies(place)) == expected
        await assert_all_lawful(app)


def bodies(place: Place) -> dict[str, Any]:
    return dict(place.rows("select path, body from answer join step on id = step"))
