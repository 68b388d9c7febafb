"""The program `kairos-mcp`: run the command that is typed, turn a failure into a line and an exit code.

Nothing is imported here that `--version` doesn't need.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence

from kairos_mcp import __version__
from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED, FAILED, USAGE

_WRONG_USE = (
    "bad_arguments",
    "schema_rejected",
    "config_error",
    "unknown_run",
    "unknown_tool",
    "unknown_agent",
    "unknown_mandate",
    "not_found",
)


def main() -> None:
    """Run the command on the command line, and exit."""
    open_standard_streams()
    words = sys.argv[1:]
    if words == ["--version"]:  # shells and installers ask it often, and it needs nothing else of the program
        print(f"kairos-mcp {__version__}")  # noqa: T201 - what prints otherwise has to be imported
        sys.exit(flush_output(COMPLETED))
    gc.set_threshold(50_000)  # loading the program makes little garbage, and looking for it took a tenth of the time
    from kairos_mcp.cli.hardening import protect_secrets
    from kairos_mcp.cli.settings import unknown_variable_notes
    from kairos_mcp.cli.terminal import print_note

    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:  # some listed files could not be opened
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-P", "-X", "utf8", *sys.orig_argv[1:]])
    protect_secrets(os.environ)
    if words[:1] != ["serve"]:  # which logs them
        for note in unknown_variable_notes():
            print_note(f"kairos-mcp: {note}")
    code = flush_output(run_command(words))
    gc.freeze()  # all that is loaded ends with the process: looking for garbage in it took a fifth of a short command
    sys.exit(code)


def open_standard_streams() -> None:
    """Open those of the three standard streams that this process was started without, each on the null device. Else
    the next file that is opened, which may be the state file, would be taken for stdout by whoever prints."""
    for number, (name, flags, mode) in enumerate(
        (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w"))
    ):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            os.dup2(opened, number)  # also where both are one: what is started from here inherits it
            os.set_inheritable(number, True)
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def run_command(words: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, 1 for a failure, 2 for wrong use, 3 if the run waits, 4 if a guard
    stopped it, 130 if it was cancelled."""
    from kairos_mcp.cli.serve import plain_serve, serve_stdio
    from kairos_mcp.cli.terminal import Prose, print_note
    from kairos_mcp.core.errors import KairosError

    try:
        flags = plain_serve(words)
        if flags is not None:
            serve_stdio(flags)
            return COMPLETED
        from kairos_mcp.cli.command_table import run_app

        return run_app(list(words))
    except KairosError as error:
        from kairos_mcp.core.redaction import Redactor
        from kairos_mcp.views.command_text import name_commands, state_options, terminal_command_line

        told = f"{error.message} {name_commands(error.hint, error.run_id)}".rstrip()
        redacted = Redactor.from_environ(os.environ).redact_text(told).text
        print_note(Prose(f"error: {terminal_command_line(state_options(words)).complete_all(redacted)}"))
        return USAGE if error.code in _WRONG_USE else FAILED
    except KeyboardInterrupt:
        return CANCELLED
    except BrokenPipeError:  # whoever reads our output has closed it, as `head` does
        return FAILED
    except OSError as error:  # a file of a command's own, or stdout where it is one
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = "" if error.filename is None else f" where {error.filename} should be written"
        print_note(Prose(f"error: The disk is full{where}. Free some space, then run the command again."))
        return FAILED


def flush_output(code: int) -> int:
    """Write what stdout still buffers, and return `code`, or 1 if it could not be written. If the interpreter did this
    at its end, it would be too late for a message and an exit code of ours."""
    if getattr(sys.stdout, "closed", True):  # it is None where the process began without one
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        from kairos_mcp.cli.terminal import print_note

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left must not fail again at exit
        if not isinstance(error, BrokenPipeError):
            print_note(f"error: the output could not be written: {error.strerror}")
        return FAILED
    return code
