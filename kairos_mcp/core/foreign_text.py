"""Whose text a file holds: one that a call wrote from texts of others is theirs from then on.

It goes by content, whoever wrote it: six words in a row, or an address of which nobody trusted knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kairos_mcp.core import flow_text as forms
from kairos_mcp.core.flow import Row

SHARED, STRIDE = 24, 8  # SHARED + STRIDE - 1 letters and digits in a row are surely found, SHARED may be
CHUNK = 100_000  # characters that are looked through at once

Written = Mapping[str, tuple[bytes, bytes]]  # what files held before and hold after, by path; empty: there is none


def find_sources(written: Written, rows: Sequence[Row], is_foreign_file: Callable[[str], bool]) -> Mapping[str, str]:
    """Return, by path, whose text each of these files was given: the path of the step that brought it.

    `rows`: in view of the call. A file that takes over the whole content of another is as foreign as that one was.
    """
    others = [row for row in rows if row.is_of_others]
    moved = {
        before: path for path, (before, after) in written.items() if before and not after and is_foreign_file(path)
    }
    own = [row for row in rows if not row.is_foreign]
    found = {}
    for path, (before, after) in written.items():
        if after in moved:
            found[path] = moved[after]
        elif after and others and (source := _source_of(_text(before), _text(after), others, own)) is not None:
            found[path] = source.path
    return found


def _text(content: bytes) -> str:
    return forms.plain(content.decode("utf-8", "replace"))


def _source_of(before: str, after: str, others: Sequence[Row], own: Sequence[Row]) -> Row | None:
    known = before, *(row.plain for row in own)
    for address in _addresses(after):
        if not any(forms.contains(text, address) for text in known):
            return next((row for row in others if address in row.plain), others[-1])
    old = forms.squash(before)
    for windows in _windows(forms.squash(after)):
        for row in others:
            for at in range(0, len(row.squashed_text) - SHARED + 1, STRIDE):
                part = row.squashed_text[at : at + SHARED]
                if part in windows and part not in old and not any(part in each.squashed_text for each in own):
                    return row
    return None


def _addresses(text: str) -> Iterator[str]:
    """Yield links and mail addresses: a name with dots alone, or after an @, may be one of a program."""
    return (token for token in forms.tokens(text) if ("@" in token[1:] or "://" in token) and forms.is_address(token))


def _windows(text: str) -> Iterator[set[str]]:
    for start in range(0, max(len(text) - SHARED + 1, 0), CHUNK):
        end = min(start + CHUNK, len(text) - SHARED + 1)
        yield {text[at : at + SHARED] for at in range(start, end)}
