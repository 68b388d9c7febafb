"""What a person does on the page is in the rows, and on the disk; each decision is about what was on the screen."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from approvals.test_commands import ran
from support import postgres
from support.app import ME, Place, reads, rests, says, start_run
from support.page import Visitor, served_page
from support.page_runs import approve_in_a_dialog, ask_to_write, writes
from support.reviewers import open_asking_app, waiting
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.mandate import parse_mandate
from kairos_mcp.core.run_spec import PlannerRequest

KEY = "round-1/call-1/approval"
PET = {
    "kind": "http_tool",
    "name": "pet",
    "description": "A pet.",
    "url": "https://pets.example/pets",
    "effect": "read",
}


@pytest.fixture
def desk(place: Place) -> Iterator[Visitor]:
    """The page over this test's place, with its script."""
    place.script.touch()
    environ = {"KAIROS_SCRIPT": str(place.script)}
    environ |= {f"KAIROS_{name.upper()}": value for name, value in postgres.named_place().items()}
    with served_page(place.home, "--workspace", str(place.workspace), environ=environ) as visitor:
        yield visitor


def ended(place: Place, run_id: str) -> bool:
    return bool(place.rows("select 1 from run where id = ? and outcome is not null", run_id))


def verdicts(place: Place) -> list[tuple[Any, ...]]:
    return place.rows("select verdict, by, through, client, feedback from approval order by rowid")


def test_an_approval_is_of_what_was_shown_and_the_run_goes_on(place: Place) -> None:
    run_id = asyncio.run(ask_to_write(place))
    with served_page(place.home) as desk:
        item = desk.waiting(run_id)
        other = desk.acts("approve", run=run_id, key=KEY, digest="0" * 64)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "approval_mismatch")
        assert not (place.workspace / "new.txt").exists()
        done = desk.does("approve", run=run_id, key=KEY, digest=item["digest"])
        assert (done["run_id"], done["said"]) == (run_id, "Approved. It goes on here.")
        wait_until(lambda: ended(place, run_id))
        assert (place.workspace / "new.txt").read_text() == "new\n"
        assert verdicts(place) == [("approve", "local", "page", "page", None)]
        again = desk.acts("deny", run=run_id, key=KEY, digest=item["digest"])
        assert (again.status_code, again.json()["error"]["code"]) == (409, "already_answered")


def test_a_denial_brings_its_words_to_the_model(place: Place) -> None:
    run_id = asyncio.run(ask_to_write(place))
    with served_page(place.home) as desk:
        digest = desk.waiting(run_id)["digest"]
        desk.does("deny", run=run_id, key=KEY, digest=digest, feedback="Use notes.txt instead.")
        wait_until(lambda: ended(place, run_id))
        steps = {step["path"]: step for step in desk.read(f"run?run={run_id}")["steps"]}
        assert "Use notes.txt instead." in steps["round-1/call-1"]["text"]
        assert not (place.workspace / "new.txt").exists()


def test_what_can_t_be_undone_is_approved_by_its_name(place: Place) -> None:
    async def ask() -> str:
        async with open_asking_app(place) as app:
            return await waiting(app, place)

    run_id = asyncio.run(ask())
    with served_page(place.home, "--workspace", str(place.workspace)) as desk:
        item = desk.waiting(run_id)
        assert (item["name"], item["effect"]) == ("ask_person", "irreversible")
        shown = {"run": run_id, "key": item["key"], "digest": item["digest"]}
        for typed in ({}, {"name": "ask"}):
            refused = desk.acts("approve", **shown, **typed)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_arguments")
        assert verdicts(place)[0][0] is None
        desk.does("approve", **shown, name="ask_person")
        assert verdicts(place)[0][0] == "approve"


@pytest.mark.sandbox
def test_of_a_stage_the_files_that_are_named_are_applied_and_no_others(place: Place, desk: Visitor) -> None:
    run_id = asyncio.run(ask_to_write(place, writes("other.txt", "other\n"), says("done"), stage=True))
    item = desk.waiting(run_id)
    assert item["files"] == ["new.txt", "other.txt"]
    shown = {"run": run_id, "key": item["key"], "digest": item["digest"]}
    for files in ([], ["none.txt"]):
        assert desk.acts("approve", **shown, files=files).status_code == 400
    desk.does("approve", **shown, files=["other.txt"])
    wait_until(lambda: ended(place, run_id))
    assert sorted(path.name for path in place.workspace.glob("*.txt") if path.name in item["files"]) == ["other.txt"]
    assert place.rows("select verdict, through, files from approval") == [("approve", "page", '["other.txt"]')]


def test_what_a_dialog_showed_is_told_by_the_page_its_download_and_show(place: Place) -> None:
    run_id = asyncio.run(approve_in_a_dialog(place))
    with served_page(place.home) as desk:
        (step,) = [step for step in desk.read(f"run?run={run_id}")["steps"] if "decided" in step]
        exported = desk.get(f"api/export?run={run_id}").text.splitlines()
    (decision,) = [line for line in map(json.loads, exported) if line["line"] == "decision"]
    shown = decision["shown"]
    assert re.match(r"2 of 2 lines \(unknown, 60x24\) for \d", shown)
    assert step["decided"][0]["shown"] == shown
    calls = ran("show", run_id, "--view", "calls", "--home", str(place.home)).stdout
    assert f"approve (elicitation, which showed {shown})" in calls


def test_a_run_is_downloaded_as_the_command_exports_it(place: Place, tmp_path: Path) -> None:
    run_id = asyncio.run(ask_to_write(place, goal="make <it>"))
    with served_page(place.home) as desk:
        answer = desk.get(f"api/export?run={run_id}")
        stranger = Visitor(desk.url, place.home).get(f"api/export?run={run_id}")
        assert (stranger.status_code, desk.get("api/export?run=run-0").status_code) == (401, 404)
    assert answer.headers["content-disposition"] == f'attachment; filename="{run_id}.jsonl"'
    assert (answer.headers["content-type"], answer.headers["x-content-type-options"]) == (
        "application/jsonl",
        "nosniff",
    )
    assert ran("export", run_id, "--home", str(place.home)).stdout == answer.text
    (tmp_path / "run.jsonl").write_bytes(answer.content)
    assert ran("replay", str(tmp_path / "run.jsonl")).returncode == 0


def test_the_list_the_count_and_the_inbox_name_the_same_runs(place: Place) -> None:
    """Those that the command `inbox` names: an approval waits, in a run that moves or is paused; or a pause alone."""
    asked, both, paused, ended = (asyncio.run(ask_to_write(place, goal=f"make {n}")) for n in range(4))
    with served_page(place.home, "--workspace", str(place.workspace)) as desk:
        for run_id in (both, paused):
            desk.does("pause", run=run_id)
        desk.does("deny", run=paused, key=KEY, digest=desk.waiting(paused)["digest"])
        desk.does("cancel", run=ended)
        rows = {row["run_id"]: row for row in desk.read("runs")["rows"]}
        assert {run_id for run_id, row in rows.items() if row["waits_for_person"]} == {asked, both, paused}
        assert [rows[run_id]["status"] for run_id in (asked, both, paused)] == ["input_required", "paused", "paused"]
        waits = desk.read("waits")
        assert waits["count"] == 3
        assert {each["run"]["run_id"]: len(each["items"]) for each in waits["runs"]} == {asked: 1, both: 1, paused: 0}
        with desk.line() as events:
            assert next(data["waits"] for event, data, _ in events if event == "runs") == 3
        shown = desk.read(f"run?run={paused}")["run"]
        assert shown["next"]["why"] == "It was paused: somebody asked for it"
        assert shown["held_up_by"] == []  # no note of another matter
        desk.does("resume", run=paused)
        wait_until(lambda: desk.read("waits")["count"] == 2)


@pytest.mark.parametrize("scope", ["run", "project"])
def test_an_approval_that_is_remembered_asks_no_second_time(place: Place, scope: str) -> None:
    run_id = asyncio.run(ask_to_write(place, writes("new.txt", "newer\n"), says("done")))
    with served_page(place.home) as desk:
        item = desk.waiting(run_id)
        assert item["always"] == {"covers": "write_file: new.txt", "pattern": None}
        desk.does("approve", run=run_id, key=KEY, digest=item["digest"], always=scope)
        wait_until(lambda: ended(place, run_id))
        assert (place.workspace / "new.txt").read_text() == "newer\n"
        listed = desk.read("rules")["rules"]
        assert [(rule["tool"], rule["path"]) for rule in listed] == (
            [("write_file", "new.txt")] if scope == "project" else []
        )
        if scope == "project":
            desk.does("rule_remove", rule=listed[0]["rule"])
            assert desk.read("rules")["rules"] == []


def test_what_the_inbox_shows_is_decided_one_after_another(place: Place) -> None:
    runs = [asyncio.run(ask_to_write(place, goal=f"make {n}")) for n in range(2)]
    with served_page(place.home) as desk:
        waits = desk.read("waits")
        assert [each["run"]["run_id"] for each in waits["runs"]] == runs
        for n, each in enumerate(waits["runs"]):
            (item,) = each["items"]
            assert (item["key"], item["name"]) == (KEY, "write_file")
            assert "+new" in item["preview"]
            desk.does("deny", run=each["run"]["run_id"], key=KEY, digest=item["digest"])
            assert desk.read("waits")["count"] == 1 - n


def test_a_living_server_goes_on_with_what_is_decided(place: Place) -> None:
    """The page stores the decision; the server that has the run makes the call, and the page's process owns nothing."""

    async def serve_while_decided() -> None:
        settings = place.settings(writes("new.txt", "new\n"), says("done"))
        async with App.open(settings, via="mcp") as app:
            run_id = (await app.runs.start(PlannerRequest("make it", tools=("write_file",)), ME)).run_id
            await rests(app, run_id)
            said = await asyncio.to_thread(decide, run_id)
            assert said == "Approved. A server of its folder goes on with it."
            await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)

    def decide(run_id: str) -> str:
        with served_page(place.home, "--workspace", str(place.workspace)) as desk:
            said = desk.does("approve", run=run_id, key=KEY, digest=desk.waiting(run_id)["digest"])["said"]
            wait_until(lambda: ended(place, run_id))
            return str(said)

    asyncio.run(serve_while_decided())
    assert (place.workspace / "new.txt").read_text() == "new\n"
    assert "command" not in [via for (via,) in place.rows("select via from owner where id in (select owner from run)")]


def test_a_run_that_is_started_here_is_left_to_a_living_server(place: Place) -> None:
    async def serve_while_started() -> str:
        async with App.open(place.settings(says("done"), says("done")), via="mcp") as app:
            first = (await app.runs.start(PlannerRequest("look first"), ME)).run_id  # now it is known as a server
            await app.runs.wait([first], until="done", wait_s=20, caller=ME)
            run_id = await asyncio.to_thread(start)
            await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
            return run_id

    def start() -> str:
        environ = {"KAIROS_SCRIPT": str(place.script)}
        with served_page(place.home, "--workspace", str(place.workspace), environ=environ) as desk:
            done = desk.does("start", goal="look around")
            assert done["said"] == "Started. A server of its folder goes on with it."
            return str(done["run_id"])

    run_id = asyncio.run(serve_while_started())
    (found,) = place.rows("select via, client, outcome is not null from run where id = ?", run_id)
    assert found == ("page", "page", 1)


def test_a_run_is_not_left_to_a_server_that_lacks_its_route(place: Place) -> None:
    def start() -> str:
        environ = {"KAIROS_SCRIPT": str(place.script)}
        with served_page(place.home, "--workspace", str(place.workspace), environ=environ) as desk:
            run_id = str(desk.does("start", goal="look around")["run_id"])
            wait_until(lambda: ended(place, run_id))
            return run_id

    async def serve_while_started() -> str:
        async with App.open(place.settings(), via="mcp") as app:
            await start_run(app, "wait here", route="caller")  # now it is known as a server
            place.script.write_text(json.dumps(says("done")) + "\n")
            return await asyncio.to_thread(start)

    run_id = asyncio.run(serve_while_started())
    # It has had one owner: the page's process from the first, and not only after it was left to that server.
    assert place.rows("select via, route, fence from run where id = ?", run_id) == [("page", "scripted", 1)]


def test_runs_are_started_forked_and_ended(place: Place, desk: Visitor) -> None:
    lines = (reads("a.txt"), says("done"), says("done again"))
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    started = desk.does("start", goal="look around", limits={"rounds": 3})["run_id"]
    wait_until(lambda: ended(place, started))
    found = desk.read(f"run?run={started}")
    assert (found["run"]["goal"], found["run"]["limits"]["rounds"]) == ("look around", 3)
    forked = desk.does("fork", run=started, round="round-1", goal="go on otherwise")["run_id"]
    wait_until(lambda: ended(place, forked))
    assert place.rows("select json_extract(spec, '$.continues') from run where id = ?", forked) == [(started,)]
    assert [row["run_id"] for row in desk.read("search?q=otherwise")["rows"]] == [forked]
    continued = desk.does("fork", run=started, goal="go on")["run_id"]  # without a round: from its end
    wait_until(lambda: ended(place, continued))
    assert place.rows("select json_extract(spec, '$.continues') from run where id = ?", continued) == [(started,)]
    refused = desk.acts("fork", run=started, round="round-9", goal="x")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_arguments")


def test_a_run_is_paused_resumed_extended_and_cancelled(place: Place) -> None:
    run_id = asyncio.run(ask_to_write(place))
    with served_page(place.home) as desk:
        desk.does("pause", run=run_id)
        assert desk.read(f"run?run={run_id}")["run"]["status"] == "paused"
        before = desk.read(f"run?run={run_id}")["run"]["limits"]["rounds"]
        desk.does("extend", run=run_id, limits={"rounds": 2})
        desk.does("resume", run=run_id)
        wait_until(lambda: desk.read(f"run?run={run_id}")["run"]["limits"]["rounds"] == before + 2)
        assert desk.read(f"run?run={run_id}")["run"]["status"] == "input_required"
        desk.does("cancel", run=run_id)
        wait_until(lambda: ended(place, run_id))
        assert desk.read(f"run?run={run_id}")["run"]["status"] == "cancelled"
        late = desk.acts("cancel", run=run_id)
        assert late.status_code == 200  # it is what was wanted


def test_what_waits_for_the_calling_model_is_answered(place: Place) -> None:
    async def start_by_hand() -> str:
        async with App.open(place.settings(), via="mcp") as app:
            run_id = (await app.runs.start(PlannerRequest("say it", route="caller"), ME)).run_id
            await rests(app, run_id)
            return run_id

    run_id = asyncio.run(start_by_hand())
    with served_page(place.home, "--workspace", str(place.workspace)) as desk:
        assert desk.waiting(run_id)["kind"] == "completion"
        item = desk.read(f"item?run={run_id}&key=round-1")["item"]
        assert item["messages"][-1]["role"] == "user"
        desk.does("answer", run=run_id, answers={"round-1": {"content": "It is said."}})
        wait_until(lambda: ended(place, run_id))
        assert desk.read(f"run?run={run_id}")["run"]["summary"] == "It is said."
        assert place.rows("select distinct by_route from answer") == [("page",)]


MANDATE = {"id": "tidy", "goal": "keep it tidy", "schedule": {"rule": "0 9 * * 1-5"}}


def test_a_mandate_is_saved_edited_and_removed_as_it_was_shown(place: Place, desk: Visitor) -> None:
    assert desk.does("mandate_save", mandate=MANDATE)["said"] == "Saved as tidy."
    shown = desk.read("mandate?id=tidy")
    assert shown["schedule_words"] == "At 09:00 on Monday through Friday (UTC)"
    assert parse_mandate(shown["mandate"]).digest == shown["digest"]
    edited = {**shown["mandate"], "goal": "keep it tidier"}
    stale = desk.acts("mandate_edit", id="tidy", digest="0" * 64, mandate=edited)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale")
    wrong = desk.acts("mandate_edit", id="tidy", digest=shown["digest"], mandate={**edited, "gaol": 1})
    assert wrong.status_code == 400
    assert "gaol" in wrong.json()["error"]["message"]
    desk.does("mandate_edit", id="tidy", digest=shown["digest"], mandate=edited)
    now = desk.read("mandate?id=tidy")
    assert now["goal"] == "keep it tidier"
    assert desk.acts("mandate_remove", id="tidy", digest=shown["digest"]).status_code == 409
    desk.does("mandate_remove", id="tidy", digest=now["digest"])
    assert desk.read("mandates")["mandates"] == []


def test_a_definition_is_removed_as_it_was_shown(place: Place) -> None:
    async def propose() -> None:
        async with App.open(place.settings(), via="mcp") as app:
            await app.tools.propose(PET, ME)

    asyncio.run(propose())
    with served_page(place.home, "--workspace", str(place.workspace)) as desk:
        (shown,) = desk.read("waits")["definitions"]
        other = desk.acts("tool_remove", address=shown["address"], pin="0" * 64)
        assert other.status_code == 404, other.text
        assert place.rows("select state from definition") == [("pending",)]
        desk.does("tool_remove", address=shown["address"], pin=shown["hash"])
        assert desk.read("waits")["definitions"] == []
    assert place.rows("select state from definition") == [("removed",)]


def test_nothing_is_started_where_nobody_would_answer(place: Place) -> None:
    with served_page(place.home, "--workspace", str(place.workspace)) as desk:
        assert desk.read("me")["route"] is None
        refused = desk.acts("start", goal="look around")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "config_error")
        assert desk.read("runs") == {"rows": [], "more": False}


def test_a_day_s_shares_are_told_apart_by_project(place: Place, desk: Visitor) -> None:
    place.script.write_text(json.dumps(says("done")) + "\n")
    run_id = desk.does("start", goal="look around")["run_id"]
    wait_until(lambda: ended(place, run_id))
    (day,) = desk.read("budget")["days"]
    assert [(share["route"], share["workspace"]) for share in day["by"]] == [("scripted", str(place.workspace))]
    assert day["spent"]["model_calls"] == 1


def test_teams_plans_and_mandates_are_started(place: Place, desk: Visitor) -> None:
    """What becomes of them is the script's matter: here they are rows, on a route that needs no client."""
    place.script.write_text(json.dumps(says("no plan")) + "\n")
    desk.does("mandate_save", mandate=MANDATE)
    acts = (
        ("start_team", {"goal": "look", "max_parallel": 2}),
        ("plan", {"goal": "look"}),
        ("mandate_run", {"id": "tidy"}),
    )
    started = {act: desk.does(act, **fields)["run_id"] for act, fields in acts}
    found = place.rows("select id, flow, route, via, mandate from run order by n")
    assert found == [
        (started["start_team"], "team", "scripted", "page", None),
        (started["plan"], "plan", "scripted", "page", None),
        (started["mandate_run"], "ooda_run", "scripted", "page", "tidy"),
    ]
    assert [row["run_id"] for row in desk.read("mandate?id=tidy")["runs"]] == [started["mandate_run"]]


def test_a_run_is_sent_to_another_route(place: Place, desk: Visitor) -> None:
    async def start_by_hand() -> str:
        async with App.open(place.settings(says("Said by the script.")), via="mcp") as app:
            run_id = (await app.runs.start(PlannerRequest("say it", route="caller"), ME)).run_id
            await rests(app, run_id)
            return run_id

    run_id = asyncio.run(start_by_hand())
    desk.does("reroute", run=run_id, route="scripted")
    wait_until(lambda: ended(place, run_id))
    assert desk.read(f"run?run={run_id}")["run"]["summary"] == "Said by the script."


def test_whoever_owns_the_state_folder_decides_about_the_runs_of_all_in_it(place: Place) -> None:
    alice = Caller("alice", client="hers")

    async def start_as_alice() -> str:
        async with App.open(place.settings(writes("new.txt", "new\n"), says("done")), via="mcp") as app:
            run_id = (await app.runs.start(PlannerRequest("make it", tools=("write_file",)), alice)).run_id
            await app.runs.wait([run_id], until="rest", wait_s=20, caller=alice)
            return run_id

    run_id = asyncio.run(start_as_alice())
    with served_page(place.home) as desk:
        (row,) = desk.read("runs")["rows"]
        assert (row["run_id"], row["principal"], row["client"]) == (run_id, "alice", "hers")
        desk.does("approve", run=run_id, key=KEY, digest=desk.waiting(run_id)["digest"])
        wait_until(lambda: ended(place, run_id))
    assert verdicts(place) == [("approve", "alice", "page", "page", None)]
