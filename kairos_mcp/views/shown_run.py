"""A run as somebody sees it who watches: beside its steps, and as a row in a list of runs."""

from __future__ import annotations

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import truncate
from kairos_mcp.views.run_facts import RunFacts, Viewer
from kairos_mcp.views.run_report import make_report
from kairos_mcp.views.steps import TEXT_CHARS

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
    shown |= {
        "goal": truncate(facts.goal, TEXT_CHARS),
        "waiting": waiting,
        "stop_words": report.stop_words,
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
    usage = report.usage
    return {
        "run_id": run.id,
        "seq": run.seq,
        "principal": run.principal,
        "flow": run.flow,
        "goal": truncate(facts.goal, ROW_CHARS),
        "workspace": run.workspace,
        "status": report.status,
        "stop_reason": report.stop_reason,
        "stop_words": report.stop_words,
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
