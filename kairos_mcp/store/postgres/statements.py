"""Statements as PostgreSQL takes them.

The places of their bindings are numbered: `$1` in place of `?`, `?1` and `:name`. The bytes of a text, which are a cast
to SQLite, are asked for as the type `varchar`, which no column has: a session reads it as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from kairos_mcp.store.rows import Bindings

_PLACE = re.compile(r"'(?:[^']|'')*'|\?(\d*)|(?<![:\w]):([a-z_]\w*)")  # a quoted text is passed over


_WRITES = re.compile(r"\s*(with\b.*\)\s*)?(insert|update|delete)\b", re.DOTALL)
_BYTES = re.compile(r"\bcast\((\w+) as blob\)")


@lru_cache(maxsize=4096)
def number_places(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return the statement with numbered places, and the names of its bindings in the order of those numbers; no names
    where they are given by position."""
    names: list[str] = []
    highest = 0

    def number(found: re.Match[str]) -> str:
        nonlocal highest
        position, name = found.groups()
        if position is None and name is None:
            return found[0]
        if name is not None:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        at = int(position) if position else highest + 1
        highest = max(highest, at)
        return f"${at}"

    return _BYTES.sub(r"\1::varchar", _PLACE.sub(number, statement)), tuple(names)


@lru_cache(maxsize=4096)
def only_writes(statement: str) -> bool:
    """Whether a statement writes and returns no rows."""
    return _WRITES.match(statement) is not None and "returning" not in statement


def order_bindings(names: tuple[str, ...], bindings: Bindings) -> list[object]:
    """Return the bindings in the order of a statement's places."""
    return [bindings[name] for name in names] if isinstance(bindings, Mapping) else list(bindings)
