"""`export` and `replay`: write a run to a file; verify a run by building it again, from its rows or such a file."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.options import AllFlags, AsJson, Run
from kairos_mcp.cli.session import find_target, with_app
from kairos_mcp.cli.terminal import emit, print_note
from kairos_mcp.core.errors import BadArguments, NoSpace
from kairos_mcp.core.text import count_of
from kairos_mcp.views.command_text import terminal_command_line

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.history.replay_check import ReplayReport

STDIN = "-"  # and of `export` stdout


def replay(
    run: Annotated[
        str, typer.Argument(metavar="RUN|FILE", help="A run, `last`, or a file that `export` wrote; - is stdin.")
    ],
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Verify a run: build it again from its record and compare each step. A file needs no state folder."""
    if run == STDIN or re.search(r"[/\\.]", run) or Path(run).is_file():  # a run's id has neither a slash nor a point
        report = _replay_file(run)
    else:
        target = find_target(flags, run)

        async def replay_rows(app: App) -> ReplayReport:
            return await app.records.replay(target.run_id, target.caller)

        report = with_app(target.settings, replay_rows)
    emit(report.as_json(), _replay_lines(report), as_json=as_json)
    return COMPLETED if report.identical else FAILED


def export(
    run: Run,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The file to write. Default: stdout, as with -.")
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    flags: AllFlags,
) -> int:
    """Write a run as JSON Lines, to keep or to verify elsewhere with `replay FILE`."""
    file = None if file == STDIN else file
    if file is not None and not force and os.path.lexists(file):
        raise BadArguments(f"{file} exists.", "Name another one; --force replaces it.")
    target = find_target(flags, run, salvage=True)

    async def write(app: App) -> int:
        return _write_export(await app.records.export(target.run_id, target.caller), file)

    size = with_app(target.settings, write, salvage=True)
    if file is not None:
        print_note(
            f"{file}: {size:,} bytes; verify it anywhere with: {terminal_command_line().format_command('replay', file)}"
        )
    return COMPLETED


def _replay_file(name: str) -> ReplayReport:
    from kairos_mcp.history.format import list_lines
    from kairos_mcp.history.verify import verify

    if name == STDIN:
        return verify(list_lines(sys.stdin.buffer))
    try:
        with Path(name).open("rb") as file:
            return verify(list_lines(file))
    except OSError as error:
        raise BadArguments(f"The file can't be read: {error.strerror}.", "Name one that exists.") from error


def _replay_lines(report: ReplayReport) -> Iterator[str]:
    difference = report.difference
    if difference is None:
        yield f"run {report.run_id}: {count_of(report.steps, 'step')} built again from the record, all identical"
        if report.by_shape:
            yield f"of {report.by_shape} only path and kind were compared: a secret was taken out before them"
        return
    yield f"run {report.run_id}: differs from its record at {difference.path}: {difference.text}"
    label = "recorded" if difference.certain else "recorded, as far as the rows tell"
    for name, request in ((label, difference.recorded), ("asked now", difference.asked)):
        if request is not None:
            yield f"  {name}: {json.dumps(request, ensure_ascii=False)}"
    if difference.message is not None:
        yield f"  the first message that differs is number {difference.message['at']}"
        yield f"    recorded: {json.dumps(difference.message['recorded'], ensure_ascii=False)}"
        yield f"    asked now: {json.dumps(difference.message['asked'], ensure_ascii=False)}"


def _write_export(lines: Iterator[bytes], file: str | None) -> int:
    """Write the lines to stdout, or to a file, which then is complete or not there; return the bytes written. Raises
    NoSpace."""
    if file is None:
        size = 0
        for line in lines:
            size += sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return size
    target = Path(file).absolute()
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as stream:
            temporary = Path(stream.name)
            try:
                for line in lines:
                    stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
                size = stream.tell()
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise NoSpace(f"The file can't be written: {error.strerror}.", "Name another, or free some space.") from error
    return size
