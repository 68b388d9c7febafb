"""Two machines with a folder of the same path, and one database: where places are named, runs stay where they began."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.app import ME, PERSON, WITHIN_S, Place, reads, says
from support.commands import command
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.errors import BadArguments, PathDenied, UnknownMandate
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PlannerRequest

MANDATE = {"id": "tidy", "goal": "Keep a.txt tidy.", "schedule": {"rule": "* * * * *", "catch_up": "once"}}


@asynccontextmanager
async def server(place: Place, at: str | None, *, drives: bool = False, **changes: Any) -> AsyncIterator[App]:
    settings = replace(place.settings(reads("a.txt"), says("done")), place=at, **changes)
    async with App.open(settings, via="mcp", mode=DriveMode(drives=drives)) as app:
        yield app


async def start(app: App, goal: str = "look", **more: Any) -> str:
    return (await app.runs.start(PlannerRequest(goal, **more), ME)).run_id


def places(place: Place) -> list[Any]:
    return [found for (found,) in place.rows("select place from run order by n")]


async def has_ended(place: Place, at: str | None, *run_ids: str) -> bool:
    """Whether a server at this place goes on with the first of these runs that were left, and ends them all."""
    async with server(place, at, drives=True) as app:
        app.watcher.wake()
        await app._context.watcher.pick_up_runs()
        if place.rows("select owner from run where id = ?", run_ids[0]) == [(0,)]:
            return False
        for run_id in run_ids:
            await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
    return all(place.rows("select outcome is not null from run where id = ?", each) == [(1,)] for each in run_ids)


@both_stores
async def test_a_run_with_a_workspace_goes_on_only_where_that_folder_is(place: Place) -> None:
    async with server(place, "one") as app:
        run_id = await start(app)
    assert places(place) == ["one"]
    for elsewhere in ("two", None):
        assert not await has_ended(place, elsewhere, run_id)
    assert await has_ended(place, "one", run_id)


async def test_a_run_that_began_nowhere_in_particular_or_in_no_folder_goes_on_anywhere(place: Place) -> None:
    async with server(place, None) as app:
        unplaced = await start(app)
    async with server(place, "one", workspaces=()) as app:
        without_folder = await start(app, "think")
    assert places(place) == [None, None]
    assert await has_ended(place, "two", unplaced, without_folder)


async def test_the_same_start_at_two_places_is_two_runs(place: Place) -> None:
    async with server(place, "one") as one, server(place, "two") as two:
        first = await start(one)
        assert await start(one) == first
        second = await start(two)
        assert second != first
        by_key = await start(one, key="k")
        with pytest.raises(BadArguments, match=by_key):
            await start(two, key="k")
    assert places(place) == ["one", "two", "one"]


async def test_another_place_answers_nothing_and_a_command_there_does_not_drive(place: Place) -> None:
    async with server(place, "one") as one:
        run_id = await start(one, route="caller")
    async with server(place, "two", drives=True) as two:
        with pytest.raises(PathDenied):
            await two.answers.submit(run_id, {"round-1": {"content": "done"}}, ME)
        with pytest.raises(BadArguments, match="must work there too"):
            await start(two, "go on", continues=run_id, from_round="round-1")
    async with App.open(replace(place.settings(), place="two"), via="command") as by_hand:
        run = await by_hand._context.find_run(run_id, PERSON)
        missing = await by_hand._context.factory.missing_requirements(run, by_hand=True)
    assert missing == ("the workspace 'workspace' at the place one",)


@both_stores
async def test_a_mandate_belongs_to_its_place(place: Place) -> None:
    async with server(place, "one") as one, server(place, "two") as two:
        await one.mandates.save(MANDATE, ME)
        place.rows("update mandate set saved_at = saved_at - 300000")
        assert [each.mandate_id for each in (await one.schedules.list_startable())[0]] == ["tidy"]
        assert await two.schedules.list_startable() == ([], None)
        with pytest.raises(UnknownMandate):
            await two.runs.start(CyclesRequest(MandateRef("tidy")), ME)
        with pytest.raises(BadArguments, match="at the place one"):
            await two.mandates.save({**MANDATE, "goal": "Keep b.txt tidy."}, ME)
    assert place.rows("select place, body like '%b.txt%' from mandate") == [("one", 0)]


async def test_who_lives_is_shown_with_its_place_and_a_name_is_checked(place: Place) -> None:
    async with server(place, "one", drives=True) as app:
        await start(app)
        said = command("status", "--home", str(place.home), folder=place.workspace, environ=os.environ)
        assert ", place one\n" in said.out
        shown = command("status", "--json", "--home", str(place.home), folder=place.workspace, environ=os.environ)
        assert [each["place"] for each in shown.json["servers"]] == ["one"]
    assert (
        command(
            "work", "--place", "no place", "--home", str(place.home), folder=place.workspace, environ=os.environ
        ).code
        == 2
    )
