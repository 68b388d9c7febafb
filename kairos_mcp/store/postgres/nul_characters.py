"""The NUL character, which no text of PostgreSQL can hold: two others stand for it there.

A noncharacter, which Unicode leaves to the inside of programs, begins each such pair: with `0` it is NUL, with `1`
itself. So every text comes back as it was stored, and what is taken out of JSON in the database holds the same pairs.
"""

from __future__ import annotations

MARK = "\ufdd0"


def spell_nul(text: str) -> str:
    """Return the text as the database holds it."""
    if "\0" not in text and MARK not in text:
        return text
    return text.replace(MARK, f"{MARK}1").replace("\0", f"{MARK}0")


def restore_nul(text: str) -> str:
    """Return the text that `spell_nul` was called with."""
    return text.replace(f"{MARK}0", "\0").replace(f"{MARK}1", MARK) if MARK in text else text


# A text as JSON, whose escaped NULs are spelled: else PostgreSQL refuses to take any text out of it.
READABLE_JSON = rf"""
    create function readable_json(body text) returns json language sql immutable parallel safe as $$
        select (case when strpos(body, '\u0000') > 0
            then regexp_replace(body, '(?<!\\)((\\\\)*)\\u0000', '\1{MARK}0', 'g') else body end)::json $$
"""
