"""`inbox`: what waits for a person over all runs, decided one after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.follow import follow_run, open_follower, print_ending
from kairos_mcp.cli.keyboard import is_person_there
from kairos_mcp.cli.options import AllFlags, AllWorkspaces, AsJson, Principal
from kairos_mcp.cli.output import command_line_for, purpose_line, shell_command, workspace_name
from kairos_mcp.cli.session import find_target_to_drive, person_for, with_app
from kairos_mcp.cli.settings import settings_for_list
from kairos_mcp.cli.terminal import Line, Prose, emit, one_line, print_line, print_note
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.views.words import as_json

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.views.run_report import RunReport

_ASKED_CHARS = 400  # in a list; `show` has all
_DECIDED = ("approval", "settle")  # the kinds of items that a person decides about


Since = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="First list what happened since: 90m, 8h, 2d, or a time in ISO 8601."),
]
_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": DAY_MS}


def inbox(
    *,
    everywhere: AllWorkspaces = False,
    since: Since = None,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Show what waits for you in all runs of this workspace, and decide about it, one after another. Ctrl-C leaves.

    Without a terminal, or with --json, print a list.
    """
    settings, caller = settings_for_list(flags), person_for(principal or LOCAL)
    everywhere = everywhere or not settings.workspaces
    begun = None if since is None else _parse_since(since)
    happened: list[JsonObject] = []

    async def look(app: App) -> tuple[list[RunReport], list[str]]:
        if begun is not None:
            happened.extend(await app.events.list_since(begun, caller, everywhere=everywhere))
        waiting = await app.overview.list_waiting_ids(caller, everywhere=everywhere)
        notes = await _other_matters(app, caller)
        if count := await app.overview.count_waiting_for_caller(caller, everywhere=everywhere):
            verb = "waits" if count == 1 else "wait"
            command = "runs --all" if everywhere else "runs"
            notes.append(f"{count_of(count, 'run')} {verb} for a model's answer: `kairos-mcp {command}`")
        return [await app.runs.report(run_id, caller) for run_id in waiting], notes

    reports, notes = with_app(settings, look)
    if as_json or not is_person_there():
        value = {"waiting": [item for report in reports for item in _items(report)], "notes": notes}
        value |= {"happened": happened} if since is not None else {}
        emit(value, [*_event_lines(happened), *_list_lines(reports, notes, flags)], as_json=as_json)
        return COMPLETED
    for line in _event_lines(happened):
        print_line(line)
    to_decide = [report for report in reports if any(item["kind"] in _DECIDED for item in _items(report))]
    decided, has_left = _decide_all(settings, to_decide, caller) if to_decide else ([], False)
    if has_left:
        print_note("\nThe rest waits.")
        for run_id in decided:
            resume = shell_command(flags, "resume", run_id)
            print_note(f"Run {run_id} goes on at a server or a worker, or by:\n  {resume}")
        return COMPLETED
    for run_id in decided:
        target = find_target_to_drive(flags, run_id)
        print_note(f"\ngoing on with run {run_id}")

        async def drive(app: App, run_id: str = run_id) -> str:
            await app.control.drive(run_id)
            return run_id

        print_ending(follow_run(target.settings, drive, caller=caller), flags)
    others = [report for report in reports if report not in to_decide]
    for line in _list_lines(others, notes, flags) if others or notes or not reports else ():
        print_line(line)
    return COMPLETED


def _parse_since(text: str) -> int:
    """Return the time (ms since 1970) that a person means. Raises BadParameter."""
    amount, unit = text[:-1], text[-1:]
    if amount.isascii() and amount.isdecimal() and unit in _UNITS_MS:
        return int(time.time() * 1000) - int(amount) * _UNITS_MS[unit]
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text[:40]!r} is no time: use 90m, 8h, 2d, or 2026-11-27T18:00.") from None


def _event_lines(happened: Sequence[JsonObject]) -> Iterator[Line]:
    for event in happened:
        yield Prose(f"{event['timestamp']} · {event['name']} · {event['data']['text']}")


def _decide_all(settings: Settings, reports: list[RunReport], caller: Caller) -> tuple[list[str], bool]:
    """Ask about everything that can be decided here; return the runs for which something was decided, and whether the
    person left before the end.

    Each decision is stored at once, so that a living server goes on while the person looks at the next.
    """

    async def ask(app: App) -> tuple[list[str], bool]:
        decided = []
        async with open_follower(app, caller) as follower:
            for at, report in enumerate(reports):
                how_to_leave = " (Ctrl-C leaves the rest for later)" if at + 1 < len(reports) else ""
                print_note(f"\n{at + 1} of {len(reports)}{how_to_leave}")
                if await follower.decide_waiting(report, with_settlements=True):
                    decided.append(report.run_id)
                if follower.keyboard.was_left:
                    break
            return decided, follower.keyboard.was_left

    return with_app(settings, ask)


async def _other_matters(app: App, caller: Caller) -> list[str]:
    """What else only a person can put right: definitions of tools, mandates without a folder or without a model."""
    notes = [
        f"{each.address} waits for approval: `kairos-mcp tools approve {each.address}` shows it."
        for each in await app.tools.list_waiting()
    ]
    return [*notes, *await app.schedules.notes_for_person(caller)]


def _items(report: RunReport) -> Iterator[JsonObject]:
    """What a run waits for a person for: decisions by key, or to be resumed."""
    run = {"run_id": report.run_id, "goal": report.goal, "workspace": report.workspace, "created_at": report.created_at}
    found = [item for item in report.waiting if item["kind"] in _DECIDED]
    yield from ({**run, **item} for item in found)
    if not found and report.status == "paused":
        yield {**run, "kind": "pause", "why": report.next["why"] if report.next is not None else None}


def _list_lines(reports: list[RunReport], notes: list[str], flags: Flags) -> Iterator[Line]:
    """What waits, what for, and with which arguments; and the command that shows it with the ways to decide."""
    if not reports and not notes:
        yield "Nothing waits for you."
    for report in reports:
        for item in _items(report):
            what = f"{item['kind']} of {item['name']}" if "name" in item else item["kind"]
            yield Prose(f"{report.run_id} · {what} · {purpose_line(report, workspace_name(report.workspace))}")
            if "key" in item:
                asked = as_json(item["arguments"]) if "arguments" in item else item.get("preview", "")
                shown = f"{item['key']}  {asked}"
                yield f"  {one_line(shown, _ASKED_CHARS)}"
            yield f"  {shell_command(flags, 'show', report.run_id)}"
    for note in notes:
        yield Prose(command_line_for(flags).complete_all(note))
