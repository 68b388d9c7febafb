"""Ages and moments as they are typed."""

from __future__ import annotations

import re

from kairos_mcp.core.calendar import DAY_MS, parse_day
from kairos_mcp.core.errors import BadArguments

_DAYS = {"h": 1 / 24, "d": 1, "w": 7}


def parse_age(option: str, text: str) -> float:
    """Return an age, as 12h, 30d or 2w, in days. Raises BadArguments."""
    if (age := re.fullmatch(r"(\d{1,6})([hdw])", text)) is None:
        raise BadArguments(f"{option}: {text[:20]!r} is not an age.", "As 12h, 30d or 2w.")
    return int(age[1]) * _DAYS[age[2]]


def parse_since(text: str, at: int, time_zone: str) -> int:
    """Return the moment that --since means, in milliseconds since 1970: an age before `at`, or the beginning of a day.
    Raises BadArguments."""
    try:
        return parse_day(text, time_zone).begins
    except ValueError:
        pass
    try:
        return at - int(parse_age("--since", text) * DAY_MS)
    except BadArguments as error:
        raise BadArguments(error.message, "An age, as 12h, 30d or 2w, or a day, as 2026-11-27.") from None
