"""The command `kairos-mcp`: from words to a command, from a failure to a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED, FAILED, USAGE
from kairos_mcp.cli.hardening import guard
from kairos_mcp.cli.server import plain_serve, serve
from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError, UnknownRun, UnknownTool
from kairos_mcp.settings.settings import unknown_variables


def main() -> None:
    """Run the command that stands on the command line, and exit."""
    ensure_utf8()
    guard(os.environ)
    name_unknown_variables()
    sys.exit(written_out(exit_code_of(sys.argv[1:])))


def ensure_utf8() -> None:
    """Start this process again in UTF-8 mode where its locale would have names of files in another encoding: then some
    that are listed could not be opened."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def name_unknown_variables() -> None:
    """Say on stderr which variables with our prefix mean nothing: a setting that was mistyped would not hold."""
    for name, meant in unknown_variables(os.environ):
        also = f"; is {meant} meant?" if meant else ""
        print(f"kairos-mcp: {name} is no setting and is ignored{also}", file=sys.stderr)  # noqa: T201 - to a person


def exit_code_of(words: Sequence[str]) -> int:
    """What the command gives back: 0, or 1 for a failure, 2 a wrong use, 3 a wait, 130 an end by hand."""
    try:
        flags = plain_serve(words)
        if flags is not None:
            serve(flags)
            return COMPLETED
        from kairos_mcp.cli.command_table import run_app

        return run_app(list(words))
    except KairosError as error:
        from kairos_mcp.app.command_text import for_this_terminal, state_options
        from kairos_mcp.core.redaction import Redactor

        said = for_this_terminal(state_options(words)).complete_all(Redactor.of(os.environ).text(str(error)).text)
        print(f"error: {said}", file=sys.stderr)  # noqa: T201 - the last word of a command
        return USAGE if isinstance(error, BadArguments | ConfigError | UnknownRun | UnknownTool) else FAILED
    except KeyboardInterrupt:
        return CANCELLED
    except BrokenPipeError:  # the reader has seen enough
        return FAILED


def written_out(code: int) -> int:
    """Write what stdout still buffers, and give `code` back; 1 where it can't be written. When the interpreter ends,
    it would be too late for a word and for a code of ours."""
    if getattr(sys.stdout, "closed", True):  # it is None where the process began without one
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left must not fail again at exit
        if not isinstance(error, BrokenPipeError):
            print(f"error: the output could not be written: {error.strerror}", file=sys.stderr)  # noqa: T201 - as above
        return FAILED
    return code
