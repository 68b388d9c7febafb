"""Match a command's argument list with a pattern: one glob for each argument.

A pattern matches position by position and the whole list; only a last `...` leaves the end open. In a glob, `*` stands
for any text (slashes included), `?` for one character, `[abc]` for one of them. The first glob stands for the program:
without a slash for its bare name, with one for its path, which in the workspace begins with `./`.

Pure: tools/commands/program_names.py finds what a program is called.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.quick_dataclass import dataclass

OPEN_END = "..."
MAX_GLOBS = 100  # of one pattern
GLOB_CHARS = 1_000  # of one of its globs


@dataclass(frozen=True, slots=True)
class ProgramNames:
    """The names of a call's program. `safe`: names that an allow rule may match, the common one first; empty if the
    program is ambiguous. `all`: every name that a deny or ask rule may match."""

    safe: tuple[str, ...] = ()
    all: tuple[str, ...] = ()


def fits_pattern(globs: Sequence[str], names: Sequence[str], arguments: Sequence[str]) -> bool:
    """Return whether a pattern matches a program, by one of its names, with these arguments."""
    if not globs:
        return False
    program, *rest = globs
    if "/" in program and not program.startswith(("/", "./", "*")):
        program = f"./{program}"
    if not any(("/" in name) == ("/" in program) and fnmatchcase(name, program) for name in names):
        return False
    if rest and rest[-1] == OPEN_END:
        rest.pop()
        arguments = arguments[: len(rest)]
    return len(rest) == len(arguments) and all(
        fnmatchcase(text, glob) for text, glob in zip(arguments, rest, strict=True)
    )


def check_pattern(globs: Sequence[str]) -> str | None:
    """Return what is wrong with a pattern, or None."""
    if not globs:
        return "a pattern begins with the program"
    if len(globs) > MAX_GLOBS or any(len(glob) > GLOB_CHARS for glob in globs):
        return f"a pattern has at most {MAX_GLOBS} globs of {GLOB_CHARS} characters"
    if globs[0] in ("", OPEN_END):
        return "its first glob stands for the program"
    if OPEN_END in globs[:-1]:
        return f"{OPEN_END} stands at the end alone"
    return None


def literal_glob(text: str) -> str:
    """Return the glob that matches this text alone."""
    escaped = re.sub(r"([*?[])", r"[\1]", text)
    return "[.].." if escaped == OPEN_END else escaped  # a last argument of three dots is no open end


def parse_pattern(text: str) -> tuple[str, ...]:
    """Read a pattern that a person typed as one text, split into words as a shell would. Raises BadArguments."""
    try:
        globs = tuple(shlex.split(text))
    except ValueError as error:
        raise BadArguments(f"The pattern can't be read: {error}.", "As 'pytest tests/*' or 'pytest ...'.") from None
    if (problem := check_pattern(globs)) is not None:
        raise BadArguments(f"The pattern can't be used: {problem}.", "As 'pytest tests/*' or 'pytest ...'.")
    return globs


def format_pattern(globs: Sequence[str]) -> str:
    """Write a pattern as one text, as a person types it."""
    return " ".join(glob if re.fullmatch(r"[\w@%+=:,./*?\[\]!-]+", glob) else shlex.quote(glob) for glob in globs)
