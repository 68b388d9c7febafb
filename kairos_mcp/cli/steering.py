"""Runs that wait or move: answered, given leave or refused it, taken up, cancelled, settled."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kairos_mcp.cli.options import AllFlags, AsJson, Digest, Drive, Key, Run, StateFlags, Whose
from kairos_mcp.core.identity import LOCAL


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
    from kairos_mcp.cli.respond import answer_run

    return answer_run(flags, run, key, text, file=file, drive=drive, as_json=as_json)


def approve(
    run: Run,
    key: Key,
    *,
    digest: Digest = None,
    drive: Drive = True,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Give leave for what a run asks for, and go on with it; `show` has what that is."""
    from kairos_mcp.cli.approving import decide_run

    return decide_run(flags, run, key, "approve", digest=digest, principal=principal, drive=drive, as_json=as_json)


def deny(
    run: Run,
    key: Key,
    *,
    feedback: Annotated[
        str | None, typer.Option("--feedback", metavar="TEXT", help="What the model should know or do instead.")
    ] = None,
    digest: Digest = None,
    drive: Drive = True,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Refuse what a run asks leave for, and go on with it."""
    from kairos_mcp.cli.approving import decide_run

    return decide_run(
        flags, run, key, "deny", feedback, digest=digest, principal=principal, drive=drive, as_json=as_json
    )


def resume(run: Run, *, principal: Whose = LOCAL, as_json: AsJson = False, flags: AllFlags) -> int:
    """Go on with a run that was paused, or whose process died.

    Exit codes are those of `run`.
    """
    from kairos_mcp.cli.respond import resume_run

    return resume_run(flags, run, principal=principal, as_json=as_json)


def cancel(run: Run, *, as_json: AsJson = False, flags: AllFlags) -> int:
    """End a run; what it did is kept."""
    from kairos_mcp.cli.respond import cancel_run

    return cancel_run(flags, run, as_json=as_json)


def settle(
    run: Run,
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `show` prints it.")],
    settlement: Annotated[
        Literal["reattempt", "already_done"], typer.Argument(metavar="SETTLEMENT", help="reattempt or already_done.")
    ],
    *,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="What you saw; the model reads it.")] = None,
    digest: Digest = None,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Say of a call whose end nobody knows whether it is to be made again, or was done."""
    from kairos_mcp.cli.settling import settle_call

    return settle_call(flags, run, key, settlement, note, digest=digest, principal=principal, as_json=as_json)
