"""`runs --prune`: removes what a person does not want to keep, and says what went and what it freed."""

from __future__ import annotations

import os
import re

from kairos_mcp.app.app import App
from kairos_mcp.app.retention import PruneResult
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.output import commands_of
from kairos_mcp.cli.session import with_host
from kairos_mcp.cli.speech import say, say_json
from kairos_mcp.core.counting import count_of
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

_DAYS = {"h": 1 / 24, "d": 1, "w": 7}


def prune_runs(flags: Flags, older_than: str | None, *, asked: bool, as_json: bool) -> int:
    """Remove the runs that ended so long ago. Raises BadArguments where nobody says how long."""
    if not asked:
        raise BadArguments("--older-than goes with --prune.", "`kairos-mcp runs --prune --older-than 30d`")
    settings = load_settings(flags, os.environ)
    days = _days(older_than) if older_than is not None else settings.keep_days
    if days is None:
        raise BadArguments("Ended runs are kept for ever here.", "Say what may go: --older-than 30d; or set keep_days.")

    async def prune(host: App) -> PruneResult:
        return await host.prune(days, shrink=True)

    done = with_host(settings, prune)
    if as_json:
        sizes = {"bytes_before": done.before, "bytes_after": done.after}
        say_json({"runs": done.runs, "texts": done.texts, **sizes, "unreadable": list(done.unreadable)})
        return COMPLETED
    say(f"{count_of(done.runs, 'run')} removed, {done.before >> 10} KB before, {done.after >> 10} KB now")
    for run_id in done.unreadable:
        where = commands_of(flags).complete_all("`kairos-mcp doctor` says what is wrong with it.")
        say(f"Run {run_id} can't be read, and was left; {where}")
    if done.texts is None:
        say("Texts that nothing refers to any more were left, since others write; call again.")
    elif done.runs and not done.shrunk:
        say("The space is used again by what comes; it goes back to the disk when no server lives on the store.")
    return COMPLETED


def _days(age: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([hdw])", age)
    if found is None:
        raise BadArguments(f"--older-than: {age[:20]!r} is no age.", "As 12h, 30d or 2w.")
    return int(found[1]) * _DAYS[found[2]]
