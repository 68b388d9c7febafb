"""`runs` and `show`: list runs, remove old ones, look at one. None of them takes over a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED, FAILED
from kairos_mcp.cli.keyboard import confirm, is_person_there
from kairos_mcp.cli.options import AllFlags, AllWorkspaces, AsJson, Principal, Run
from kairos_mcp.cli.output import age_since, command_line_for, report_lines, trace_line, workspace_name
from kairos_mcp.cli.session import PERSON, find_target, with_app
from kairos_mcp.cli.settings import read_settings, settings_for_list, settings_here
from kairos_mcp.cli.terminal import Line, Prose, QuestionLine, emit, one_line, print_note
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, StoreCorrupt
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.views.words import status_words

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.retention import PruneResult
    from kairos_mcp.store.retention import PrunableRun
    from kairos_mcp.views.run_report import RunReport
    from kairos_mcp.views.trace import View

ReportOrView = Literal["report", "events", "calls", "messages", "usage", "plan", "diff"]

_SHOWN_RUNS = 10  # of those that would be removed
_SHOWN_KEYS = 2  # of what a run waits for, in a list
_GOAL_CHARS = 80
_PAGE_CHARS = 1_000_000  # so that no item of a page is cut
_DAYS = {"h": 1 / 24, "d": 1, "w": 7}


def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 10,
    *,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove this folder's runs that ended long ago; --all: those of every folder."),
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="With --prune: the least age, as 30d, 12h or 2w. Default: keep_days."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --prune: only list what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --prune: remove without asking.")] = False,
    everywhere: AllWorkspaces = False,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """List recent runs, or delete old ones with --prune."""
    if prune:
        return _prune_runs(flags, older_than, everywhere=everywhere, is_dry=dry_run, is_sure=yes, as_json=as_json)
    if older_than is not None or dry_run or yes:
        raise BadArguments(
            "--older-than, --dry-run and --yes need --prune.", "`kairos-mcp runs --prune --older-than 30d`"
        )
    settings = settings_for_list(flags)
    everywhere = everywhere or not settings.workspaces

    async def look(app: App) -> tuple[list[RunReport], dict[str, str], int]:
        newest = await app.runs.newest_ids(PERSON, limit, everywhere=everywhere)
        elsewhere = 0 if everywhere else await app.runs.count_elsewhere(PERSON)
        found = await app.runs.list_reports(newest, PERSON)
        return found, await app.overview.shorten_ids(newest, PERSON), elsewhere

    damage: StoreCorrupt | None = None
    try:
        reports, short_ids, elsewhere = with_app(settings, look)
    except StoreCorrupt as error:
        damage = error
        reports, short_ids, elsewhere = with_app(settings, look, salvage=True)
    value = {"runs": [report.as_json() for report in reports], "elsewhere": elsewhere}
    emit(value, _list_lines(flags, reports, short_ids, elsewhere), as_json=as_json)
    if damage is None:
        return COMPLETED
    export = command_line_for(flags).complete_all("`kairos-mcp export RUN FILE`")
    print_note(f"{damage.message} What is listed can still be read; save it with {export}.")
    return FAILED


def _list_lines(
    flags: Flags, reports: Sequence[RunReport], short_ids: Mapping[str, str], elsewhere: int
) -> Iterator[Line]:
    """A line for each run: short id, age, workspace, flow, status, goal, what it waits for and from whom. One that
    can't be read has no goal, and its summary says what can be done. `elsewhere`: how many other workspaces have."""
    if not reports and not elsewhere:
        yield command_line_for(flags).complete_all("No runs yet; try `kairos-mcp demo`.")
    rows = [
        (
            short_ids[report.run_id],
            age_since(report.created_at),
            workspace_name(report.workspace),
            report.flow,
            status_words(report.status, report.stop_words),
        )
        for report in reports
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for report, row in zip(reports, rows, strict=True):
        columns = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        goal = one_line(report.goal, _GOAL_CHARS) if report.goal else report.summary or report.record or ""
        awaited = report.describe_waiting(_SHOWN_KEYS)
        waiting = f" · waits {awaited}" if awaited else ""
        yield Prose(f"{columns}  {goal}{waiting}".rstrip(), margin=2)
    if elsewhere:
        yield f"{count_of(elsewhere, 'run')} of other workspaces: --all shows all"


def _prune_runs(
    flags: Flags, older_than: str | None, *, everywhere: bool, is_dry: bool, is_sure: bool, as_json: bool
) -> int:
    """Say which runs would go, ask unless the person `is_sure`, and remove them: those that ended longer ago than
    `older_than`, or than the setting keep_days, of the folders at hand. Raises BadArguments where neither age is given,
    and where nobody can be asked."""
    settings = read_settings(flags) if everywhere else settings_here(flags)
    days: float | None = settings.keep_days
    if older_than is not None:
        if (age := re.fullmatch(r"(\d{1,6})([hdw])", older_than)) is None:
            raise BadArguments(f"--older-than: {older_than[:20]!r} is not an age.", "As 12h, 30d or 2w.")
        days = int(age[1]) * _DAYS[age[2]]
    if days is None:
        raise BadArguments("Ended runs are kept forever here.", "Give an age, as --older-than 30d, or set keep_days.")

    async def look(app: App) -> list[PrunableRun]:
        return await app.runs.list_prunable(days, everywhere=everywhere)

    found = with_app(settings, look)
    lines = _prunable_lines(found, everywhere=everywhere)
    if is_dry:
        items = [{"run_id": run.run_id, "workspace": run.workspace or None, "goal": run.goal} for run in found]
        emit({"runs": len(found), "dry_run": True, "items": items}, lines, as_json=as_json)
        return COMPLETED
    if found and not is_sure:
        for line in lines:
            print_note(QuestionLine(line))
        if as_json or not is_person_there():
            raise BadArguments(
                "Nothing was removed: without a terminal nobody can confirm it.",
                "Add --yes, or list the runs with --dry-run.",
            )
        if not confirm("Remove them for good"):
            print_note("nothing was removed")
            return CANCELLED

    async def prune(app: App) -> PruneResult:
        return await app.runs.prune(days, shrink=True, among=[run.n for run in found])

    pruned = with_app(settings, prune)
    sizes = {"bytes_before": pruned.before, "bytes_after": pruned.after}
    value = {"runs": pruned.runs, "texts": pruned.texts, **sizes, "unreadable": list(pruned.unreadable)}
    emit(value, _pruned_lines(settings, flags, pruned), as_json=as_json)
    return COMPLETED


def _prunable_lines(found: Sequence[PrunableRun], *, everywhere: bool) -> Iterator[str | Prose]:
    """Say how many runs of which folders would be removed, and name the newest."""
    where = "every folder" if everywhere else "this folder (--all: of every folder)"
    yield Prose(f"{count_of(len(found), 'run')} of {where} would be removed.")
    for folder, count in Counter(run.workspace for run in found).items():
        yield f"  {count:>6,}  {folder or 'no folder'}"
    newest = sorted(found, key=lambda run: run.ended_at, reverse=True)
    for run in newest[:_SHOWN_RUNS]:
        ended = datetime.fromtimestamp(run.ended_at / 1000, UTC).isoformat()
        yield f"  {run.run_id}  {age_since(ended)} ago  {one_line(run.goal or '', _GOAL_CHARS)}"
    if len(newest) > _SHOWN_RUNS:
        yield f"  and {count_of(len(newest) - _SHOWN_RUNS, 'older run')}"


def _pruned_lines(settings: Settings, flags: Flags, pruned: PruneResult) -> Iterator[str]:
    yield f"{count_of(pruned.runs, 'run')} removed, {pruned.before >> 10} KB before, {pruned.after >> 10} KB now"
    for run_id in pruned.unreadable:
        cure = command_line_for(flags).complete_all("`kairos-mcp doctor` says what is wrong with it.")
        yield f"Run {run_id} can't be read, and was kept; {cure}"
    if pruned.texts is None:
        yield "Unused texts were kept, since another process is writing; run it again."
    elif pruned.runs and settings.store is not None:
        yield "The database uses the freed space for later runs."
    elif pruned.runs and not pruned.shrunk:
        yield "The freed space is used by later runs; the file shrinks when no server has the state folder open."


def show(
    run: Run,
    *,
    view: Annotated[ReportOrView, typer.Option(help="The result, or a part of the record.")] = "report",
    ref: Annotated[str | None, typer.Option(metavar="REF", help="A long text, by its ref.")] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser, as `ui` does.")] = False,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Show one run: its status, what it did, what it waits for."""
    target = find_target(flags, run, principal)
    if opens:
        from kairos_mcp.cli.ui import open_page

        return open_page(flags, opens=True, place=f"/runs/{target.run_id}")
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
        page = await app.records.trace(
            run_id, TraceQuery(view=view, ref=ref, cursor=cursor, max_chars=_PAGE_CHARS), caller
        )
        items += page.get("items", ())
        text += page.get("text", "")
        cursor = page["next_cursor"]
        if cursor is None:
            return {"run_id": run_id, "ref": ref, "text": text} if ref is not None else page | {"items": items}
