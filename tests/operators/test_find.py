"""An operator finds runs, spending, and whatever an id names, whoever's it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.app import ASK, ME, UNWATCHED, Place, asks, reads, rests, says
from support.operators import Command
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, NotFound, UnknownRun
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store.ownership import ANY_SERVER

ANNA = Caller("anna")
EDIT = {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}


def use(place: Place, act: Callable[[App], Awaitable[Any]], **changes: Any) -> Any:
    """What this returns, given a server of the place."""

    async def opened() -> Any:
        async with App.open(place.settings(flow=UNWATCHED, **changes), via="mcp") as app:
            return await act(app)

    return asyncio.run(opened())


def start(place: Place, *lines: dict[str, Any], caller: Caller = ME, **more: Any) -> str:
    """A run of this principal, once it rests."""
    place.settings(*lines)

    async def act(app: App) -> str:
        run_id = (await app.runs.start(PlannerRequest("look around", **more), caller)).run_id
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=caller)
        return run_id

    return str(use(place, act, script=place.script))


@both_stores
def test_a_users_runs_and_spending_are_found_by_a_command(place: Place, command: Command) -> None:
    annas, own = start(place, says("hers"), caller=ANNA), start(place, says("mine"))
    for words, found in (
        (("runs", "--all"), [own]),
        (("runs", "--principal", "anna"), [annas]),
        (("runs", "--everyone"), [own, annas]),
        (("runs", "--everyone", "--status", "completed"), [own, annas]),
        (("runs", "--everyone", "--status", "paused"), []),
        (("runs", "--everyone", "--since", "1h"), [own, annas]),
        (("runs", "--everyone", "--since", "2999-01-01"), []),
        (("runs", "--everyone", "--model", "no-such-model"), []),
    ):
        assert [each["run_id"] for each in command.json(*words)["runs"]] == found, words
    assert command.json("runs")["of_others"] == 1
    spent = {day["principal"]: day["spent"]["model_calls"] for day in command.json("budget", "--everyone")["days"]}
    assert spent == {"anna": 1, "local": 1}
    assert command.json("budget", "--principal", "anna")["spent"]["model_calls"] == 1
    assert command.json("budget", "--principal", "nobody")["spent"]["model_calls"] == 0
    assert [line.split()[:2] for line in command("runs", "--everyone").splitlines()] == [
        ["local", own[:8]],
        ["anna", annas],
    ]


@pytest.mark.unreplayed  # rows are changed by hand
def test_a_list_is_of_one_model_and_of_what_a_server_has(place: Place, command: Command) -> None:
    run_id = start(place, says("done"))
    for step, sent in place.rows("select id, sent from step where sent is not null"):
        asked = json.dumps(json.loads(sent) | {"model": "openai:small"})
        place.rows("update step set sent = ? where id = ?", asked, step)
    assert [each["run_id"] for each in command.json("runs", "--model", "openai:small")["runs"]] == [run_id]
    assert command.json("runs", "--model", "openai:large")["runs"] == []
    assert command.json("runs", "--worker", "4711")["runs"] == []
    assert "Server 4711 has no runs" in command("runs", "--worker", "4711")
    place.rows("update run set owner = 4711, outcome = null")
    assert [each["run_id"] for each in command.json("runs", "--worker", "4711")["runs"]] == [run_id]
    assert [each["run_id"] for each in command.json("runs", "--status", "queued")["runs"]] == [run_id]


def test_open_runs_are_told_apart_by_how_they_stand(place: Place, command: Command) -> None:
    waits = start(place, asks("Which?"), caller_tools=(ASK,))

    async def pause(app: App) -> str:
        run_id = (await app.runs.start(PlannerRequest("another", caller_tools=(ASK,)), ME)).run_id
        await rests(app, run_id)
        await app.control.pause(run_id, ME)
        return run_id

    paused = use(place, pause, script=place.script)
    for status, found in (("input_required", [waits]), ("paused", [paused]), ("working", [])):
        assert [each["run_id"] for each in command.json("runs", "--status", status)["runs"]] == found
    assert "stands still: It was paused" in command("runs", "--status", "paused")


@pytest.mark.unreplayed  # rows are changed by hand
def test_a_run_that_no_server_has_says_so_in_the_list_and_is_found_as_queued(place: Place, command: Command) -> None:
    run_id = start(place, asks("Which?"), caller_tools=(ASK,))
    assert command.json("runs", "--status", "queued")["runs"] == []
    place.rows("delete from waiting")
    place.rows("update run set owner = ?", ANY_SERVER)
    (queued,) = command.json("runs", "--status", "queued")["runs"]
    assert (queued["run_id"], queued["state"]) == (run_id, "queued")
    assert command.json("runs", "--status", "paused")["runs"] == []
    assert "stands still: No server moves it now" in command("runs")


@both_stores
@pytest.mark.unreplayed  # rows are changed by hand
async def test_a_queued_run_says_what_every_living_worker_lacks_for_it(place: Place, command: Command) -> None:
    run_id = await asyncio.to_thread(start, place, asks("Which?"), caller_tools=(ASK,))
    place.rows("delete from waiting")
    place.rows("update run set owner = ?, route = 'provider'", ANY_SERVER)
    slots, elsewhere = DriveMode(slots=4), place.root / "other"
    elsewhere.mkdir()

    async def told() -> tuple[str, str, list[str]]:
        (run,) = (await asyncio.to_thread(command.json, "runs", "--status", "queued"))["runs"]
        found = (await asyncio.to_thread(command.json, "doctor", "--offline"))["findings"]
        return (
            run["run_id"],
            " ".join(note for note in run["degraded"] if "No server goes on" in note),
            [each["text"] for each in found if each["matter"] == "workers"],
        )

    lacks_both = place.settings(workspaces=(elsewhere,))
    async with App.open(lacks_both, via="work", mode=slots) as worker:
        await worker.begin_work()
        queued, why, named = await told()
        assert queued == run_id
        assert why.endswith("it needs one with a provider (KAIROS_MODEL) and the workspace 'workspace'.")
        assert ["a provider (KAIROS_MODEL) and the workspace 'workspace' (1 run)" in text for text in named] == [True]
        async with App.open(place.settings(model="openai:small"), via="work", mode=DriveMode(slots=1)) as able:
            await able._context.store.register_owner(able.now())  # it lives, and does not look yet
            assert (await told())[1:] == ("", [])
            listed = await asyncio.to_thread(command, "runs", "--status", "queued")
            assert "stands still: A living server has its workspace and route" in listed


def test_another_principals_run_is_found_by_its_whole_id_or_with_its_principal(place: Place, command: Command) -> None:
    annas = start(place, says("hers"), caller=ANNA)
    for words in (("show", annas), ("show", annas[:9], "--principal", "anna"), ("show", "last", "--principal", "anna")):
        assert command.json(*words)["run_id"] == annas
    with pytest.raises(UnknownRun) as refused:
        command("show", annas[:9])
    assert "--everyone" in refused.value.hint
    assert "--principal" in refused.value.hint


def test_whatever_an_id_names_is_shown_with_what_it_is(place: Place, command: Command) -> None:
    async def act(app: App) -> str:
        run_id = await app.runs.start_call("edit_file", EDIT, ANNA)
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=ANNA)
        await app.mandates.save({"id": "tidy", "goal": "Tidy up.", "observe": ["list_files"]}, ANNA)
        return run_id

    run_id = use(place, act)
    ((key, digest),) = place.rows("select key, digest from approval")
    step = command.json("show", f"{run_id}/{key.removesuffix('/approval')}")
    assert (step["kind"], step["run_id"], step["name"], step["principal"]) == ("step", run_id, "edit_file", "anna")
    for name in (f"{run_id}/{key}", digest, digest[:16]):
        shown = command.json("show", name)
        assert (shown["kind"], shown["run_id"], shown["key"], shown["verdict"]) == ("approval", run_id, key, None)
        assert "-alpha" in shown["preview"]
    for name in ("tidy", "mandate:tidy"):
        assert command.json("show", name)["mandate"]["goal"] == "Tidy up."
    assert command.json("show", run_id)["run_id"] == run_id
    assert f"approval {key} of run {run_id}" in command("show", digest)


def test_a_task_is_shown_by_its_id(place: Place, command: Command) -> None:
    run_id = start(place, says("done"))

    async def act(app: App) -> str:
        from kairos_mcp.core.already_read import NOTHING_READ

        return (await app.tasks.create(run_id, NOTHING_READ, replace(ME, client="a-client"), attached=True)).id

    shown = command.json("show", use(place, act))
    assert (shown["kind"], shown["run_id"], shown["client"]) == ("task", run_id, "a-client")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("show", "nothing-of-that-name"), UnknownRun),
        (("show", "{run}/round-9"), NotFound),
        (("show", "{run}/task-1"), NotFound),
        (("show", "{run}", "--principal", "anna"), UnknownRun),
    ],
)
def test_what_no_id_names_is_refused(
    place: Place, command: Command, words: tuple[str, ...], error: type[Exception]
) -> None:
    run_id = start(place, says("done"))
    with pytest.raises(error):
        command(*(word.format(run=run_id) for word in words))


@pytest.mark.parametrize(
    "words",
    [
        ("budget", "--days", "--everyone"),
        ("budget", "--everyone", "--principal", "anna"),
        ("budget", "last", "--days"),
        ("budget", "last", "--since", "3d"),
        ("budget", "--trust-clock", "--days"),
        ("budget", "--since", "yesterday"),
        ("runs", "--prune", "--everyone"),
        ("runs", "--prune", "--status", "paused"),
        ("runs", "--everyone", "--principal", "anna"),
        ("runs", "--since", "3"),
        ("show", "last", "--open", "--json"),
        ("show", "last", "--open", "--view", "calls"),
    ],
    ids=" ".join,
)
def test_an_option_that_would_have_no_effect_is_refused(place: Place, command: Command, words: tuple[str, ...]) -> None:
    start(place, says("done"))
    with pytest.raises(BadArguments):
        command(*words)


@pytest.mark.unreplayed  # rows are changed by hand
def test_what_a_killed_server_may_have_used_is_shown_apart(place: Place, command: Command) -> None:
    run_id = start(place, reads("a.txt"), says("done"))
    assert "at_bound" not in command.json("budget", run_id)
    lost = json.dumps([0, 1, 700, 300, 1000, 0, 0, 0])
    ((step, fence, shared),) = place.rows("select id, fence, shared from step where path = 'round-1'")
    place.rows(
        "insert into attempt(step, fence, at, held, sent, shared, ended, lost, waits_outside)"
        " values (?, ?, 1, '[]', null, ?, 'unknown', ?, 0)",
        *(step, fence, shared, lost),
    )
    for words in (("budget", run_id), ("budget",)):
        bound = command.json(*words)["at_bound"]
        assert (bound["model_calls"], bound["total_tokens"]) == (1, 1000), words
        assert "of unknown outcome, at their bounds: 1 call, 1,000 tokens" in command(*words)


@pytest.mark.unreplayed  # rows are changed by hand
def test_a_lost_tool_call_is_not_counted_among_lost_model_calls(place: Place, command: Command) -> None:
    run_id = start(place, reads("a.txt"), says("done"))
    insert = (
        "insert into attempt(step, fence, at, held, sent, ended, lost, waits_outside)"
        " select id, fence, 1, '[]', null, 'unknown', '[]', 0 from step where path = ?"
    )
    for path, count in (("round-1/call-1", 0), ("round-1", 1)):
        place.rows(insert, path)
        assert sum("lost: charged" in note for note in command.json("show", run_id)["degraded"]) == count
