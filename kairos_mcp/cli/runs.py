"""The commands that only look: `runs`, `show`, `replay`, `status`. None of them takes over a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import cast

from kairos_mcp.app.app import App
from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.output import age_of, commands_of, project_of, report_of, say_paused, say_waiting, traced_line
from kairos_mcp.cli.run import settings_at_hand
from kairos_mcp.cli.session import PERSON, person, with_host
from kairos_mcp.cli.speech import line_of, say, say_json, tell
from kairos_mcp.core.counting import count_of
from kairos_mcp.core.errors import StoreCorrupt
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.history.replay_check import ReplayReport
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.views.run_report import RunReport
from kairos_mcp.views.trace import TraceQuery, View

_PAGE_CHARS = 1_000_000  # so that no item of a page is cut


def list_runs(flags: Flags, limit: int, *, everywhere: bool, as_json: bool) -> int:
    """The newest runs of the workspaces at hand, or `everywhere`, one a line; of a damaged state file those that can
    still be read."""
    settings = settings_at_hand(flags)
    everywhere = everywhere or not settings.workspaces

    async def look(host: App) -> tuple[list[RunReport], int]:
        newest = host.newest(PERSON, limit, everywhere=everywhere)
        elsewhere = 0 if everywhere else host.runs_elsewhere(PERSON)
        return [host.report(run_id, PERSON, full=False) for run_id in newest], elsewhere

    try:
        _say_runs(flags, *with_host(settings, look), as_json=as_json)
    except StoreCorrupt as damage:
        _say_runs(flags, *with_host(settings, look, salvage=True), as_json=as_json)
        way_on = commands_of(flags).complete_all("`kairos-mcp export RUN FILE` carries it away.")
        tell(f"{damage.message} What is listed can still be read: {way_on}")
        return FAILED
    return COMPLETED


def _say_runs(flags: Flags, reports: list[RunReport], elsewhere: int, *, as_json: bool) -> None:
    if as_json:
        say_json({"runs": [report.as_json() for report in reports], "elsewhere": elsewhere})
        return
    if not reports and not elsewhere:
        say(commands_of(flags).complete_all("No runs yet; try `kairos-mcp demo`."))
    for report in reports:
        reason = report.stop_reason or ""
        far = (
            count_of(report.rounds, "round")
            if report.flow == "planner"
            else count_of(report.usage["model_calls"], "call")
        )
        whose = f"{age_of(report.created_at):>6} {project_of(report.workspace):<16}"
        stands = f"{report.status:<14} {reason:<15} {far:>10}"
        goal = (
            line_of(report.goal, 60) if report.goal else report.summary or ""
        )  # of one that can't be read: the way on
        say(f"{report.run_id} {whose} {stands}  {goal}".rstrip())
    if elsewhere:
        say(f"{count_of(elsewhere, 'run')} of other workspaces: --all shows them")


def show_run(flags: Flags, run_id: str, view: str, ref: str | None, *, principal: str, as_json: bool) -> int:
    """A run as its report, or a part of its record, from the first page to the last."""
    settings, who = load_settings(flags, os.environ), person(principal)
    if view == "report" and ref is None:

        async def report(host: App) -> RunReport:
            return host.report(run_id, who)

        found = with_host(settings, report)
        if as_json:
            say_json(found.as_json())
        else:
            for line in report_of(found):
                say(line)
            for item in found.waiting:
                say_waiting(run_id, item, flags)
            say_paused(found, flags)
        return COMPLETED

    async def trace(host: App) -> JsonObject:
        return _whole(host, run_id, "events" if view == "report" else cast("View", view), ref, who)

    traced = with_host(settings, trace)
    if as_json:
        say_json(traced)
    elif ref is not None:
        say(traced["text"])
    else:
        for item in traced["items"]:
            say(traced_line(item))
    return COMPLETED


def replay_run(flags: Flags, run_id: str, *, as_json: bool) -> int:
    """Fold the run again from its rows. 0 where each step asks what was asked then."""

    async def fold(host: App) -> ReplayReport:
        return host.replay(run_id, PERSON)

    replayed = with_host(load_settings(flags, os.environ), fold)
    return speak_of(replayed, as_json=as_json)


def speak_of(replayed: ReplayReport, *, as_json: bool) -> int:
    """Say whether a replay asked what was asked then, and where it first did not."""
    if as_json:
        say_json(replayed.as_json())
    else:
        for line in _of_replay(replayed):
            say(line)
    return COMPLETED if replayed.identical else FAILED


def _of_replay(replayed: ReplayReport) -> Iterator[str]:
    if replayed.difference is None:
        yield f"run {replayed.run_id}: {count_of(replayed.steps, 'step')} built again from the record, all identical"
        if replayed.by_shape:
            yield f"of {replayed.by_shape} only path and kind were compared: a secret was taken out before them"
        return
    found = replayed.difference
    yield f"run {replayed.run_id}: differs from its record at {found.path}: {found.text}"
    said = "recorded" if found.certain else "recorded, as far as the rows tell"
    for label, shown in ((said, found.recorded), ("asked now", found.asked)):
        if shown is not None:
            yield f"  {label}: {json.dumps(shown, ensure_ascii=False)}"
    if found.message is not None:
        yield f"  the first message that differs is number {found.message['at']}"
        yield f"    recorded: {json.dumps(found.message['recorded'], ensure_ascii=False)}"
        yield f"    asked now: {json.dumps(found.message['asked'], ensure_ascii=False)}"


def show_status(flags: Flags, *, as_json: bool) -> int:
    """The store and who lives on it."""

    async def look(host: App) -> JsonObject:
        return host.health()

    health = with_host(load_settings(flags, os.environ), look)
    if as_json:
        say_json(health)
    else:
        for line in _lines_of(health):
            say(line)
    return COMPLETED


def _whole(host: App, run_id: str, view: View, ref: str | None, who: Caller) -> JsonObject:
    """All pages as one: a person at a terminal has room, and pipes what is long."""
    items: list[JsonObject] = []
    text, cursor = "", None
    while True:
        page = host.trace(run_id, TraceQuery(view=view, ref=ref, cursor=cursor, max_chars=_PAGE_CHARS), who)
        items += page.get("items", ())
        text += page.get("text", "")
        cursor = page["next_cursor"]
        if cursor is None:
            return {"run_id": run_id, "ref": ref, "text": text} if ref is not None else page | {"items": items}


def _lines_of(health: JsonObject, indent: str = "") -> Iterator[str]:
    for name, value in health.items():
        label = f"{indent}{name.replace('_', ' ')}"
        match value:
            case dict():
                yield label
                yield from _lines_of(value, indent + "  ")
            case list():
                yield f"{label}: {', '.join(str(each) for each in value) or 'none'}"
            case _:
                yield f"{label}: {value}"
