"""`runs` and `show`: list runs, remove old ones, look at one. None of them takes over a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.options import AllFlags, AllWorkspaces, AsJson, Principal, Run
from kairos_mcp.cli.output import age_since, command_line_for, report_lines, trace_line, workspace_name
from kairos_mcp.cli.session import PERSON, find_target, with_app
from kairos_mcp.cli.settings import read_settings, settings_for_list
from kairos_mcp.cli.terminal import emit, one_line, print_note
from kairos_mcp.core.errors import BadArguments, StoreCorrupt
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.retention import PruneResult
    from kairos_mcp.views.run_report import RunReport
    from kairos_mcp.views.trace import View

ReportOrView = Literal["report", "events", "calls", "messages", "usage"]

_PAGE_CHARS = 1_000_000  # so that no item of a page is cut
_DAYS = {"h": 1 / 24, "d": 1, "w": 7}


def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 10,
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove runs that ended long ago and that no kept run goes on from.")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --prune: as 30d, 12h or 2w; else keep_days says it.")
    ] = None,
    everywhere: AllWorkspaces = False,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """List recent runs, or delete old ones with --prune."""
    if prune:
        return _prune_runs(flags, older_than, as_json=as_json)
    if older_than is not None:
        raise BadArguments("--older-than goes with --prune.", "`kairos-mcp runs --prune --older-than 30d`")
    settings = settings_for_list(flags)
    everywhere = everywhere or not settings.workspaces

    async def look(app: App) -> tuple[list[RunReport], int]:
        newest = await app.runs.newest_ids(PERSON, limit, everywhere=everywhere)
        elsewhere = 0 if everywhere else await app.runs.count_elsewhere(PERSON)
        return [await app.runs.report(run_id, PERSON, full=False) for run_id in newest], elsewhere

    damage: StoreCorrupt | None = None
    try:
        reports, elsewhere = with_app(settings, look)
    except StoreCorrupt as error:
        damage = error
        reports, elsewhere = with_app(settings, look, salvage=True)
    value = {"runs": [report.as_json() for report in reports], "elsewhere": elsewhere}
    emit(value, _list_lines(flags, reports, elsewhere), as_json=as_json)
    if damage is None:
        return COMPLETED
    export = command_line_for(flags).complete_all("`kairos-mcp export RUN FILE`")
    print_note(f"{damage.message} What is listed can still be read; save it with {export}.")
    return FAILED


def _list_lines(flags: Flags, reports: list[RunReport], elsewhere: int) -> Iterator[str]:
    """A line for each run. One that can't be read has no goal, and its summary says what can be done."""
    if not reports and not elsewhere:
        yield command_line_for(flags).complete_all("No runs yet; try `kairos-mcp demo`.")
    for report in reports:
        is_planner = report.flow == "planner"
        work = count_of(report.rounds, "round") if is_planner else count_of(report.usage["model_calls"], "call")
        where = f"{age_since(report.created_at):>6} {workspace_name(report.workspace):<16}"
        status = f"{report.status:<14} {report.stop_reason or '':<15} {work:>10}"
        goal = one_line(report.goal, 60) if report.goal else report.summary or ""
        yield f"{report.run_id} {where} {status}  {goal}".rstrip()
    if elsewhere:
        yield f"{count_of(elsewhere, 'run')} of other workspaces: --all shows them"


def _prune_runs(flags: Flags, older_than: str | None, *, as_json: bool) -> int:
    """Remove runs that ended longer ago than `older_than`, or than the setting keep_days. Raises BadArguments where
    neither is given."""
    settings = read_settings(flags)
    days = _parse_age(older_than) if older_than is not None else settings.keep_days
    if days is None:
        raise BadArguments("Ended runs are kept for ever here.", "Say what may go: --older-than 30d; or set keep_days.")

    async def prune(app: App) -> PruneResult:
        return await app.runs.prune(days, shrink=True)

    pruned = with_app(settings, prune)
    sizes = {"bytes_before": pruned.before, "bytes_after": pruned.after}
    value = {"runs": pruned.runs, "texts": pruned.texts, **sizes, "unreadable": list(pruned.unreadable)}
    emit(value, _pruned_lines(flags, pruned), as_json=as_json)
    return COMPLETED


def _pruned_lines(flags: Flags, pruned: PruneResult) -> Iterator[str]:

    yield f"{count_of(pruned.runs, 'run')} removed, {pruned.before >> 10} KB before, {pruned.after >> 10} KB now"
    for run_id in pruned.unreadable:
        cure = command_line_for(flags).complete_all("`kairos-mcp doctor` says what is wrong with it.")
        yield f"Run {run_id} can't be read, and was kept; {cure}"
    if pruned.texts is None:
        yield "Texts that nothing refers to any more were kept, since another process is writing; call again."
    elif pruned.runs and not pruned.shrunk:
        yield "The freed space is used by later runs; the file shrinks when no server has the state folder open."


def _parse_age(age: str) -> float:
    """Days of an age as 12h, 30d or 2w. Raises BadArguments."""
    found = re.fullmatch(r"(\d{1,6})([hdw])", age)
    if found is None:
        raise BadArguments(f"--older-than: {age[:20]!r} is no age.", "As 12h, 30d or 2w.")
    return int(found[1]) * _DAYS[found[2]]


def show(
    run: Run,
    *,
    view: Annotated[ReportOrView, typer.Option(help="The result, or a part of the record.")] = "report",
    ref: Annotated[str | None, typer.Option(metavar="REF", help="A long text, by its ref.")] = None,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Show one run: its status, what it did, what it waits for."""
    target = find_target(flags, run, principal)
    settings, run_id, caller = target.settings, target.run_id, target.caller
    if view == "report" and ref is None:

        async def read_report(app: App) -> RunReport:
            return await app.runs.report(run_id, caller)

        report = with_app(settings, read_report)
        emit(report.as_json(), report_lines(report, flags), as_json=as_json)
        return COMPLETED

    async def read_trace(app: App) -> JsonObject:
        return await _read_all_pages(app, run_id, "events" if view == "report" else view, ref, caller)

    traced = with_app(settings, read_trace)
    lines = [traced["text"]] if ref is not None else map(trace_line, traced["items"])
    emit(traced, lines, as_json=as_json)
    return COMPLETED


async def _read_all_pages(app: App, run_id: str, view: View, ref: str | None, caller: Caller) -> JsonObject:
    """All pages of a trace as one: a terminal scrolls, and what is long can be piped."""
    from kairos_mcp.views.trace import TraceQuery

    items: list[JsonObject] = []
    text, cursor = "", None
    while True:
        page = await app.runs.trace(
            run_id, TraceQuery(view=view, ref=ref, cursor=cursor, max_chars=_PAGE_CHARS), caller
        )
        items += page.get("items", ())
        text += page.get("text", "")
        cursor = page["next_cursor"]
        if cursor is None:
            return {"run_id": run_id, "ref": ref, "text": text} if ref is not None else page | {"items": items}
