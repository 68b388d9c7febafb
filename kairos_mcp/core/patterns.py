"""Compile a model's regular expressions and globs, with RE2 alone and within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.safe_patterns import BYTES_PER_UNIT
from kairos_mcp.core.work import THREAD_UNITS, TooMuchWork, Work

PATTERN_CHARS = 1_000
PROGRAM_SIZE = 10_000  # instructions of RE2's program: what its slowest engine pays for each byte
MAX_MEM = 1 << 20  # bytes for one pattern's program and its automaton; to find out that one is larger takes 4 ms
UNICODE_CLASSES = 50  # such as \pL, each of which takes up to 76 microseconds to write out, whatever the program's size
GLOB_CHARS = 256
GLOB_STARS = 8  # how often ** may stand in a glob
SYNTAX = "RE2 syntax: no backreferences, no look-around; (?i) ignores case; \\ makes a character literal."
GLOB_SYNTAX = "As in *.py, src/**/*.{ts,tsx}, docs/[a-c]?.md."


def compile_line_pattern(text: str) -> Any:
    """Compile an RE2 pattern over bytes that never matches across lines; ^ and $ match at every line.

    Raises BadArguments with RE2's own reason. The result is untyped, since google-re2 ships no types.
    """
    if len(text) > PATTERN_CHARS:
        raise BadArguments(f"The pattern has {len(text)} characters; {PATTERN_CHARS} are the most.", SYNTAX)
    if text.lower().count("\\p") > UNICODE_CLASSES:
        raise BadArguments(f"The pattern has more than {UNICODE_CLASSES} classes such as \\pL.", SYNTAX)
    pattern = _compile(f"(?m){text}", "pattern", SYNTAX, never_nl=True)
    if pattern.programsize > PROGRAM_SIZE:
        raise BadArguments("The pattern is too large once its repetitions are written out.", SYNTAX)
    return pattern


def compile_line_search(text: str) -> Callable[[bytes], bool]:
    """Return a search for a pattern in lines, for a worker thread: all its searches together cost a bounded work.

    Raises BadArguments as `compile_line_pattern` does; the search does where that work is used up.
    """
    pattern, work = compile_line_pattern(text), Work(THREAD_UNITS)

    def matches(line: bytes) -> bool:
        try:
            work.spend(1 + len(line) * pattern.programsize // BYTES_PER_UNIT)
        except TooMuchWork:
            raise BadArguments("This search would take too long.", "Use a shorter pattern, or look at less.") from None
        return pattern.search(line) is not None

    return matches


def compile_glob(text: str) -> Callable[[str], bool]:
    """Compile a glob to a function that says whether a path, relative to the start of a search, matches.

    A glob without / matches names at any depth. Raises BadArguments for one that is too long or has too many **.
    """
    if len(text) > GLOB_CHARS or text.count("**") > GLOB_STARS:
        most = f"at most {GLOB_CHARS} characters and {GLOB_STARS} times **"
        raise BadArguments(f"The glob is too large; {most}.", GLOB_SYNTAX)
    plain = text.removeprefix("./").removesuffix("/") + ("/**" if text.endswith("/") else "")
    if not plain:
        raise BadArguments("The glob is empty.", GLOB_SYNTAX)
    expression = _glob_to_regex(plain.removeprefix("/"))
    if "/" not in plain:
        expression = f"(?:.*/)?{expression}"
    pattern = _compile(f"(?s){expression}", "glob", GLOB_SYNTAX)

    def matches(path: str) -> bool:
        return pattern.fullmatch(path.encode("utf-8", "replace")) is not None

    return matches


def _compile(text: str, what: str, hint: str, *, never_nl: bool = False) -> Any:
    import re2  # at first use: most runs never search

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.never_nl = never_nl
    options.max_mem = MAX_MEM
    try:
        return re2.compile(text.encode(), options)
    except UnicodeEncodeError:
        raise BadArguments(f"The {what} holds a lone surrogate.", hint) from None
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace").replace("(?m)", "", 1)[:120]
        raise BadArguments(f"The {what} can't be used: {reason}.", hint) from None


def _glob_to_regex(text: str) -> str:
    import re2

    made: list[str] = []
    depth = at = 0
    while at < len(text):
        piece, width = _next_piece(text, at, depth)
        depth += {"(?:": 1, ")": -1}.get(piece, 0)
        made.append(piece if width else re2.escape(text[at]))
        at += width or 1
    if depth:
        raise BadArguments("A { in the glob is not closed.", GLOB_SYNTAX)
    return "".join(made)


def _next_piece(text: str, at: int, depth: int) -> tuple[str, int]:
    """Return the regex for the special part at `at`, and its width in characters; 0 for an ordinary character."""
    starts = at == 0 or text[at - 1] in "/{,"
    match text[at]:
        case "*" if starts and text.startswith("**/", at):
            return "(?:.*/)?", 3
        case "*" if text.startswith("**", at):
            return (".*" if starts and at + 2 == len(text) else "[^/]*"), 2
        case "*":
            return "[^/]*", 1
        case "?":
            return "[^/]", 1
        case "[":
            return _translate_class(text, at)
        case "{":
            return "(?:", 1
        case "}" if depth:
            return ")", 1
        case "," if depth:
            return "|", 1
    return "", 0


def _translate_class(text: str, at: int) -> tuple[str, int]:
    """Translate a bracket class, as `_next_piece` does; an unclosed bracket is an ordinary character."""
    negated = text[at + 1 : at + 2] in ("!", "^")
    first = at + 2 if negated else at + 1
    end = text.find("]", first + 1)
    if end < 0:
        return "", 0
    inner = "".join(c if c == "-" else f"\\{c}" if c in "\\[]^&~" else c for c in text[first:end])
    return f"[{'^/' if negated else ''}{inner}]", end + 1 - at


def may_match_prefix(glob: str, prefix: str) -> bool:
    """Return whether the glob of a tool's name could match one with this prefix, going by the text before its first
    wildcard."""
    literal = glob[: min((at for at, character in enumerate(glob) if character in "*?["), default=len(glob))]
    return literal.startswith(prefix) or (prefix.startswith(literal) and literal != glob)
