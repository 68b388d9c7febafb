"""Read how long a provider asks to wait: a number, a duration in any common form, a date, or words that name one."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_NUMBER = 10**15  # no wait or date is greater
FIRST_DATE = 10**9  # a number of seconds from which on it is a date, and no wait of thirty years
_NUMBER = r"\d{1,15}(?:\.\d{1,20})?"
_PART = re.compile(
    rf"({_NUMBER})\ ?(ms|msecs?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
    r"(?:,?\ )?(?:and\ )?",
    re.IGNORECASE,
)
_BARE = re.compile(rf"{_NUMBER}(?![.,]?\d|:|-\d|\ ?[a-z%])", re.IGNORECASE)
_CLOCK = re.compile(r"(\d{1,4}):(\d\d):(\d\d(?:\.\d{1,9})?)(?!\d)")  # Azure's
_DATE = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ][\d:]{5,8}(?:\.\d{1,9})? ?(?:Z|UTC|[+-]\d\d:?\d\d)?|[A-Z][a-z]{2,8}, ?[\w :-]{15,30})"
)
_BEFORE_WAIT = re.compile(
    r"\b(?:(?:re-?try|try|retrying|trying)(?:\ (?:again|your\ request|the\ request|this\ request|once\ more))?"
    r"\ (?:in|after|at)|resets?\ (?:in|at|after)|available\ (?:again\ )?in|wait(?:ing)?(?:\ for|\ until)?"
    r"|retry[-_ ]after:?|retry_delay\ ?\{\ ?seconds:)\ (?:about\ |another\ |at\ least\ )?~?",
    re.IGNORECASE,
)
_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


def read_wait(value: object, unit_s: float = 1.0) -> float | None:
    """Return the seconds that a field or header asks to wait, or None. `unit_s`: of a number without a unit."""
    match value:
        case bool():
            return None
        case int() | float() if value >= 0:
            return _until(value, unit_s)
        case str():
            return _read_text(value.strip(), unit_s)
        case {"seconds": int() | float() | str() as seconds}:  # a Duration of protobuf
            return read_wait(seconds)
        case _:
            return None


def find_wait(words: str) -> float | None:
    """Return the seconds that a sentence asks to wait, or None."""
    waits = (_read_text(words[found.end() : found.end() + 60], 1.0) for found in _BEFORE_WAIT.finditer(words))
    return next((wait for wait in waits if wait is not None), None)


def _read_text(text: str, unit_s: float) -> float | None:
    """Return the seconds that a text begins with."""
    if (seconds := _sum_parts(text)) is not None:
        return seconds
    if (clock := _CLOCK.match(text)) is not None:
        return int(clock[1]) * 3_600.0 + int(clock[2]) * 60.0 + float(clock[3])
    if (date := _DATE.match(text)) is not None:
        return _until_date(date[0].strip())
    bare = _BARE.match(text)
    return None if bare is None else _until(float(bare[0]), unit_s)


def _sum_parts(text: str) -> float | None:
    """Return the seconds of `1h2m30.5s`, `1 minute and 30 seconds` or `PT2M30S`; None if it begins otherwise."""
    if text[:1] == "P":  # ISO 8601
        text = text[1:].replace("T", "")
    at, seconds = 0, None
    while (part := _PART.match(text, at)) is not None:
        unit = part[2].lower()
        is_thousandth = unit.startswith(("ms", "mil"))
        seconds = (seconds or 0.0) + float(part[1]) * (0.001 if is_thousandth else _SECONDS[unit[0]])
        at = part.end()
    return seconds


def _until(number: float, unit_s: float) -> float | None:
    """Return a wait of this number; one that is too great for it is a date, in seconds or milliseconds."""
    if not number < MAX_NUMBER:
        return None
    if number < FIRST_DATE:
        return number * unit_s
    return max(0.0, number / (1.0 if number < FIRST_DATE * 100 else 1_000.0) - time.time())


def _until_date(text: str) -> float | None:
    try:
        date = datetime.fromisoformat(text.removesuffix(" UTC")) if text[:1].isdigit() else parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()) - time.time())
