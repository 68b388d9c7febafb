"""A run as somebody sees it who watches: beside its steps, and as a row in a list of runs.

Words stand beside the figures, so that page and app say them as results and the terminal do.
"""

from __future__ import annotations

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import STOP_REASONS
from kairos_mcp.core.text import truncate
from kairos_mcp.views.run_facts import RunFacts, Viewer
from kairos_mcp.views.run_report import RunReport, make_report
from kairos_mcp.views.steps import TEXT_CHARS
from kairos_mcp.views.waiting import answered_by

ROW_CHARS = 200  # of a goal and a summary in a list
DECIDED_BY_PERSONS = ("approval", "settle")  # the kinds of what waits


def show_run(facts: RunFacts, viewer: Viewer) -> JsonObject:
    """Return a run's report as it is shown beside its steps: the goal whole, what a person decides whole, of all else
    that waits the key and kind, and no calls, which are steps; why it stands still apart from the other notes. `page`:
    where a browser shows it."""
    run, report = facts.run, make_report(facts, viewer)
    waiting = [
        item if item["kind"] in DECIDED_BY_PERSONS else {"key": item["key"], "kind": item["kind"]}
        for item in report.waiting
    ]
    shown = {name: value for name, value in report.as_json().items() if name != "calls"}
    waits_for = {answered_by(item["kind"], report.route): None for item in report.waiting}
    shown |= _words_of(report) | {
        "goal": truncate(facts.goal, TEXT_CHARS),
        "waiting": waiting,
        "waits_for": next(iter(waits_for), None),
        "pause": report.describe_pause() if report.status == "paused" else None,
        "counts": facts.kind.counts.replace(" ", "_"),
        "held_up_by": list(report.held_up_by),
        "degraded": [note for note in report.degraded if note not in report.held_up_by],
        "started_at": run.created_at,
        "ended_at": run.ended_at,
        "client": run.client,
        "mandate": run.mandate,
    }
    return shown if viewer.page is None else shown | {"page": viewer.page}


def show_row(facts: RunFacts, viewer: Viewer, *, waits_for_person: bool) -> JsonObject:
    """Return the entry of a run in a list. Times in milliseconds since 1970."""
    run, report = facts.run, make_report(facts, viewer)
    usage, caller = report.usage, viewer.caller
    folder = run.workspace if caller.is_person or run.workspace is None else caller.visible_path(run.workspace)
    return {
        "run_id": run.id,
        "seq": run.seq,
        "principal": run.principal,
        "flow": run.flow,
        "goal": truncate(facts.goal, ROW_CHARS),
        "workspace": folder,
        "status": report.status,
        "stop_reason": report.stop_reason,
        **_words_of(report),
        "summary": truncate(report.summary or report.record or "", ROW_CHARS) or None,
        "started_at": run.created_at,
        "ended_at": run.ended_at,
        "resume_at": report.resume_at,
        "rounds": report.rounds,
        "model_calls": usage["model_calls"],
        "tool_calls": usage["tool_calls"],
        "tokens": usage["input_tokens"] + usage["output_tokens"],
        "usd": usage["usd"],
        "route": report.route,
        "model": report.model,
        "mandate": run.mandate,
        "client": run.client,
        "agent": None if facts.spec is None else facts.spec.agent,
        "waiting": [{"key": item["key"], "kind": item["kind"]} for item in report.waiting],
        "waits_for_person": waits_for_person,
    }


def _words_of(report: RunReport) -> JsonObject:
    """Return why the run ended, null where its status says it all, and how far it is."""
    is_plain = report.stop_reason is None or STOP_REASONS[report.stop_reason].is_plain
    return {"stop_words": None if is_plain else report.stop_words, "work": report.work}
