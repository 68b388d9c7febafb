"""The one call that makes sense next, ready to copy: computed from what a run's rows say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import STOP_REASONS, Outcome, RunStatus, StopReason
from kairos_mcp.core.routes import is_answered_by
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import approvals
from kairos_mcp.store.approvals import WaitingItems
from kairos_mcp.store.queries import RunRow, run_by_id
from kairos_mcp.store.rows import Session, decode
from kairos_mcp.views import mandate_view
from kairos_mcp.views.team_view import TaskView, TeamView
from kairos_mcp.views.waiting import (
    MAX_DIALOG_CHARS,
    OpenStep,
    answer_template,
    decision_command,
    is_named_only,
    resume_command,
)

Decides = Literal["caller", "client", "person"]
"""Who can decide within a call: the caller, their client's user, or only a person elsewhere."""


def next_call(
    session: Session,
    run: RunRow,
    status: RunStatus,
    items: Sequence[JsonObject],
    decides: Decides,
    trouble: KairosError | None,
    pause: str | None,
    waits: WaitingItems,
    lacks: Sequence[str] = (),
    steps: Mapping[str, OpenStep] | None = None,
    team: TeamView | None = None,
    page: str | None = None,
) -> JsonObject | None:
    """`trouble`: why the run stands still here; `pause`: the word of the pause that its flow waits at; `waits`: what it
    waits for; `lacks`: what it takes to go on and is not here; `steps`: the open steps, where they are at hand; `team`:
    what a team has come to, likewise; `page`: where a person can decide in a browser."""
    match status:
        case "input_required":
            return _next_for_waiting(run, items, decides, waits, page)
        case "working":
            return _wait_for_news(run, "It goes on; wait for news.")
        case "paused" if trouble is not None and trouble.code == "stale":
            return _call("planner_run", {"goal": "Go on.", "continues": run.id}, "This run can't go on; a new one can.")
        case "paused" if trouble is not None and trouble.code == "busy":
            return _call("run_status", {"run_ids": [run.id]}, f"A person has to act first. {trouble.hint}")
        case "paused" if trouble is not None and trouble.code == "store_corrupt" and trouble.run_id == run.id:
            cancel = {"run_id": run.id, "action": "cancel"}
            return _call("run_control", cancel, "Its rows are damaged: it spends nothing more, and can be ended.")
        case "paused":
            return (
                _next_for_paused(run, pause, lacks, steps)
                if run.paused or not waits.unasked
                else _next_for_queued_approvals(session, run)
            )
        case "stopped" if kind_of(run.flow).has_conversation:
            go_on = {"goal": "Go on.", "continues": run.id}
            return _call("planner_run", go_on, f"It was stopped ({_reason(run).words}); a new run can go on.")
        case "failed" if kind_of(run.flow).has_conversation and _reason(run).because == "model":
            go_on = {"goal": "Go on.", "continues": run.id}
            return _call("planner_run", go_on, "The model failed it; once that is mended, a new run goes on from it.")
        case "stopped" | "failed" if team is not None and (unfinished := _unfinished_try(team)) is not None:
            return _go_on_with_task(run, *unfinished)
        case "completed" | "stopped" | "failed" if kind_of(run.flow).has_mandate:
            following = mandate_view.call_after_end(session, run)
            return _call(*following) if following is not None else None
        case _:
            return None


def _next_for_waiting(
    run: RunRow, items: Sequence[JsonObject], decides: Decides, waits: WaitingItems, page: str | None
) -> JsonObject:
    asked = [item for item in items if not (is_answered_by("client", run.route) and item["kind"] == "completion")]
    theirs = [item for item in asked if item["kind"] not in ("approval", "settle") or decides == "caller"]
    if theirs:
        shown = [item for item in theirs if not is_named_only(item)] or theirs
        answers = {item["key"]: answer_template(item) for item in shown}
        why = _where_requests_are(shown, len(theirs) - len(shown))
        return _call("run_continue", {"run_id": run.id, "answers": answers}, why)
    if asked:
        return _call_for_decision(run, asked[0], decides, waits, page)
    return _call("run_continue", {"run_id": run.id}, "It goes on in a call that may ask your client's model.")


def _where_requests_are(items: Sequence[JsonObject], others: int) -> str:
    """Tell the caller to answer these items, and where each request is read. `others`: how many more wait, which are
    named alone."""
    if all(map(is_named_only, items)):
        return "Answer what waits; run_status with its run_id shows each request."
    what = "what is new" if any("after" in item for item in items) else "what waits; `waiting` has each request in full"
    some = " One of several answers is enough: its branch goes on." if len(items) + others > 1 else ""
    more = f" {others} more wait, and run_status view=full shows them." if others else ""
    return f"Answer {what}.{some}{more}"


def _unfinished_try(team: TeamView) -> tuple[TaskView, str] | None:
    """Return a task to go on with of a team that did not reach its goal, and the newest round of it; None for none."""
    for status in ("stopped", "failed"):
        for task in team.tasks:
            if task.status == status and (path := next((each.round for each in task.tries[::-1] if each.round), None)):
                return task, path
    return None


def _go_on_with_task(run: RunRow, task: TaskView, path: str) -> JsonObject:
    go_on = {"goal": "Go on.", "continues": run.id, "from": path, "agent": task.agent}
    return _call("planner_run", go_on, f"Task {task.id} {task.status}: a new run can go on from its newest round.")


def _call_for_decision(
    run: RunRow, item: JsonObject, decides: Decides, waits: WaitingItems, page: str | None
) -> JsonObject:
    """Return the call for a caller who may not decide: let the client ask its user, or wait for a person's command."""
    lost, key = item["kind"] == "settle", item["key"]
    approval = waits.approvals.get(key)
    fits_dialog = approval is None or (approval.private_preview is None and len(approval.preview) <= MAX_DIALOG_CHARS)
    if decides == "client" and fits_dialog:
        asks = (
            "Your client asks its user what became of this call." if lost else "Your client asks its user for approval."
        )
        return _call("run_continue", {"run_id": run.id}, asks)
    who = "a person" if run.principal == LOCAL else "whoever runs this server"
    what = f"Nobody knows whether this call was made; {who} looks, then says" if lost else f"{who.capitalize()} decides"
    where = "" if page is None else f"; in a browser: {page}"
    return _wait_for_news(run, f"{what}: `{decision_command(run, key)}` (or {'reattempt' if lost else 'deny'}){where}.")


def _wait_for_news(run: RunRow, why: str) -> JsonObject:
    """Return the call that waits until something changes that this result does not show yet."""
    return _call("run_status", {"run_ids": [run.id], "until": "news", "since": run.seq}, why)


def _next_for_queued_approvals(session: Session, run: RunRow) -> JsonObject:
    """Return the call for a run whose approvals wait for a free place; the reason names the oldest approval."""
    held = approvals.list_pending(session, run.n, 0)
    oldest = f"; the oldest: `{decision_command(run_by_id(session, held[0][0]), held[0][1])}`" if held else ""
    why = f"{len(held)} approvals of this workspace wait for a person, and have to be decided first{oldest}."
    return _call("run_status", {"run_ids": [run.id], "until": "done"}, why)


def _next_for_paused(
    run: RunRow, pause: str | None, lacks: Sequence[str], steps: Mapping[str, OpenStep] | None
) -> JsonObject:
    resume = {"run_id": run.id, "action": "resume"}
    if run.resume_at is not None and not lacks:
        resumes_at = format_timestamp(run.resume_at)
        why = f"It continues at {resumes_at} if a server is running; resume retries it now."
        return _call("run_control", resume, why)
    if run.paused == approvals.LAPSED:
        return _call("run_control", resume, "Nobody decided in time; resume asks again, for what is there then.")
    if run.paused is not None and run.resume_at is None:
        return _call("run_control", resume, f"It was paused: {run.paused}")
    if pause is not None:
        return _call(*mandate_view.call_after_pause(run, pause, steps))
    if lacks:
        why = f"This server lacks {' and '.join(lacks)}; one that has it goes on with the run once it is called."
        return _call("run_status", {"run_ids": [run.id]}, why)
    why = (
        "No server moves it now: one that drives runs and can perform it goes on with it once it is called, a worker"
        f" by itself; in a terminal: `{resume_command(run)}`."
    )
    return _call("run_status", {"run_ids": [run.id]}, why)


def _reason(run: RunRow) -> StopReason:
    outcome: Outcome = decode(Outcome, run.outcome or "")
    return STOP_REASONS[outcome.stop_reason]


def _call(tool: str, arguments: JsonObject, why: str) -> JsonObject:
    return {"tool": tool, "arguments": arguments, "why": why}
