"""`runs`: list runs, remove old ones. It takes over none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED, FAILED
from kairos_mcp.cli.keyboard import confirm, is_person_there
from kairos_mcp.cli.options import AllFlags, AllWorkspaces, AsJson, Everyone, Since, Whose
from kairos_mcp.cli.output import age_since, command_line_for, workspace_name
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import read_settings, settings_for_list, settings_here
from kairos_mcp.cli.terminal import Line, Prose, QuestionLine, emit, one_line, print_note
from kairos_mcp.cli.times import parse_age, parse_since
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import BadArguments, StoreCorrupt
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.store.find_runs import RunState, WantedRuns
from kairos_mcp.views.words import status_words

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.finder import OwnedReport
    from kairos_mcp.app.retention import PruneResult
    from kairos_mcp.store.retention import PrunableRun

_SHOWN_RUNS = 10  # of those that would be removed
_SHOWN_KEYS = 2  # of what a run waits for, in a list
_GOAL_CHARS = 80


class RunList(NamedTuple):
    """What a list shows: runs with whose they are, short ids of one's own, and how many more runs there are in other
    workspaces, and of other principals."""

    runs: list[OwnedReport]
    short_ids: Mapping[str, str]
    elsewhere: int
    of_others: int


def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="How many.")] = 10,
    *,
    principal: Whose = None,
    everyone: Everyone = False,
    status: Annotated[
        RunState | None, typer.Option(help="With this status; queued: it could go on, and no server has it.")
    ] = None,
    since: Since = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="That asked this model.")] = None,
    worker: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="That this server has now, by its number in `status`.")
    ] = None,
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
    is_of_others = principal is not None or everyone or worker is not None
    is_filtered = is_of_others or any((status, since, model))
    if prune:
        if is_filtered:
            raise BadArguments(
                "--prune removes by age and folder alone.", "--older-than 30d, and --all for every folder."
            )
        return _prune_runs(flags, older_than, everywhere=everywhere, is_dry=dry_run, is_sure=yes, as_json=as_json)
    if older_than is not None or dry_run or yes:
        raise BadArguments(
            "--older-than, --dry-run and --yes need --prune.", "`kairos-mcp runs --prune --older-than 30d`"
        )
    if everyone and principal is not None:
        raise BadArguments("--principal names one principal, --everyone means all.", "Give one of them.")
    settings, whose = settings_for_list(flags), principal or LOCAL
    everywhere = everywhere or not settings.workspaces or is_of_others

    async def look(app: App) -> RunList:
        begun = None if since is None else parse_since(since, app.now(), settings.time_zone)
        wanted = WantedRuns(None if everyone else whose, None, status, begun, model, worker)
        found = await app.finder.list_runs(wanted, limit, PERSON, everywhere=everywhere)
        own = [each.report.run_id for each in found if each.principal == LOCAL]
        return RunList(
            found,
            await app.overview.shorten_ids(own, PERSON),
            0 if everywhere else await app.runs.count_elsewhere(PERSON),
            await app.finder.count_others(LOCAL) if not is_filtered else 0,
        )

    damage: StoreCorrupt | None = None
    try:
        listed = with_app(settings, look)
    except StoreCorrupt as error:
        damage = error
        listed = with_app(settings, look, salvage=True)
    value = {
        "runs": [
            {**each.report.as_json(), "state": each.report.state, "principal": each.principal} for each in listed.runs
        ],
        "elsewhere": listed.elsewhere,
        "of_others": listed.of_others,
    }
    none = (
        "No such runs." if worker is None else f"Server {worker} has no runs now; `kairos-mcp status` lists who lives."
    )
    emit(value, _list_lines(flags, listed, none if is_filtered else None), as_json=as_json)
    if damage is None:
        return COMPLETED
    export = command_line_for(flags).complete_all("`kairos-mcp export RUN FILE`")
    print_note(f"{damage.message} What is listed can still be read; save it with {export}.")
    return FAILED


def _list_lines(flags: Flags, listed: RunList, none: str | None) -> Iterator[Line]:
    """A line for each run: its id (of one's own a short one), age, workspace, flow, status, goal, what it waits for and
    from whom; whose it is, if anybody else's is listed. One that can't be read has no goal, and its summary says what
    can be done. Of one that stands still a second line says why. `none`: what is said where a choice fits none."""
    if not listed.runs and none is not None:
        yield command_line_for(flags).complete_all(none)
    elif not listed.runs and not listed.elsewhere and not listed.of_others:
        yield command_line_for(flags).complete_all("No runs yet; try `kairos-mcp demo`.")
    names_owner = any(each.principal != LOCAL for each in listed.runs)
    rows = [
        (
            *((each.principal,) if names_owner else ()),
            listed.short_ids.get(each.report.run_id, each.report.run_id),
            age_since(each.report.created_at),
            workspace_name(each.report.workspace),
            each.report.flow,
            status_words(each.report.state, each.report.stop_words),
        )
        for each in listed.runs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for (_, report), row in zip(listed.runs, rows, strict=True):
        columns = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        goal = one_line(report.goal, _GOAL_CHARS) if report.goal else report.summary or report.record or ""
        awaited = report.describe_waiting(_SHOWN_KEYS)
        waiting = f" · waits {awaited}" if awaited else ""
        yield Prose(f"{columns}  {goal}{waiting}".rstrip(), margin=2)
        if why := report.describe_standstill():
            yield Prose(f"    stands still: {why}", margin=6, has_times=True)
    if listed.elsewhere:
        yield f"{count_of(listed.elsewhere, 'run')} of other workspaces: --all shows all"
    if listed.of_others:
        yield f"{count_of(listed.of_others, 'run')} of other principals: --everyone shows all"


def _prune_runs(
    flags: Flags, older_than: str | None, *, everywhere: bool, is_dry: bool, is_sure: bool, as_json: bool
) -> int:
    """Say which runs would go, ask unless the person `is_sure`, and remove them: those that ended longer ago than
    `older_than`, or than the setting keep_days, of the folders at hand. Raises BadArguments where neither age is given,
    and where nobody can be asked."""
    settings = read_settings(flags) if everywhere else settings_here(flags)
    days = settings.keep_days if older_than is None else parse_age("--older-than", older_than)
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
    """Say how many runs would be removed in which folders, and name the newest."""
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
