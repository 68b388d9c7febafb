"""`mandate save, show, list, edit, remove, run`: mandates, run by a person, or by a system timer with --due."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED, WAITING, exit_code_of
from kairos_mcp.cli.follow import follow_run, print_ending
from kairos_mcp.cli.options import AllFlags, AllWorkspaces, AsJson, AtLimitOption, RouteOption
from kairos_mcp.cli.output import age_since, command_line_for, workspace_name
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import parse_limits, settings_for_list, settings_here
from kairos_mcp.cli.terminal import Line, Prose, emit, one_line, print_json, print_line, print_note
from kairos_mcp.core.errors import BadArguments, Stale
from kairos_mcp.core.mandate import parse_mandate
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of, format_age
from kairos_mcp.settings.bounded_files import read_stdin_bounded, read_text_bounded
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.schedules import ScheduledTime
    from kairos_mcp.core.run_spec import CyclesRequest
    from kairos_mcp.views.run_report import RunReport

MandateId = Annotated[str, typer.Argument(metavar="ID", help="A mandate, as `mandate list` names it.")]


def save(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A mandate as JSON, or as TOML if its name ends in .toml; - is stdin.")
    ],
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Save a mandate under its id."""
    mandate = _read_mandate(file)

    async def save_mandate(app: App) -> JsonObject:
        return await app.mandates.save(mandate, PERSON)

    _print_saved(with_app(settings_here(flags), save_mandate), as_json=as_json)
    return COMPLETED


def list_mandates(*, everywhere: AllWorkspaces = False, as_json: AsJson = False, flags: AllFlags) -> int:
    """List the mandates of this workspace, their status and newest run."""

    async def read_all_pages(app: App) -> JsonObject:
        is_wide = everywhere or not app.settings.workspaces
        page = await app.mandates.list_page(None, None, PERSON, everywhere=is_wide)
        found = list(page["mandates"])
        while (cursor := page["cursor"]) is not None:
            page = await app.mandates.list_page(None, cursor, PERSON, everywhere=is_wide)
            found += page["mandates"]
        return {"mandates": found, "total": page["total"], "elsewhere": page["elsewhere"]}

    found = with_app(settings_for_list(flags), read_all_pages)
    emit(found, _list_lines(flags, found), as_json=as_json)
    return COMPLETED


def show(mandate_id: MandateId, *, flags: AllFlags) -> int:
    """Print a mandate as JSON, as `mandate save` and `mandate edit` read it."""
    print_json(_show_mandate(flags, mandate_id)["mandate"])
    return COMPLETED


def edit(
    mandate_id: MandateId,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Its new text, JSON or TOML; - is stdin. Default: an editor."),
    ] = None,
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Change a mandate, in FILE or in your editor; or with --workspace alone move it to that folder."""
    if file is None and flags.workspaces:
        return _move(mandate_id, flags, as_json=as_json)
    mandate = _edit_mandate(flags, mandate_id) if file is None else _read_mandate(file)

    async def save_changed(app: App) -> JsonObject:
        return await app.mandates.edit(mandate_id, mandate, PERSON)

    _print_saved(with_app(settings_here(flags), save_changed), as_json=as_json)
    return COMPLETED


def remove(mandate_id: MandateId, *, as_json: AsJson = False, flags: AllFlags) -> int:
    """Remove a mandate; its runs stay."""

    async def remove_mandate(app: App) -> JsonObject:
        return await app.mandates.remove(mandate_id, PERSON)

    removed = with_app(settings_here(flags), remove_mandate)
    emit(removed, [f"removed: {removed['mandate_id']}"], as_json=as_json)
    return COMPLETED


def _move(mandate_id: str, flags: Flags, *, as_json: bool) -> int:
    if len(flags.workspaces) != 1:
        raise BadArguments("Which folder?", "Name one by --workspace DIR.")
    settings = settings_here(flags)

    async def move(app: App) -> JsonObject:
        return await app.mandates.move(mandate_id, str(settings.workspaces[0]), PERSON)

    moved = with_app(settings, move)
    emit(moved, [f"{moved['mandate_id']} belongs to {moved['workspace']} ({moved['status']})"], as_json=as_json)
    return COMPLETED


def _show_mandate(flags: Flags, mandate_id: str) -> JsonObject:
    async def show_mandate(app: App) -> JsonObject:
        return await app.mandates.show(mandate_id, PERSON)

    return with_app(settings_here(flags), show_mandate)


def _edit_mandate(flags: Flags, mandate_id: str) -> JsonObject:
    """Let the person change the mandate in their editor. Raises BadArguments, which names the file with their text."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    folder = Path(tempfile.mkdtemp(prefix="kairos-mandate-"))
    file = folder / f"{mandate_id}.json"
    file.write_text(json.dumps(_show_mandate(flags, mandate_id)["mandate"], indent=2, ensure_ascii=False) + "\n")
    save_it = f"`kairos-mcp mandate edit {mandate_id} {shlex.quote(str(file))}`"
    try:
        subprocess.run([*command, str(file)], check=True)
        changed = _read_mandate(str(file))
        parse_mandate(changed)
    except (OSError, subprocess.CalledProcessError) as error:
        cure = f"Set EDITOR, or change {file} with another program, then {save_it}."
        raise BadArguments(f"The editor failed: {error}.", cure) from error
    except BadArguments as wrong:
        raise BadArguments(wrong.message, f"Your text is kept: correct {file}, then {save_it}.") from wrong
    shutil.rmtree(folder)
    return changed


def _print_saved(saved: JsonObject, *, as_json: bool) -> None:
    change = "saved" if saved["changed"] else "unchanged"
    notes = [f"note: {note}" for note in saved["degraded"]]
    emit(saved, [f"{change}: {saved['mandate_id']} ({saved['status']})", *notes], as_json=as_json)


def run(
    mandate_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A mandate, as `mandate list` names it; with --due: only this.")
    ] = None,
    *,
    due: Annotated[bool, typer.Option("--due", help="Run all that are due, once for each scheduled time.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume its open run if that is paused.")] = False,
    cycles: Annotated[
        int | None, typer.Option(min=1, max=10, metavar="N", help="Run fewer cycles than its max_cycles.")
    ] = None,
    route: RouteOption = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="A limit, as model_calls=8; repeatable.")
    ] = None,
    at_limit: AtLimitOption = "end",
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Run cycles of a mandate, or follow its open run, until it has ended or needs a person.

    Exit codes: 0 completed, 1 failed, 2 wrong use, 3 paused or waiting for an answer, 4 stopped by a limit or a guard,
    130 cancelled; with --due, 0 for stopped.
    """
    from kairos_mcp.core.run_spec import CyclesRequest, MandateRef

    if not due and mandate_id is None:
        raise typer.BadParameter("which mandate? `mandate list` names them; or --due.")
    limits = parse_limits(tuple(limit or ()))
    request = CyclesRequest(MandateRef(mandate_id), cycles, route or "auto", limits, at_limit=at_limit)
    if due:
        return _run_due(flags, mandate_id, request, resume=resume, as_json=as_json)
    report = _run_cycles(flags, request, resume=resume, quiet=as_json)
    return print_ending(report, flags, as_json=as_json)


def _run_due(flags: Flags, mandate_id: str | None, request: CyclesRequest, *, resume: bool, as_json: bool) -> int:
    """Run each mandate that is due, one after another; return the highest of the exit codes.

    A run that a guard ended is named, and counts as well as a complete one: the next time goes on with the mandate.
    Where no model is configured none is begun, and stderr says which are due: a timer is nobody who could answer.
    """
    from kairos_mcp.app.schedules import unattended_note
    from kairos_mcp.core.run_spec import MandateRef
    from kairos_mcp.views.waiting import format_time

    async def find_due(app: App) -> tuple[list[ScheduledTime], list[ScheduledTime], list[str], ScheduledTime | None]:
        due = await app.schedules.list_due(mandate_id, PERSON)
        unattended = await app.schedules.list_unattended(due, PERSON) if request.route == "auto" else []
        notes = list(map(unattended_note, unattended))
        return due, unattended, notes, await app.schedules.find_next_due(mandate_id, PERSON)

    due, unattended, notes, coming = with_app(settings_here(flags), find_due)
    for note in notes:
        print_note(command_line_for(flags).complete_all(note))
    times = [time for time in due if time not in unattended]
    reports: list[RunReport] = []
    for time in times:
        print_note(f"{time.mandate_id} in {time.workspace or 'no folder'}, due {format_time(time.at)}")
        mandate = MandateRef(time.mandate_id, workspace=time.workspace or None)
        due_request = replace(request, mandate=mandate, due=time.at)
        try:
            report = _run_cycles(flags, due_request, resume=resume, quiet=as_json)
        except Stale as stale:  # another timer has begun it
            print_note(stale.message)
            continue
        reports.append(report)
        if not as_json:
            print_ending(report, flags)
    if as_json:
        next_due = None if coming is None else {"mandate_id": coming.mandate_id, "at": format_time(coming.at)}
        print_json({"runs": [report.as_json() for report in reports], "next_due": next_due})
    elif not due:
        print_line(Prose(_nothing_due_line(coming), has_times=True))
    for report in reports:
        if report.status == "stopped":
            print_note(f"run {report.run_id} was stopped: {report.stop_words}")
    codes = [COMPLETED if report.status == "stopped" else exit_code_of(report) for report in reports]
    return max(codes, default=WAITING if unattended else COMPLETED)


def _nothing_due_line(coming: ScheduledTime | None) -> str:
    from kairos_mcp.views.waiting import format_time

    if coming is None:
        return "nothing is due: no mandate here has a schedule"
    return f"nothing is due; {coming.mandate_id} is {_due_text(format_time(coming.at))}"


def _due_text(moment: str | None) -> str:
    """When something is due, in words; `moment`: in ISO 8601."""
    if moment is None:
        return "not due any more"
    seconds = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    return f"due since {moment}" if seconds <= 0 else f"next due {moment}, in {format_age(seconds)}"


def _run_cycles(flags: Flags, request: CyclesRequest, *, resume: bool, quiet: bool) -> RunReport:
    """Start a run of the mandate, or go on with its open run, and follow it. `resume`: also if that is paused."""

    async def begin(app: App) -> str:
        started = await app.runs.start(request, PERSON)
        if not started.attached:
            return started.run_id
        print_note(f"run {started.run_id} of this mandate is open")
        if resume:
            await app.control.request(started.run_id, "resume", PERSON)
        await app.control.drive(started.run_id)
        return started.run_id

    return follow_run(settings_here(flags), begin, quiet=quiet)


def _list_lines(flags: Flags, found: JsonObject) -> Iterator[Line]:
    if not found["mandates"]:
        yield command_line_for(flags).complete_all("No mandates here yet; `kairos-mcp mandate save FILE` makes one.")
    for mandate in found["mandates"]:
        status = mandate["status"] + (f" ({mandate['reason']})" if "reason" in mandate else "")
        where = f"{mandate['mandate_id']:<20} {workspace_name(mandate['workspace']):<16}"
        age = f"{age_since(mandate['saved_at']):>6}"
        yield f"{where} {status:<36} {mandate.get('run_id', '-'):<18} {age}  {one_line(mandate['goal'], 50)}"
        if "hint" in mandate:
            yield f"  {mandate['hint']}"
        elif "schedule" in mandate:
            schedule = mandate["schedule"]
            due = _due_text(mandate["next_due"])
            yield Prose(f"  schedule {schedule['rule']} ({schedule['time_zone']}): {due}", has_times=True)
    if found["elsewhere"]:
        yield f"{count_of(found['elsewhere'], 'mandate')} of other workspaces: --all shows all"


def _read_mandate(file: str) -> JsonObject:
    """The mandate in a file: an object as JSON, or as TOML if its name says so. Raises BadArguments."""
    from kairos_mcp.core.input_checks import Undecodable, parse_strict_json

    try:
        text = read_stdin_bounded() if file == "-" else read_text_bounded(Path(file))
        mandate = tomllib.loads(text) if file.endswith(".toml") else parse_strict_json(text)
    except OSError as error:
        raise BadArguments(f"{file} can't be read: {error.strerror}.", "Name a file that exists, or -.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        cure = "Give one object, as JSON or TOML in UTF-8."
        raise BadArguments(f"The mandate can't be read: {error}.", cure) from error
    except Undecodable as error:
        raise BadArguments(f"The mandate can't be used: {error.reason}.", 'As {"goal": "..."}.') from error
    if not isinstance(mandate, dict):
        raise BadArguments("The mandate is not an object.", 'As {"goal": "..."}.')
    return mandate
