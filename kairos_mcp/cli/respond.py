"""`answer`, `resume` and `cancel`: a person's word to a run that somebody else may own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kairos_mcp.app.app import App
from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.session import PERSON, person, settings_for, speak, stay, with_host
from kairos_mcp.cli.speech import say, say_json, tell
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.strict_json import Undecodable, parse_strict_json
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.views.run_report import RunReport


def answer_run(
    flags: Flags, run_id: str, key: str, text: str | None, *, file: str | None, drive: bool, as_json: bool
) -> int:
    """Deposit an answer; unless told otherwise, go on with the run here if no server does."""
    answers = {key: _answer(text, file)}
    settings = settings_for(flags, run_id)

    async def begin(host: App) -> str:
        await host.answer(run_id, answers, PERSON)
        await host.drive_here(run_id)
        return run_id

    async def deposit(host: App) -> RunReport:
        await host.answer(run_id, answers, PERSON, drive=False)
        return host.report(run_id, PERSON)

    if drive:
        return speak(stay(settings, begin, quiet=as_json), flags, as_json=as_json)
    report = with_host(settings, deposit)
    if as_json:
        say_json(report.as_json())
    else:
        say(f"stored; run {run_id} is {report.status}")
    return COMPLETED


def resume_run(flags: Flags, run_id: str, *, principal: str, as_json: bool) -> int:
    """Take up a run that was paused, or whose server or command was killed, and stay until it waits or ends; one that
    moves elsewhere is watched."""
    who = person(principal)

    async def begin(host: App) -> str:
        await host.resume(run_id, who)
        return run_id

    return speak(stay(settings_for(flags, run_id), begin, quiet=as_json, who=who), flags, as_json=as_json)


def cancel_run(flags: Flags, run_id: str, *, as_json: bool) -> int:
    """End a run. 0 where it is cancelled in the end, also where it was before."""

    async def cancel(host: App) -> RunReport:
        await host.control(run_id, "cancel", PERSON)
        await host.wait([run_id], until="done", wait_s=30, caller=PERSON)
        return host.report(run_id, PERSON)

    report = with_host(load_settings(flags, os.environ), cancel)
    if as_json:
        say_json(report.as_json())
    else:
        say(f"run {run_id} is {report.status}")
    return COMPLETED if report.status == "cancelled" else FAILED


def _answer(text: str | None, file: str | None) -> JsonObject:
    """One JSON object, from the command line, a file or stdin."""
    if text is not None and file is not None:
        raise BadArguments("The answer is given twice.", "Give it as an argument, or by --file.")
    try:
        if file is not None:
            text = Path(file).read_text(encoding="utf-8")
        if text is None:
            if sys.stdin.isatty():
                tell("The answer, one JSON object; Ctrl-D ends it:")
            text = sys.stdin.read()
        answer = parse_strict_json(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadArguments(f"The answer can't be read: {error}.", "Give one JSON object as UTF-8.") from error
    except Undecodable as error:
        raise BadArguments(f"The answer can't be used: {error.reason}.", 'As {"content": "..."}.') from error
    if not isinstance(answer, dict):
        raise BadArguments("The answer is no JSON object.", 'As {"content": "..."}.')
    return answer
