"""Whose text a file holds: one that a call wrote from texts of others is theirs from then on.

It goes by content, whoever wrote it: six words in a row, or an address that no trusted text has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from kairos_mcp.core import flow_text as forms
from kairos_mcp.core.flow import Row

SHARED, STRIDE = 24, 8  # SHARED + STRIDE - 1 letters and digits in a row are surely found, SHARED may be
CHUNK = 100_000  # characters that are looked through at once
MAX_LOOKED_THROUGH = 100_000_000  # for links and mail addresses that a file holds otherwise than a trusted text: 0.1 s

# a link, also as browsers read one: with other slashes, or none
_LINK = re.compile(
    r"(?<![a-z0-9+.-])(?:[a-z][a-z0-9+.-]{0,20}://[^\s/\\]|(?:https?|wss?|ftp):[/\\]{0,8}[^\s/\\.]{1,63}\.)\S*"
)
_LOCAL_PART = re.compile(r"[^=:/?&#]+$")
_DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)+")

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


def repeats_others(text: str, rows: Sequence[Row]) -> bool:
    """Whether a text of which nobody knows who wrote it holds what others said in these rows and nobody else did: six
    words in a row, or an address."""
    others, own = [row for row in rows if row.is_of_others], [row for row in rows if not row.is_foreign]
    plain, size, looked_through = forms.plain(text), sum(len(row.plain) for row in rows), 0
    for address in set(_addresses(plain)) if others else ():
        looked_through += size
        is_theirs = looked_through > MAX_LOOKED_THROUGH or any(address in row.plain for row in others)
        if is_theirs and not any(forms.contains(row.plain, address) for row in own):
            return True
    return bool(others) and _shared_row("", plain, others, own) is not None


def _text(content: bytes) -> str:
    return forms.plain(content.decode("utf-8", "replace"))


def _source_of(before: str, after: str, others: Sequence[Row], own: Sequence[Row]) -> Row | None:
    if (address := _new_address(before, after, own)) is not None:
        return next((row for row in others if address in row.plain), others[-1])
    return _shared_row(before, after, others, own)


def _shared_row(before: str, after: str, others: Sequence[Row], own: Sequence[Row]) -> Row | None:
    """Return the row of others with which a text shares some six words in a row that it had not before."""
    old = forms.squash(before)
    for windows in _windows(forms.squash(after)):
        for row in others:
            for at in range(0, len(row.squashed_text) - SHARED + 1, STRIDE):
                part = row.squashed_text[at : at + SHARED]
                if part in windows and part not in old and not any(part in each.squashed_text for each in own):
                    return row
    return None


def _new_address(before: str, after: str, own: Sequence[Row]) -> str | None:
    """Return a link or mail address that was added and that no trusted text holds. Texts are taken apart once, since a
    file may hold very many; what is found in none of them is looked for as it stands, and counts as new after
    MAX_LOOKED_THROUGH characters."""
    added = dict.fromkeys(_addresses(after))
    texts, looked_through = [before, *(row.plain for row in own)], 0
    for text in texts if added else ():
        for address in _addresses(text):
            added.pop(address, None)
    for address in added:
        looked_through += sum(map(len, texts))
        if looked_through > MAX_LOOKED_THROUGH or not any(forms.contains(text, address) for text in texts):
            return address
    return None


def _addresses(text: str) -> Iterator[str]:
    """Yield links and mail addresses: a name with dots alone, or after an @, may be one of a program."""
    for token in forms.tokens(text):
        yield from (link[0] for link in _LINK.finditer(token))
        if "@" in token[1:] and "://" not in token:
            for local, host in pairwise(token.split("@")):
                name, domain = _LOCAL_PART.search(local[-100:]), _DOMAIN.match(host)
                if name is not None and domain is not None:
                    yield f"{name[0]}@{domain[0]}"


def _windows(text: str) -> Iterator[set[str]]:
    for start in range(0, max(len(text) - SHARED + 1, 0), CHUNK):
        end = min(start + CHUNK, len(text) - SHARED + 1)
        yield {text[at : at + SHARED] for at in range(start, end)}
