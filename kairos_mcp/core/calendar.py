"""Days in a named time zone, by which accounts are kept: which day a moment belongs to, and when it ends. No clock."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.quick_dataclass import dataclass

ONE_DAY = timedelta(days=1)
DAY_MS = 24 * 60 * 60 * 1000  # of elapsed time; a calendar day may be an hour shorter or longer


@dataclass(frozen=True, slots=True)
class Day:
    """A day in a time zone. `name`: in ISO 8601 (`2026-11-22`). Bounds in milliseconds since 1970, the end excluded.

    A day on which the clocks change is shorter or longer than others.
    """

    name: str
    begins: int
    ends: int


def day_at(at: int, time_zone: str) -> Day:
    """Return the day that a moment (milliseconds since 1970) belongs to. Raises ConfigError for an unknown zone."""
    zone = load_time_zone(time_zone)
    return parse_day(datetime.fromtimestamp(at / 1000, zone).date().isoformat(), time_zone)


def format_timestamp(at: int) -> str:
    """Format milliseconds since 1970 as ISO 8601, in UTC, to the second."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def parse_day(name: str, time_zone: str) -> Day:
    """Parse a day (`2026-11-22`). Raises ValueError for no such day, ConfigError for an unknown zone."""
    zone, day = load_time_zone(time_zone), date.fromisoformat(name)
    begins = _midnight(day, zone)
    ends = _midnight(day + ONE_DAY, zone) if day < date.max else begins + ONE_DAY // timedelta(milliseconds=1)
    return Day(day.isoformat(), begins, ends)


@lru_cache(maxsize=4)
def load_time_zone(name: str) -> tzinfo:
    """Return a zone of the IANA database, as `Europe/Berlin`. Raises ConfigError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            f"There is no time zone {name[:80]!r}.", 'Name one of the IANA database, as "Europe/Berlin" or "UTC".'
        ) from error


def _midnight(day: date, zone: tzinfo) -> int:
    """Return the first moment of a day (ms since 1970), also where the clocks skip midnight that day."""
    return round(datetime.combine(day, time(), zone).timestamp() * 1000)
