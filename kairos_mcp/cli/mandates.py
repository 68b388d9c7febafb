"""`mandate save, list, run`: standing orders by a person's hand, or a system timer's with --due."""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kairos_mcp.cli.asking import limits_of, settings_here
from kairos_mcp.cli.exits import COMPLETED
from kairos_mcp.cli.running import PERSON, code_of, speak, stay, with_host
from kairos_mcp.cli.speech import line_of, say, say_json, tell
from kairos_mcp.configuration.layers import load_settings
from kairos_mcp.configuration.settings import Flags, Route
from kairos_mcp.decoding import Undecodable, strict_json
from kairos_mcp.errors import BadArguments, Stale
from kairos_mcp.hall.mandating import Asked, Meant
from kairos_mcp.host import Host
from kairos_mcp.messages import JsonObject
from kairos_mcp.reports.items import iso
from kairos_mcp.reports.report import RunReport


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks of a mandate's run, in their words. `resume`: go on with its open run where that is paused."""

    cycles: int | None = None
    route: Route | None = None
    limits: tuple[str, ...] = ()
    as_json: bool = False
    resume: bool = False

    def asked(self, due: int | None = None) -> Asked:
        return Asked(self.cycles, self.route or "auto", limits_of(self.limits), due)


def save_mandate(flags: Flags, file: str, *, as_json: bool) -> int:
    """Save the mandate that a file holds."""
    given = _read(file)

    async def save(host: Host) -> JsonObject:
        return await host.save_mandate(given, PERSON)

    saved = with_host(settings_here(flags), save)
    if as_json:
        say_json(saved)
    else:
        say(f"{'saved' if saved['changed'] else 'unchanged'}: {saved['mandate_id']} ({saved['status']})")
        for note in saved["degraded"]:
            say(f"note: {note}")
    return COMPLETED


def list_mandates(flags: Flags, *, as_json: bool) -> int:
    """The mandates, one a line."""

    async def look(host: Host) -> JsonObject:
        page = host.mandates(None, None, PERSON)
        found = list(page["mandates"])
        while (cursor := page["cursor"]) is not None:
            page = host.mandates(None, cursor, PERSON)
            found += page["mandates"]
        return {"mandates": found, "total": page["total"]}

    found = with_host(load_settings(flags, os.environ), look)
    if as_json:
        say_json(found)
        return COMPLETED
    if not found["mandates"]:
        say("No mandates yet; `kairos-mcp mandate save FILE` makes one.")
    for each in found["mandates"]:
        why = f" ({each['reason']})" if "reason" in each else ""
        stands = f"{each['status']}{why}"
        say(f"{each['mandate_id']:<20} {stands:<36} {each.get('run_id', '-'):<18} {line_of(each['goal'], 50)}")
    return COMPLETED


def run_mandate(flags: Flags, mandate_id: str, wish: Wish) -> int:
    """Cycles of a mandate, or its open run, until it ends or somebody has to look."""
    return speak(_stay(flags, mandate_id, wish), flags, as_json=wish.as_json)


def run_due(flags: Flags, only: str | None, wish: Wish) -> int:
    """One run for each time that is due, one after another; gives the highest of their codes."""

    async def look(host: Host) -> list[tuple[str, int]]:
        return host.mandates_due(only, PERSON)

    times = with_host(settings_here(flags), look)
    reports: list[RunReport] = []
    for mandate_id, at in times:
        tell(f"{mandate_id}, due {iso(at)}")
        try:
            reports.append(_stay(flags, mandate_id, wish, at))
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


def _stay(flags: Flags, mandate_id: str, wish: Wish, due: int | None = None) -> RunReport:
    asked = wish.asked(due)

    async def begin(host: Host) -> str:
        started = await host.start_cycles(Meant(mandate_id), asked, PERSON)
        if not started.attached:
            return started.run_id
        tell(f"run {started.run_id} of this mandate is open")
        if wish.resume:
            await host.control(started.run_id, "resume", PERSON)
        await host.drive_here(started.run_id)
        return started.run_id

    return stay(settings_here(flags), begin, quiet=wish.as_json)


def _read(file: str) -> JsonObject:
    """The mandate of a file: an object as JSON, or as TOML where its name says so. Raises BadArguments."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        given = tomllib.loads(text) if file.endswith(".toml") else strict_json(text)
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
