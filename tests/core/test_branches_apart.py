"""What befalls one branch of a run leaves the others alone; what a person wants of the run reaches all of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.app import ME, PERSON, WITHIN_S, Place, rests, says
from support.branches import Team, open_team_app

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.execution import running_steps

pytestmark = pytest.mark.unreplayed  # a flow of its own

TEAM = Team(tasks=3, synthesis=False)
REQUEST = PlannerRequest("go", tools=("read_file", "edit_file"), limits=Limits(rounds=30))


def of(task: int, number: int, turn: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The turn of a task in its round of this number."""
    return {"for": f"task-{task}/round-{number}", **turn, **more}


def edits(old: str, new: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "edit_file", "arguments": {"path": "a.txt", "old_string": old, "new_string": new}}]}


def reads(line: int = 1) -> dict[str, Any]:
    return {"tool_calls": [{"name": "read_file", "arguments": {"path": "b.txt", "start_line": line}}]}


def steps(place: Place) -> dict[str, bool]:
    """The steps by path, and whether each was answered."""
    found = place.rows("select path, answer.step is not null from step left join answer on answer.step = step.id")
    return {path: bool(is_answered) for path, is_answered in found}


async def until(app: App, run_id: str, path: str, *, answered: bool) -> None:
    """Return once there is a step at this path, or it is answered."""
    place = Place(app.settings.home.parent)
    async with asyncio.timeout(20):
        while steps(place).get(path) not in ((True,) if answered else (True, False)):
            await app.client_requests.wait_for_change(run_id, 0.2)


async def approve(app: App, run_id: str, key: str) -> None:
    await app.answers.decide(run_id, key, "approve", None, PERSON)


async def test_an_approved_call_is_made_while_another_branch_s_model_still_thinks(place: Place) -> None:
    lines = (
        of(1, 1, edits("alpha", "omega")),
        of(1, 2, says("one")),
        of(2, 1, says("two")),
        of(3, 1, reads(), delay_s=0.3),
        of(3, 2, says("three"), delay_s=60),
    )
    async with open_team_app(place.settings(*lines), TEAM) as app:
        run_id = (await app.runs.start(REQUEST, ME)).run_id
        await until(app, run_id, "task-1/round-1/call-1", answered=False)
        await until(app, run_id, "task-3/round-2", answered=False)
        assert (await app.runs.report(run_id, ME)).status == "input_required"
        await approve(app, run_id, "task-1/round-1/call-1/approval")
        await until(app, run_id, "task-1/round-2", answered=True)
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        assert not steps(place)["task-3/round-2"]
        await app.control.cancel(run_id, ME)
        assert (await rests(app, run_id)).status == "cancelled"


async def test_an_answer_that_comes_during_a_commit_goes_on_while_what_that_begins_is_performed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commits take a while, as on a database: the second task's answer comes while the first's is written."""
    lines = (
        of(1, 1, reads()),
        of(1, 2, says("one"), delay_s=60),
        of(2, 1, reads(), delay_s=0.2),
        of(2, 2, says("two")),
    )
    async with open_team_app(place.settings(*lines), Team(tasks=2, synthesis=False)) as app:
        submit = app._store.submit

        async def submit_slowly(job: Any, *, of_run: int | None = None) -> Any:
            result = await submit(job, of_run=of_run)
            known = steps(place)
            if "task-1/round-2" in known and not known["task-2/round-1"]:
                ((worker, _),) = app._context.pool.moving.values()
                async with asyncio.timeout(WITHIN_S):
                    while "task-2/round-1" in worker.state.pending:  # noqa: ASYNC110 - no event tells of its answer
                        await asyncio.sleep(0.005)
            return result

        monkeypatch.setattr(app._store, "submit", submit_slowly)
        monkeypatch.setattr(app._store.writer, "commit_at_once", lambda _job: None)
        run_id = (await app.runs.start(REQUEST, ME)).run_id
        await until(app, run_id, "task-2/round-2", answered=True)
        assert not steps(place)["task-1/round-2"]
        await app.control.cancel(run_id, ME)
        assert (await rests(app, run_id)).status == "cancelled"


async def test_a_failed_completion_is_repeated_while_another_branch_takes_turn_after_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt follows 10 ms after the one before."""
    delay_s = running_steps.retry_delay_s
    monkeypatch.setattr(running_steps, "retry_delay_s", lambda *step: None if delay_s(*step) is None else 0.01)
    turns = 500  # whose models and tools answer at once
    (place.workspace / "b.txt").write_text("".join(f"line {n}\n" for n in range(turns)))
    lines = (
        of(1, 1, {"error": {"code": "provider_busy", "message": "later", "retryable": True}}),
        of(2, 1, says("two")),
        *(of(3, turn, reads(turn)) for turn in range(1, turns)),
        of(3, turns, says("three")),
    )
    request = PlannerRequest("go", tools=REQUEST.tools, limits=Limits(rounds=3 * turns))
    settings = replace(place.settings(*lines), limits=Limits())  # by default a run has fewer rounds
    async with open_team_app(settings, TEAM) as app:
        run_id = (await app.runs.start(request, ME)).run_id
        await until(app, run_id, "task-1/round-1", answered=True)
        assert place.rows("select count(*) from attempt") == [(3,)]
        assert f"task-3/round-{turns}" not in steps(place)
        await app.control.cancel(run_id, ME)
        assert (await rests(app, run_id)).status == "cancelled"


async def test_a_cancel_reaches_every_branch(place: Place) -> None:
    """One thinks, one waits for a person, one has just begun a call's next round."""
    lines = (
        of(1, 1, says("never"), delay_s=60),
        of(2, 1, edits("alpha", "omega")),
        of(3, 1, reads()),
        of(3, 2, says("never"), delay_s=60),
    )
    async with open_team_app(place.settings(*lines), TEAM) as app:
        run_id = (await app.runs.start(REQUEST, ME)).run_id
        await until(app, run_id, "task-2/round-1/call-1", answered=False)
        await until(app, run_id, "task-3/round-2", answered=False)
        async with asyncio.timeout(5):
            await app.control.cancel(run_id, ME)
            assert (await rests(app, run_id)).status == "cancelled"
        before = steps(place)
        assert before["task-1/round-1"]
        assert before["task-3/round-2"]
        assert (place.workspace / "a.txt").read_text() == "alpha\n"
        assert (await app.runs.report(run_id, ME)).waiting == ()


async def test_a_pause_reaches_every_branch_and_what_is_under_way_ends(place: Place) -> None:
    lines = (
        of(1, 1, reads(), delay_s=1.5),
        of(1, 2, says("one")),
        of(2, 1, reads(), delay_s=1.5),
        of(2, 2, says("two")),
        of(3, 1, edits("alpha", "omega")),
        of(3, 2, says("three")),
    )
    async with open_team_app(place.settings(*lines), TEAM) as app:
        run_id = (await app.runs.start(REQUEST, ME)).run_id
        await until(app, run_id, "task-3/round-1/call-1", answered=False)
        await app.control.pause(run_id, ME)
        report = await rests(app, run_id)
        assert report.status == "paused"
        assert steps(place) == {
            "task-1/round-1": True,
            "task-2/round-1": True,
            "task-3/round-1": True,
            "task-3/round-1/call-1": False,
        }
        await approve(app, run_id, "task-3/round-1/call-1/approval")
        await rests(app, run_id)
        assert (place.workspace / "a.txt").read_text() == "alpha\n"  # it is paused
        await app.control.request(run_id, "resume", ME)
        assert (await rests(app, run_id)).status == "completed"
        assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_a_denial_ends_nothing_but_the_call(place: Place) -> None:
    lines = (
        of(1, 1, edits("alpha", "omega")),
        of(1, 2, says("denied, then")),
        of(2, 1, says("two")),
        of(3, 1, says("three")),
    )
    async with open_team_app(place.settings(*lines), TEAM) as app:
        run_id = (await app.runs.start(REQUEST, ME)).run_id
        report = await rests(app, run_id)
        assert [item["key"] for item in report.waiting] == ["task-1/round-1/call-1/approval"]
        await app.answers.decide(run_id, report.waiting[0]["key"], "deny", None, PERSON)
        assert (await rests(app, run_id)).status == "completed"
