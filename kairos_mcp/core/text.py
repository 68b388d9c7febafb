"""Cut and count texts, and word counts and ages, for a reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FindParted = Callable[[str, int], tuple[int, int]]
"""Finds the secret that a cut at a character would part, as `Redactor.find_parted`."""


def find_nothing_parted(_text: str, at: int) -> tuple[int, int]:
    """Find no secret: where none can be in the text, or it was redacted before."""
    return at, at


def truncate(text: str, limit: int, marker: str = "…", find_parted: FindParted = find_nothing_parted) -> str:
    """Cut a text after `limit` characters, or before the secret that this would part; `marker` takes the place of the
    rest.

    `marker` may name `{limit}`, `{total}` and `{left_out}`, all in characters.
    """
    if len(text) <= limit:
        return text
    limit, _ = find_parted(text, limit)
    return text[:limit] + marker.format(limit=limit, total=len(text), left_out=len(text) - limit)


_JSON_LINE_ENDS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"}
"""Characters that some readers take for the end of a line and that JSON does not escape."""


def on_one_line(json: str) -> str:
    """Return the same JSON in a form that every reader takes for one line."""
    for end, escaped in _JSON_LINE_ENDS.items():
        json = json.replace(end, escaped)
    return json


def count_of(count: int, word: str, words: str | None = None) -> str:
    """Return a count with its noun in the right number: `1 call`, `2,000 calls`. `words`: an irregular plural."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"


MAX_NEAREST = 5
_MATCHED_CHARS = 64  # of a name from outside, whose length is anybody's


def nearest_names(name: str, names: Sequence[str]) -> list[str]:
    """Return the few of these names that are most like one that is not among them, the nearest first."""
    from difflib import get_close_matches  # only when needed: the time to start is measured

    return get_close_matches(name[:_MATCHED_CHARS], names, n=MAX_NEAREST, cutoff=0.0)


def format_age(seconds: float) -> str:
    """Return an age in its largest whole unit: `40 s`, `3 h`, `12 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))  # byte order marks


def decode_text(content: bytes, errors: str = "strict") -> str:
    """Return the text of a file that a person wrote: UTF-8, or UTF-16 where its mark says so, without the mark and with
    line ends of any system. Raises UnicodeDecodeError."""
    mark, encoding = next((each for each in _MARKS if content.startswith(each[0])), (b"", "utf-8"))
    text = content.removeprefix(mark).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_binary(content: bytes) -> bool:
    """Whether there is a NUL anywhere. One behind much text may begin a part in UTF-16, as a shell of Windows appends
    it, in which no secret would be found."""
    return b"\0" in content
