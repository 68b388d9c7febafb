"""Whose a run is: a principal's and a workspace's. What one folder started, another neither joins nor answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import ME, Place, place_in, rests
from support.commands import command
from support.reviewers import Person, accepts, connect_person
from support.sampling_clients import connect_client

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, PathDenied, UnknownMandate
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PlannerRequest

BY_HAND = Caller(via="command")
TENANT = Caller(principal="tenant")
WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}
ENDS = {"content": "Written.", "finish": "stop"}
TIDY = {"id": "tidy", "goal": "Keep a.txt tidy.", "observe": [{"tool": "read_file", "args": {"path": "a.txt"}}]}
WEEKLY = {**TIDY, "id": "weekly", "schedule": {"rule": "0 7 * * 1", "time_zone": "UTC", "catch_up": "once"}}
WEEK_MS = 7 * 86_400_000


@dataclass(frozen=True)
class Two:
    """A state folder and two projects, each with a file of its own."""

    place: Place

    @property
    def one(self) -> Path:
        return self.place.workspace

    @property
    def other(self) -> Path:
        return self.place.root / "other"

    @asynccontextmanager
    async def server(self, *folders: Path, lines: tuple[Any, ...] = (), via: str = "mcp") -> AsyncIterator[App]:
        async with App.open(replace(self.place.settings(*lines), workspaces=folders), via=via) as app:
            yield app

    def run_command(self, *words: str, folder: Path | None = None) -> Any:
        environ = {"KAIROS_HOME": str(self.place.home)} | postgres.environ_of(self.place.root)
        return command(*words, folder=folder or self.one, environ=environ)


@pytest.fixture
def two(tmp_path: Path) -> Two:
    found = Two(place_in(tmp_path / "place"))
    found.other.mkdir()
    (found.other / "a.txt").write_text("the other's\n")
    return found


async def start_run(app: App, caller: Caller = ME, **more: Any) -> str:
    run_id = (await app.runs.start(PlannerRequest("Think.", **more), caller)).run_id
    await app.runs.wait([run_id], until="rest", wait_s=20, caller=caller)
    return run_id


async def test_an_identical_start_in_another_project_makes_a_run_of_its_own(two: Two) -> None:
    async with two.server(two.one) as here:
        mine = await start_run(here)
        assert await start_run(here) == mine
        async with two.server(two.other) as there:
            assert await start_run(there) != mine
    assert sorted(two.place.rows("select workspace from run")) == sorted([(str(two.one),), (str(two.other),)])


async def test_an_identical_start_without_a_workspace_joins_only_its_like(two: Two) -> None:
    async with two.server() as nowhere, two.server(two.one) as here:
        run_id = await start_run(nowhere)
        assert await start_run(nowhere) == run_id
        assert await start_run(here) != run_id
    assert ("",) in two.place.rows("select workspace from run")


async def test_the_default_workspace_and_its_name_are_the_same_start(two: Two) -> None:
    async with two.server(two.one, two.other) as app:
        run_id = await start_run(app)
        assert await start_run(app, workspace=str(two.one)) == run_id
        assert await start_run(app, workspace=two.one.name) == run_id
        assert await start_run(app, workspace=two.other.name) != run_id


async def test_a_key_belongs_to_its_workspace(two: Two) -> None:
    async with two.server(two.one) as here, two.server(two.other) as there:
        mine, theirs = await start_run(here, key="k"), await start_run(there, key="k")
        assert mine != theirs
        assert (await start_run(here, key="k"), await start_run(there, key="k")) == (mine, theirs)
    assert len(two.place.rows("select 1 from run")) == 2


async def test_a_run_is_looked_at_paused_and_cancelled_from_anywhere_and_answered_only_at_home(two: Two) -> None:
    async with two.server(two.one) as here, two.server(two.other) as there:
        run_id = await start_run(here)
        seen = await there.runs.report(run_id, ME)
        assert (seen.status, seen.workspace) == ("input_required", str(two.one))
        assert seen.waiting[0]["messages"]
        before = two.place.rows("select count(*) from answer")
        for act in (
            there.answers.submit(run_id, {"round-1": {"content": "no"}}, ME),
            there.answers.submit(run_id, {}, ME),
            there.control.request(run_id, "resume", ME),
            there.control.reroute(run_id, "caller", ME),
            there.answers.settle(run_id, "round-1/call-1/settle", "reattempt", ME),
            there.answers.decide(run_id, "round-1/call-1/approval", "approve", None, ME),
        ):
            with pytest.raises(PathDenied) as refused:
                await act
            assert (refused.value.code, refused.value.run_id) == ("path_denied", run_id)
            assert str(two.one) in refused.value.message
        assert two.place.rows("select count(*) from answer") == before
        assert two.place.rows("select count(*) from inbox") == [(0,)]
        await there.control.pause(run_id, ME)
        assert (await rests(there, run_id)).status == "paused"
        await there.control.cancel(run_id, ME)
        assert (await rests(there, run_id)).status == "cancelled"


async def test_a_persons_command_answers_a_run_of_any_folder(two: Two) -> None:
    async with two.server(two.one) as here:
        run_id = await start_run(here)
    said = two.run_command("answer", run_id, "round-1", '{"content": "Done.", "finish": "stop"}', folder=two.other)
    assert said.code == 0, said.err
    ((outcome,),) = two.place.rows("select outcome from run where id = ?", run_id)
    assert json.loads(outcome)["summary"] == "Done."


async def test_a_run_without_a_workspace_is_answered_anywhere(two: Two) -> None:
    async with two.server() as nowhere, two.server(two.other) as there:
        run_id = await start_run(nowhere)
        await there.answers.submit(run_id, {"round-1": {"content": "Done.", "finish": "stop"}}, ME)
        assert (await rests(there, run_id)).status == "completed"


async def test_another_principal_is_told_the_last_part_of_a_folder_alone(two: Two) -> None:
    async with two.server(two.one) as here, two.server(two.other) as there:
        run_id = await start_run(here, TENANT)
        assert (await there.runs.report(run_id, TENANT)).workspace == two.one.name
        with pytest.raises(PathDenied) as refused:
            await there.answers.submit(run_id, {"round-1": {"content": "no"}}, TENANT)
        assert str(two.one) not in str(refused.value)
        assert two.one.name in refused.value.message


async def test_a_dialog_of_another_folders_run_is_never_shown(two: Two) -> None:
    """The client of another project would approve a change that its user does not see."""
    async with two.server(two.one, lines=(WRITES, ENDS)) as here, two.server(two.other) as there:
        run_id = await start_run(here, tools=("write_file",))
        assert [item["kind"] for item in (await here.runs.report(run_id, ME)).waiting] == ["approval"]
        eliciting = Caller(elicits=True)
        run = await here.runs.find(run_id, eliciting)
        waiting = await here.runs.what_waits(run)
        assert await here.answers.open_questions(run, waiting, eliciting, ())
        assert not await there.answers.open_questions(run, waiting, eliciting, ())


async def test_the_model_of_another_folders_client_is_asked_nothing_of_a_run(two: Two) -> None:
    """It would be paid, and shown files, by somebody who works on something else."""
    sampling = Caller(samples=True)
    async with two.server(two.one) as here, two.server(two.other) as there:
        run_id = (await here.runs.start(PlannerRequest("Think.", route="sampling"), sampling)).run_id
        (run,) = await here.runs.wait([run_id], until="rest", wait_s=20, caller=sampling)
        waiting = await here.runs.what_waits(run)
        assert [ask.path for ask in await here.client_requests.open_requests(run, waiting)] == ["round-1"]
        assert await there.client_requests.open_requests(run, waiting) == []


async def test_what_continues_a_run_works_in_its_folder(two: Two) -> None:
    async with two.server(two.one) as here, two.server(two.other, two.one) as both, two.server(two.other) as there:
        run_id = await start_run(here)
        await here.control.cancel(run_id, ME)
        await rests(here, run_id)
        with pytest.raises(BadArguments) as refused:
            await start_run(there, continues=run_id)
        assert str(two.one) in refused.value.message
        with pytest.raises(BadArguments):
            await start_run(both, continues=run_id, workspace=str(two.other))
        assert (await both.runs.report(await start_run(both, continues=run_id), ME)).workspace == str(two.one)


async def test_lists_show_the_workspaces_at_hand_and_others_on_request(two: Two) -> None:
    async with two.server(two.one) as here, two.server(two.other) as there:
        mine, theirs = await start_run(here), await start_run(there)
        async with connect_client(there) as client:
            result = await client.ask("run_status")
            assert ([run["run_id"] for run in result["runs"]], result["elsewhere"]) == ([theirs], 1)
            (row,) = result["runs"]
            assert row.keys() == {
                *("run_id", "seq", "flow", "goal", "workspace", "created_at", "status", "stop_reason", "rounds"),
                *("waiting", "next"),
            }
            assert (row["goal"], row["workspace"]) == ("Think.", str(two.other))
            assert row["waiting"] == [{"key": "round-1", "kind": "completion"}]
            both = await client.ask("run_status", {"all": True})
            assert [run["run_id"] for run in both["runs"]] == [theirs, mine]
            assert "elsewhere" not in both
    (line, more) = two.run_command("runs", folder=two.other).out.splitlines()
    assert theirs.startswith(line.split()[0])
    assert more.startswith("1 run of other workspaces")
    waits = "Think. · waits for round-1 (completion) from the caller"
    assert all(word in line for word in ("other", " s ", "planner", "input_required", waits))
    lines = two.run_command("runs", "--all", folder=two.other).out.splitlines()
    assert all(whole.startswith(line.split()[0]) for whole, line in zip((theirs, mine), lines, strict=True))
    shown = two.run_command("show", mine, folder=two.other).out
    assert all(word in shown for word in ("Think.", "old", str(two.one)))


async def test_runs_that_wait_are_a_line_each_by_a_beginning_that_no_other_has(two: Two) -> None:
    async with two.server(two.one, lines=(WRITES, ENDS)) as app:
        await start_run(app, tools=("write_file",))
        for goal in ("Look around.", "x" * 90):
            await rests(app, (await app.runs.start(PlannerRequest(goal, route="caller"), ME)).run_id)
    for n, run_id in enumerate(("run-abcdef000001", "run-abcdef999999", "run-ffff00000000"), 1):
        two.place.rows("update run set id = ? where n = ?", run_id, n)
    long, look, change = two.run_command("runs").out.splitlines()
    for short, line in (("run-ffff", long), ("run-abcdef9", look), ("run-abcdef0", change)):
        assert line.split()[0] == short
        assert [word for word in (two.one.name, " s ", "planner", "input_required") if word not in line] == []
    assert f"{'x' * 79}… · waits for round-1 (completion) from the caller" in long
    assert "Look around. · waits for round-1 (completion) from the caller" in look
    assert "waits for round-1/call-1/approval (approval) from a person" in change
    two.run_command("pause", "run-abcdef9")
    assert "Look around. · waits to be resumed, then for round-1 (completion)" in two.run_command("runs").out


async def save_mandate(app: App, **more: Any) -> dict[str, Any]:
    return await app.mandates.save({**TIDY, **more}, ME)


async def test_a_mandate_belongs_to_the_folder_where_it_was_saved(two: Two) -> None:
    async with two.server(two.one) as here, two.server(two.other) as there:
        result = await save_mandate(here)
        assert result["workspace"] == str(two.one)
        with pytest.raises(UnknownMandate) as refused:
            await there.runs.start(CyclesRequest(MandateRef("tidy")), ME)
        assert str(two.one) in refused.value.message
        assert (await there.mandates.list_page(None, None, ME))["mandates"] == []
        assert (await there.mandates.list_page(None, None, ME))["elsewhere"] == 1
        assert [
            each["mandate_id"] for each in (await there.mandates.list_page(None, None, ME, everywhere=True))["mandates"]
        ] == ["tidy"]


async def test_two_folders_have_each_a_mandate_of_an_id_with_its_own_run_and_account(two: Two) -> None:
    async with two.server(two.one, two.other) as app:
        await save_mandate(app)
        await save_mandate(app, goal="Another.", workspace=str(two.other))
        with pytest.raises(BadArguments) as refused:
            await app.runs.start(CyclesRequest(MandateRef("tidy")), ME)
        assert all(str(folder) in refused.value.message for folder in (two.one, two.other))
        async with connect_client(app) as client:
            runs = [
                await client.ask("ooda_run", {"mandate_id": "tidy", "workspace": str(folder)})
                for folder in (two.one, two.other)
            ]
        assert [run["workspace"] for run in runs] == [str(two.one), str(two.other)]
        assert [run["goal"] for run in runs] == ["Keep a.txt tidy.", "Another."]
        page = (await app.mandates.list_page(None, None, ME))["mandates"]
        assert {each["workspace"]: each["run_id"] for each in page} == {run["workspace"]: run["run_id"] for run in runs}
    charged = two.place.rows("select name, workspace from account where scope = 'mandate' order by workspace")
    assert sorted(charged) in ([], sorted([("tidy", str(two.one)), ("tidy", str(two.other))]))


async def test_what_is_due_is_what_belongs_to_the_folders_at_hand(two: Two) -> None:
    async with two.server(two.one) as here, two.server(two.other) as there:
        await here.mandates.save(WEEKLY, ME)
        two.place.rows("update mandate set saved_at = saved_at - ?", WEEK_MS)
        assert [(due.mandate_id, due.workspace) for due in await here.schedules.list_due(None, ME)] == [
            ("weekly", str(two.one))
        ]
        assert await there.schedules.list_due(None, ME) == []


async def test_a_mandate_moves_to_another_folder_and_is_due_there(two: Two) -> None:
    async with two.server(two.one) as app:
        await app.mandates.save(WEEKLY, ME)
    two.place.rows("update mandate set saved_at = saved_at - ?", WEEK_MS)
    assert two.run_command("mandate", "edit", "weekly", "--workspace", str(two.other)).code == 0
    assert two.place.rows("select workspace from mandate") == [(str(two.other),)]
    async with two.server(two.one) as app:
        assert await app.schedules.list_due(None, ME) == []
    async with two.server(two.other) as app:
        assert [each.mandate_id for each in await app.schedules.list_due(None, ME)] == ["weekly"]


async def test_every_page_of_mandates_goes_on_where_the_last_one_ended(two: Two) -> None:
    async with two.server(two.one, two.other) as app:
        for number in range(30):
            for folder in (two.one, two.other):
                await save_mandate(app, id=f"m{number:02}", goal=f"Goal {number} " + "x" * 180, workspace=str(folder))
        found: list[tuple[str, str]] = []
        cursor = None
        while True:
            page = await app.mandates.list_page(None, cursor, ME)
            found += [(each["mandate_id"], each["workspace"]) for each in page["mandates"]]
            if (cursor := page["cursor"]) is None:
                break
        assert len(found) == len(set(found)) == page["total"] == 60


async def test_a_dialog_names_goal_age_and_folder(two: Two) -> None:
    async with two.server(two.one, lines=(WRITES, ENDS)) as app:
        person = Person([accepts(decision="deny")])
        async with connect_person(app, "2025-11-25", person) as client:
            await client.ask("planner_run", {"goal": "Write it.", "tools": ["write_file"]})
        (seen,) = person.seen
        about = seen.requested_schema["properties"]["decision"]["description"]
        assert all(word in about for word in ("Write it.", " s old", str(two.one)[:70]))  # a longer one is cut
