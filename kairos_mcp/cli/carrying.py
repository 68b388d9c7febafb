"""`export` writes a run to a file; `replay FILE` verifies such a file, which needs no store."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kairos_mcp.app.app import App
from kairos_mcp.app.command_text import for_this_terminal
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.runs import speak_of
from kairos_mcp.cli.session import PERSON, with_host
from kairos_mcp.cli.speech import tell
from kairos_mcp.core.errors import BadArguments, NoSpace
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

STDIN = "-"


def names_file(text: str) -> bool:
    """Whether a file is meant, and not a run: a run's name holds neither a slash nor a point."""
    return text == STDIN or re.search(r"[/\\.]", text) is not None or Path(text).is_file()


def verify_file(name: str, *, as_json: bool) -> int:
    """Build the run of a file again. 0 where each step asks what was asked then."""
    from kairos_mcp.history.verify import verify

    if name == STDIN:
        return speak_of(verify(sys.stdin.buffer), as_json=as_json)
    try:
        with Path(name).open("rb") as file:
            return speak_of(verify(file), as_json=as_json)
    except OSError as error:
        raise BadArguments(f"The file can't be read: {error.strerror}.", "Name one that is there.") from error


def export_run(flags: Flags, run_id: str, file: str | None) -> int:
    """Write the run to the file, whole or not at all; without one to stdout. Out of a damaged state file as well."""
    settings = load_settings(flags, os.environ)

    async def write(host: App) -> int:
        return _write_export(host.export(run_id, PERSON), file)

    size = with_host(settings, write, salvage=True)
    if file is not None:
        tell(f"{file}: {size:,} bytes; verify it anywhere with: {for_this_terminal().words('replay', file)}")
    return COMPLETED


def _write_export(lines: Iterator[bytes], file: str | None) -> int:
    if file is None:
        size = 0
        for line in lines:
            size += sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return size
    target = Path(file).absolute()
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as beside:
            made = Path(beside.name)
            try:
                for line in lines:
                    beside.write(line)
                beside.flush()
                os.fsync(beside.fileno())
                size = beside.tell()
                made.replace(target)
            except BaseException:
                made.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise NoSpace(f"The file can't be written: {error.strerror}.", "Name another, or free some space.") from error
    return size
