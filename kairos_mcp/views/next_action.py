"""The one call that makes sense next, ready to copy: what follows from the facts of a run, for who looks at it."""

from __future__ import annotations

from collections.abc import Sequence

from kairos_mcp.budget.notes import clock_behind_reason
from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.effects import WRITING_TOOLS
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import STOP_REASONS, Outcome
from kairos_mcp.core.routes import AUTO, is_answered_by
from kairos_mcp.core.text import count_of
from kairos_mcp.store.approvals import LAPSED
from kairos_mcp.views import mandate_view
from kairos_mcp.views.run_facts import RunFacts, Viewer
from kairos_mcp.views.team_view import TaskView, TeamView
from kairos_mcp.views.waiting import (
    answer_template,
    decision_command,
    is_named_only,
    run_command,
)


def next_call(facts: RunFacts, viewer: Viewer) -> JsonObject | None:
    found = _next_call(facts, viewer)
    return None if found is None or (viewer.is_read_only and found["tool"] in WRITING_TOOLS) else found


def _next_call(facts: RunFacts, viewer: Viewer) -> JsonObject | None:
    run, trouble = facts.run, viewer.trouble
    if not viewer.may_move:
        return None if facts.has_ended else _wait_for_news(facts, "A server of its workspace goes on with it.")
    match facts.status(viewer):
        case "input_required":
            return _next_for_waiting(facts, viewer)
        case "working":
            return _wait_for_news(facts, "It goes on; wait for news.")
        case "paused" if trouble is not None and trouble.code == "stale":
            return _continue(facts, "This run can't go on; a new one can.")
        case "paused" if trouble is not None and trouble.code == "busy":
            return _call("run_status", {"run_ids": [run.id]}, f"A person has to act first. {trouble.hint}")
        case "paused" if trouble is not None and trouble.code == "store_corrupt" and trouble.run_id == run.id:
            cancel = {"run_id": run.id, "action": "cancel"}
            return _call("run_control", cancel, "Its rows are damaged: it spends nothing more, and can be ended.")
        case "paused" if not run.paused and facts.waits.unasked:
            return _next_for_queued_approvals(facts)
        case "paused":
            return _next_for_paused(facts, viewer)
        case _ if facts.outcome is None or facts.unreadable is not None:
            return None
        case _:
            return _next_after_end(facts, facts.outcome)


def _next_after_end(facts: RunFacts, outcome: Outcome) -> JsonObject | None:
    run, status, reason = facts.run, outcome.status, STOP_REASONS[outcome.stop_reason]
    if status == "stopped" and facts.kind.has_conversation:
        return _continue(facts, f"It was stopped ({reason.words}); a new run can go on.")
    if status == "failed" and facts.kind.has_conversation and reason.because == "model":
        return _continue(facts, "The model failed it; once that is mended, a new run goes on from it.")
    if status in ("stopped", "failed") and facts.team is not None and (task := _unfinished_try(facts.team)) is not None:
        unfinished, path = task
        why = f"Task {unfinished.id} {unfinished.status}: a new run can go on from its newest round."
        return _continue(facts, why, **{"from": path, "agent": unfinished.agent})
    if facts.mandate is not None:
        return _call(*mandate_view.call_after_cycles(outcome, facts.mandate | _route_after(facts)))
    after_phase = mandate_view.call_after_phase(run, outcome)
    return None if after_phase is None else _call(*after_phase)


def _continue(facts: RunFacts, why: str, **more: str) -> JsonObject:
    """Return the call of a new run that goes on from this one's conversation."""
    return _call("planner_run", {"goal": "Go on.", "continues": facts.run.id, **more, **_route_after(facts)}, why)


def _route_after(facts: RunFacts) -> JsonObject:
    """Return the argument `route` of a run that goes on from this one; none where it is `auto`."""
    route = AUTO if facts.spec is None else facts.spec.route_after(facts.run.route)
    return {} if route == AUTO else {"route": route}


def _next_for_waiting(facts: RunFacts, viewer: Viewer) -> JsonObject:
    run = facts.run
    asked = [item for item in facts.items if not (is_answered_by("client", run.route) and item["kind"] == "completion")]
    theirs = [item for item in asked if item["kind"] not in ("approval", "settle") or viewer.decides == "caller"]
    if theirs:
        shown = [item for item in theirs if not is_named_only(item)] or theirs
        answers = {item["key"]: answer_template(item) for item in shown}
        why = _where_requests_are(shown, len(theirs) - len(shown))
        return _call("run_continue", {"run_id": run.id, "answers": answers, **_read_up_to(facts)}, why)
    if asked:
        return _call_for_decision(facts, viewer, asked)
    goes_on = "It goes on in a call that may ask your client's model."
    return _call("run_continue", {"run_id": run.id, **_read_up_to(facts)}, goes_on)


def _where_requests_are(items: Sequence[JsonObject], others: int) -> str:
    """Tell the caller to answer these items, and where each request is read. `others`: how many more wait, which are
    named alone."""
    if all(map(is_named_only, items)):
        return "Answer what waits; run_status with its run_id shows each request."
    what = "what is new" if any("after" in item for item in items) else "what waits; `waiting` has each request in full"
    some = " One of several answers is enough: its branch goes on." if len(items) + others > 1 else ""
    verb, them = ("waits", "it") if others == 1 else ("wait", "them")
    more = f" {others} more {verb}, and run_status view=full shows {them}." if others else ""
    return f"Answer {what}.{some}{more}"


def _unfinished_try(team: TeamView) -> tuple[TaskView, str] | None:
    """Return a task to go on with of a team that did not reach its goal, and the newest round of it; None for none."""
    for status in ("stopped", "failed"):
        for task in team.tasks:
            if task.status == status and (path := next((each.round for each in task.tries[::-1] if each.round), None)):
                return task, path
    return None


def _call_for_decision(facts: RunFacts, viewer: Viewer, items: Sequence[JsonObject]) -> JsonObject:
    """Return the call for a caller who may not decide: let the client ask its user, or wait for a person's command."""
    run, lost, key = facts.run, items[0]["kind"] == "settle", items[0]["key"]
    approval = facts.waits.approvals.get(key)
    if viewer.decides == "client" and (approval is None or approval.private_preview is None):
        asks = (
            "Your client asks its user what became of this call." if lost else "Your client asks its user for approval."
        )
        return _call("run_continue", {"run_id": run.id, **_read_up_to(facts)}, asks)
    who = "a person" if run.principal == LOCAL else "whoever runs this server"
    what = f"Nobody knows whether this call was made; {who} looks, then says" if lost else f"{who.capitalize()} decides"
    where = "" if viewer.page is None else f"; in a browser: {viewer.page}"
    together = len([item for item in items if item["kind"] == "approval"])
    command = run_command(run, "approve") if not lost and together > 1 else decision_command(run, key)
    count = f" about {together} calls" if not lost and together > 1 else ""
    return _wait_for_news(facts, f"{what}{count}: `{command}` (or {'reattempt' if lost else 'deny'}){where}.")


def _wait_for_news(facts: RunFacts, why: str) -> JsonObject:
    """Return the call that waits until something changes that this result does not show yet."""
    run, told = facts.run, [item["key"] for item in facts.items if item["kind"] in ("approval", "settle")]
    news = {"run_ids": [run.id], "until": "news", "since": run.seq}
    return _call("run_status", news | _read_up_to(facts, told), why)


def _read_up_to(facts: RunFacts, told: Sequence[str] = ()) -> JsonObject:
    """Return the argument that says what the caller has read of what goes on. `told`: keys of what waits for others."""
    keys = [*facts.read_up_to, *told]
    return {"after": keys} if keys else {}


def _next_for_queued_approvals(facts: RunFacts) -> JsonObject:
    """Return the call for a run whose approvals wait for a free place; the reason names the oldest approval."""
    oldest = ""
    if facts.queue:
        run_id, key = facts.queue[0]
        oldest = f"; the oldest: `{decision_command(facts.run._replace(id=run_id), key)}`"  # of the same principal
    one = len(facts.queue) == 1
    many = f"{count_of(len(facts.queue), 'approval')} of this workspace {'waits' if one else 'wait'} for a person"
    why = f"{many}, and {'has' if one else 'have'} to be decided first{oldest}."
    return _call("run_status", {"run_ids": [facts.run.id], "until": "done"}, why)


def _next_for_paused(facts: RunFacts, viewer: Viewer) -> JsonObject | None:
    run, lacks = facts.run, viewer.lacks
    if run.paused == clock_behind_reason(run.principal):
        return None  # a resume would pause it again
    resume = {"run_id": run.id, "action": "resume"}
    if run.resume_at is not None and not lacks:
        resumes_at = format_timestamp(run.resume_at)
        why = f"It continues at {resumes_at} if a server is running; resume retries it now."
        return _call("run_control", resume, why)
    if run.paused == LAPSED:
        return _call("run_control", resume, "Nobody decided in time; resume asks again, for what is there then.")
    if run.paused is not None and run.resume_at is None:
        return _call("run_control", resume, f"It was paused: {run.paused}")
    if facts.pause is not None:
        return _call(*mandate_view.call_after_pause(run, facts.pause, facts.steps))
    if lacks:
        why = f"It takes a server with {' and '.join(lacks)}; one that has it goes on with the run once it is called."
        return _call("run_status", {"run_ids": [run.id]}, why)
    why = (
        "No server moves it now: one that drives runs and can perform it goes on with it once it is called, a worker"
        f" by itself; in a terminal: `{run_command(run, 'resume')}`."
    )
    return _call("run_status", {"run_ids": [run.id]}, why)


def _call(tool: str, arguments: JsonObject, why: str) -> JsonObject:
    return {"tool": tool, "arguments": arguments, "why": why}
