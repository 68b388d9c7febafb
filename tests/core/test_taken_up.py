"""A run for which something was stored goes on while a server lives that can, and whoever asks is told so."""

from __future__ import annotations

from dataclasses import replace

from support.app import ME, PERSON, Place, place_in, rests
from support.sampling_clients import connect_client

from kairos_mcp.app.app import App
from kairos_mcp.store.ownership import ANY_SERVER

EDIT = {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}


async def decided(place: Place) -> str:
    """A run whose approval a command has recorded, and which no server has taken up."""
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await app.runs.start_call("edit_file", EDIT, ME)
        (item,) = (await rests(app, run_id)).waiting
    async with App.open(place.settings(), via="command") as app:
        await app.answers.decide(run_id, item["key"], "approve", None, PERSON, drive=False)
    assert place.rows("select owner, outcome from run") == [(ANY_SERVER, None)]
    return run_id


async def test_a_server_that_is_asked_about_it_says_working_and_takes_it_up(place: Place) -> None:
    run_id = await decided(place)
    async with App.open(place.settings(), via="mcp") as app, connect_client(app) as client:
        (run,) = (await client.ask("run_status", {"run_id": run_id}))["runs"]
        assert (run["status"], run["next"]["arguments"]["until"]) == ("working", "news")
        await app.runs.wait([run_id], until="done", wait_s=3, caller=ME)
        assert (await app.runs.report(run_id, ME)).status == "completed"
    assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_one_that_can_not_says_working_while_another_can_and_paused_with_what_it_takes_else(place: Place) -> None:
    run_id = await decided(place)
    other = place_in(place.root / "other")
    elsewhere = replace(place.settings(), workspaces=(other.workspace,))
    async with App.open(elsewhere, via="mcp") as asked:
        asked.watcher.wake()  # as any call of a tool does
        report = await asked.runs.report(run_id, ME)
        assert report.status == "paused"
        assert any("the workspace 'workspace'" in note for note in report.held_up_by)
        async with App.open(place.settings(), via="mcp") as able:
            await able.runs.start_call("read_file", {"path": "a.txt"}, ME)
            assert (await asked.runs.report(run_id, ME)).status in ("working", "completed")
            assert (await rests(able, run_id)).status == "completed"


async def test_a_command_that_looks_does_not_take_it_up(place: Place) -> None:
    run_id = await decided(place)
    async with App.open(place.settings(), via="command") as app:
        report = await app.runs.report(run_id, ME)
        assert report.status == "paused"
        assert "resume" in report.next["why"]
    assert place.rows("select owner, outcome from run") == [(ANY_SERVER, None)]
