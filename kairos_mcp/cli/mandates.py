"""`mandate save, list, edit, run`: standing orders by a person's hand, or a system timer's with --due."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kairos_mcp.app.app import App
from kairos_mcp.app.mandates import MandateRef, RunOptions, ScheduledTime
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.output import age_of, commands_of, project_of
from kairos_mcp.cli.run import limits_of, settings_at_hand, settings_here
from kairos_mcp.cli.session import PERSON, code_of, speak, stay, with_host
from kairos_mcp.cli.speech import line_of, say, say_json, tell
from kairos_mcp.core.counting import count_of
from kairos_mcp.core.errors import BadArguments, Stale
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.strict_json import Undecodable, parse_strict_json
from kairos_mcp.settings.settings import Flags, Route
from kairos_mcp.views.run_report import RunReport
from kairos_mcp.views.waiting import iso


@dataclass(frozen=True, slots=True)
class MandateRunOptions:
    """What a person asks of a mandate's run, in their words. `resume`: go on with its open run where that is paused."""

    cycles: int | None = None
    route: Route | None = None
    limits: tuple[str, ...] = ()
    as_json: bool = False
    resume: bool = False

    def asked(self, due: int | None = None) -> RunOptions:
        return RunOptions(self.cycles, self.route or "auto", limits_of(self.limits), due)


def save_mandate(flags: Flags, file: str, *, as_json: bool) -> int:
    """Save the mandate that a file holds."""
    given = _read_mandate_file(file)

    async def save(host: App) -> JsonObject:
        return await host.save_mandate(given, PERSON)

    saved = with_host(settings_here(flags), save)
    if as_json:
        say_json(saved)
    else:
        say(f"{'saved' if saved['changed'] else 'unchanged'}: {saved['mandate_id']} ({saved['status']})")
        for note in saved["degraded"]:
            say(f"note: {note}")
    return COMPLETED


def list_mandates(flags: Flags, *, everywhere: bool, as_json: bool) -> int:
    """The mandates of the workspaces at hand, or `everywhere`, one a line."""

    async def look(host: App) -> JsonObject:
        page = host.mandates(None, None, PERSON, everywhere=everywhere or not host.settings.workspaces)
        found = list(page["mandates"])
        while (cursor := page["cursor"]) is not None:
            page = host.mandates(None, cursor, PERSON, everywhere=everywhere or not host.settings.workspaces)
            found += page["mandates"]
        return {"mandates": found, "total": page["total"], "elsewhere": page["elsewhere"]}

    found = with_host(settings_at_hand(flags), look)
    if as_json:
        say_json(found)
        return COMPLETED
    if not found["mandates"]:
        say(commands_of(flags).complete_all("No mandates here yet; `kairos-mcp mandate save FILE` makes one."))
    for each in found["mandates"]:
        why = f" ({each['reason']})" if "reason" in each else ""
        stands = f"{each['status']}{why}"
        where = project_of(each["workspace"])
        stand = f"{each['mandate_id']:<20} {where:<16} {stands:<36} {each.get('run_id', '-'):<18}"
        say(f"{stand} {age_of(each['saved_at']):>6}  {line_of(each['goal'], 50)}")
        if "hint" in each:
            say(f"  {each['hint']}")
    if found["elsewhere"]:
        say(f"{count_of(found['elsewhere'], 'mandate')} of other workspaces: --all shows them")
    return COMPLETED


def edit_mandate(flags: Flags, mandate_id: str, *, as_json: bool) -> int:
    """Put a mandate into the one folder that is named."""
    if len(flags.workspaces) != 1:
        raise BadArguments("Which folder?", "Name one by --workspace DIR.")
    settings = settings_here(flags)

    async def move(host: App) -> JsonObject:
        return await host.move_mandate(mandate_id, str(settings.workspaces[0]), PERSON)

    moved = with_host(settings, move)
    if as_json:
        say_json(moved)
    else:
        say(f"{moved['mandate_id']} belongs to {moved['workspace']} ({moved['status']})")
    return COMPLETED


def run_mandate(flags: Flags, mandate_id: str, wish: MandateRunOptions) -> int:
    """Cycles of a mandate, or its open run, until it ends or somebody has to look."""
    return speak(_stay(flags, MandateRef(mandate_id), wish), flags, as_json=wish.as_json)


def run_due(flags: Flags, only: str | None, wish: MandateRunOptions) -> int:
    """One run for each time that is due, one after another; gives the highest of their codes."""

    async def look(host: App) -> tuple[list[ScheduledTime], list[str]]:
        return host.due_mandates(only, PERSON), [] if only else host.mandates_without_workspace(PERSON)

    times, refused = with_host(settings_here(flags), look)
    for line in refused:
        tell(commands_of(flags).complete_all(line))
    reports: list[RunReport] = []
    for due in times:
        tell(f"{due.mandate_id} in {due.workspace or 'no folder'}, due {iso(due.at)}")
        try:
            reports.append(_stay(flags, MandateRef(due.mandate_id, workspace=due.workspace or None), wish, due.at))
        except Stale as passed:  # another timer was quicker
            tell(passed.message)
            continue
        if not wish.as_json:
            speak(reports[-1], flags)
    if wish.as_json:
        say_json({"runs": [report.as_json() for report in reports]})
    elif not times:
        say("nothing is due")
    return max(map(code_of, reports), default=COMPLETED)


def _stay(flags: Flags, meant: MandateRef, wish: MandateRunOptions, due: int | None = None) -> RunReport:
    asked = wish.asked(due)

    async def begin(host: App) -> str:
        started = await host.start_cycles(meant, asked, PERSON)
        if not started.attached:
            return started.run_id
        tell(f"run {started.run_id} of this mandate is open")
        if wish.resume:
            await host.control(started.run_id, "resume", PERSON)
        await host.drive_here(started.run_id)
        return started.run_id

    return stay(settings_here(flags), begin, quiet=wish.as_json)


def _read_mandate_file(file: str) -> JsonObject:
    """The mandate of a file: an object as JSON, or as TOML where its name says so. Raises BadArguments."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        given = tomllib.loads(text) if file.endswith(".toml") else parse_strict_json(text)
    except OSError as error:
        raise BadArguments(f"{file} can't be read: {error.strerror}.", "Name a file that is there, or -.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        cure = "Give one object, as JSON or TOML in UTF-8."
        raise BadArguments(f"The mandate can't be read: {error}.", cure) from error
    except Undecodable as error:
        raise BadArguments(f"The mandate can't be used: {error.reason}.", 'As {"goal": "..."}.') from error
    if not isinstance(given, dict):
        raise BadArguments("The mandate is no object.", 'As {"goal": "..."}.')
    return given
