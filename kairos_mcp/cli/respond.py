"""Commands that act on a run: `answer`, `approve`, `deny`, `settle`, `resume`, `cancel`.

Each but `cancel` then goes on with the run here, unless a living server has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.options import AllFlags, AsJson, Digest, Drive, Key, Principal, Run, StateFlags
from kairos_mcp.cli.session import PERSON, follow_run, person_for, print_ending, settings_for_run, with_app
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import DiffLine, diff_lines, emit, print_line, print_note
from kairos_mcp.core.decision_rights import Settlement, Verdict
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.identity import LOCAL
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.store.approvals import ApprovalRow
    from kairos_mcp.views.run_report import RunReport


def answer(
    run: Run,
    key: Key,
    text: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The answer; without it or --file, from stdin.")
    ] = None,
    *,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="A file with the answer.")] = None,
    drive: Drive = True,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Answer what a run waits for, and go on with it.

    A completion is {"content": TEXT} or {"tool_calls": [{"id", "name", "arguments"}]}; a tool's result is
    {"content": TEXT}.
    """
    answers = {key: _read_answer(text, file)}
    settings = settings_for_run(flags, run)

    async def answer_and_drive(app: App) -> str:
        await app.answers.submit(run, answers, PERSON)
        await app.control.drive(run)
        return run

    async def store_answer(app: App) -> RunReport:
        await app.answers.submit(run, answers, PERSON, drive=False)
        return await app.runs.report(run, PERSON)

    if drive:
        return print_ending(follow_run(settings, answer_and_drive, quiet=as_json), flags, as_json=as_json)
    report = with_app(settings, store_answer)
    emit(report.as_json(), [f"stored; run {run} is {report.status}"], as_json=as_json)
    return COMPLETED


def approve(
    run: Run,
    key: Key,
    *,
    digest: Digest = None,
    drive: Drive = True,
    principal: Principal = LOCAL,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Approve what a run asks permission for, and go on with it. `show` prints what that is."""
    return _decide(flags, run, key, "approve", None, digest=digest, principal=principal, drive=drive, as_json=as_json)


def deny(
    run: Run,
    key: Key,
    *,
    feedback: Annotated[
        str | None, typer.Option("--feedback", metavar="TEXT", help="What the model should know or do instead.")
    ] = None,
    digest: Digest = None,
    drive: Drive = True,
    principal: Principal = LOCAL,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Deny what a run asks permission for, and go on with it."""
    return _decide(flags, run, key, "deny", feedback, digest=digest, principal=principal, drive=drive, as_json=as_json)


def settle(
    run: Run,
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `show` prints it.")],
    settlement: Annotated[Settlement, typer.Argument(metavar="SETTLEMENT", help="reattempt or already_done.")],
    *,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="What you saw; the model reads it.")] = None,
    digest: Digest = None,
    principal: Principal = LOCAL,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Resolve a tool call whose outcome is unknown after a crash: try it again, or mark it as done."""
    caller = person_for(principal)

    async def settle_and_drive(app: App) -> str:
        await app.answers.settle(run, key, settlement, caller, note=note, digest=digest)
        await app.control.drive(run)
        return run

    report = follow_run(settings_for_run(flags, run), settle_and_drive, quiet=as_json, caller=caller)
    return print_ending(report, flags, as_json=as_json)


def resume(run: Run, *, principal: Principal = LOCAL, as_json: AsJson = False, flags: AllFlags) -> int:
    """Go on with a run that was paused, or whose process died.

    Exit codes are those of `run`.
    """
    caller = person_for(principal)

    async def begin(app: App) -> str:
        await app.control.resume(run, caller)
        return run

    report = follow_run(settings_for_run(flags, run), begin, quiet=as_json, caller=caller)
    return print_ending(report, flags, as_json=as_json)


def cancel(run: Run, *, as_json: AsJson = False, flags: AllFlags) -> int:
    """Cancel a run; what it did is kept."""

    async def cancel_and_wait(app: App) -> RunReport:
        await app.control.request(run, "cancel", PERSON)
        await app.runs.wait([run], until="done", wait_s=30, caller=PERSON)
        return await app.runs.report(run, PERSON)

    report = with_app(read_settings(flags), cancel_and_wait)
    emit(report.as_json(), [f"run {run} is {report.status}"], as_json=as_json)
    return COMPLETED if report.status == "cancelled" else FAILED


def _decide(
    flags: Flags,
    run_id: str,
    key: str,
    decision: Verdict,
    feedback: str | None,
    *,
    digest: str | None,
    principal: str,
    drive: bool,
    as_json: bool,
) -> int:
    """Decide about the waiting approval under the key; with `drive`, go on with the run here if no server does."""
    from kairos_mcp.models.answer_parsing import MAX_FEEDBACK_CHARS

    if feedback is not None and len(feedback) > MAX_FEEDBACK_CHARS:
        raise BadArguments(f"The feedback is longer than {MAX_FEEDBACK_CHARS} characters.", "Say it shorter.")
    settings, caller = settings_for_run(flags, run_id), person_for(principal)

    async def decide_and_drive(app: App) -> str:
        await decide(app, drive=True)
        await app.control.drive(run_id)
        return run_id

    async def store_decision(app: App) -> RunReport:
        await decide(app, drive=False)
        return await app.runs.report(run_id, caller)

    async def decide(app: App, *, drive: bool) -> None:
        approval = await app.answers.decide(run_id, key, decision, feedback, caller, digest=digest, drive=drive)
        for line in _decided_lines(approval, decision) if not as_json else ():
            print_line(line)

    if drive:
        report = follow_run(settings, decide_and_drive, quiet=as_json, caller=caller)
        return print_ending(report, flags, as_json=as_json)
    report = with_app(settings, store_decision)
    line = f"stored for whoever goes on with run {run_id}, which is {report.status}"
    emit(report.as_json(), [line], as_json=as_json)
    return COMPLETED


def _decided_lines(approval: ApprovalRow, decision: Verdict) -> Iterator[str | DiffLine]:
    """What exactly was decided about, again: the decision is bound to it."""
    yield from diff_lines(approval.preview)
    yield f"{'approved' if decision == 'approve' else 'denied'}: {approval.tool} at {approval.path}"


def _read_answer(text: str | None, file: str | None) -> JsonObject:
    """One JSON object, from the command line, a file or stdin. Raises BadArguments."""
    from kairos_mcp.core.strict_json import Undecodable, parse_strict_json

    if text is not None and file is not None:
        raise BadArguments("The answer is given twice.", "Give it as an argument, or by --file.")
    try:
        if file is not None:
            text = Path(file).read_text(encoding="utf-8")
        if text is None:
            if sys.stdin.isatty():
                print_note("The answer, one JSON object; Ctrl-D ends it:")
            text = sys.stdin.read()
        parsed = parse_strict_json(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadArguments(f"The answer can't be read: {error}.", "Give one JSON object as UTF-8.") from error
    except Undecodable as error:
        raise BadArguments(f"The answer can't be used: {error.reason}.", 'As {"content": "..."}.') from error
    if not isinstance(parsed, dict):
        raise BadArguments("The answer is no JSON object.", 'As {"content": "..."}.')
    return parsed
