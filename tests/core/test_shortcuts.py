"""What a run leaves out on its short way is left out only where nothing can be missed by it."""

from __future__ import annotations

import pytest
from support.app import ME, WITHIN_S, Place, reads, rests, says, start_run

from kairos_mcp.app import store_watcher
from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.execution import worker
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.commit import CommitPlan, Committed, Decided
from kairos_mcp.store.rows import Session

EDIT = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "a", "new_string": "b"}}
CONTROL = "insert into inbox(run, kind, body, principal, via, client, at) values (?, ?, '', 'local', 'cli', '', 1)"


# -- a run of which no tool has kept anything has nothing to forget


async def test_what_a_tool_has_kept_goes_with_the_answer_of_its_call(place: Place) -> None:
    (place.workspace / "a.txt").write_text("a\n")
    settings = place.settings({"tool_calls": [EDIT]}, says("done"), gate=(GateRule("edit_file", "allow"),))
    async with App.open(settings, via="mcp") as app:
        report = await rests(app, await start_run(app, tools=("edit_file",)))
        assert (report.status, [call["ok"] for call in report.calls]) == ("completed", [True])
    assert (place.workspace / "a.txt").read_text() == "b\n"
    assert place.rows("select name from tool_intent") == []


async def test_what_a_server_that_ended_has_kept_goes_with_the_end_of_the_run(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")
    place.rows("insert into tool_intent(run, name, body) select n, 'intent round-0/call-1', 'kept' from run")
    async with App.open(place.settings(), via="mcp") as app:
        await app.answers.submit(run_id, {"round-1": reads("a.txt")}, ME)
        await rests(app, run_id)
        await app.answers.submit(run_id, {"round-2": says("done")}, ME)
        assert (await rests(app, run_id)).status == "completed"
    assert place.rows("select name from tool_intent") == []


# -- a run that a transaction of this process has taken has an empty inbox


async def test_after_an_error_it_is_read_before_anything_more_is_begun(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, errors = worker.write_known, [StoreCorrupt("The disk is failing.", "Look at it.")]

    def fail_at_second_round(session: Session, plan: CommitPlan, decided: Decided) -> Committed | None:
        if any(new.path == "round-2" for new in plan.new_steps) and errors:
            raise errors.pop()
        return written(session, plan, decided)

    monkeypatch.setattr(worker, "write_known", fail_at_second_round)
    monkeypatch.setattr(store_watcher, "POLL_S", 600)  # nobody tells the run that something came
    monkeypatch.setattr(store_watcher, "IDLE_POLL_S", 600)
    async with App.open(place.settings(reads("a.txt"), reads("b.txt"), says("done")), via="mcp") as app:
        await rests(app, await start_run(app, "opens the day", route="caller"))
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        ((n,),) = place.rows("select n from run where id = ?", run_id)
        await app._context.pool.wait_until_stopped([n], WITHIN_S)
        begun = place.rows("select path from step where run = ?", n)
        place.rows(CONTROL, n, "cancel")
        assert (await rests(app, run_id)).status == "cancelled"
        assert place.rows("select path from step where run = ?", n) == begun


async def test_a_run_that_is_about_to_be_let_go_of_is_kept_for_what_came(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = worker.write_known

    def leave_request_first(session: Session, plan: CommitPlan, decided: Decided) -> Committed | None:
        if any(new.path == "round-2" and new.request.counts_only for new in plan.new_steps):
            session.rows(CONTROL, (plan.run, "pause"))
        return written(session, plan, decided)

    monkeypatch.setattr(worker, "write_known", leave_request_first)
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, route="caller")
        await app.answers.submit(run_id, {"round-1": reads("a.txt")}, ME)
        assert (await rests(app, run_id)).status == "paused"
        assert place.rows("select owner, taken is null from inbox join run on run.n = run") == [(None, False)]
