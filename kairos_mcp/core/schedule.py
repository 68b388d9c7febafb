"""When a mandate is due: a rule of five cron fields in a time zone, and what is made up for. No clock here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import takewhile
from typing import Any, Literal

from cronsim import CronSim, CronSimError

from kairos_mcp.core.calendar import load_time_zone
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import JsonObject

CatchUp = Literal["skip", "once", "bounded"]
MAX_LATE_MS = 60 * 60 * 1000  # how late a run may be and still be on time: timers that look once an hour miss nothing
MAX_CATCH_UP = 10

SCHEDULE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "rule": {"type": "string", "minLength": 9, "maxLength": 200},
        "time_zone": {"type": "string", "minLength": 1, "maxLength": 64},
        "catch_up": {"enum": ["skip", "once", "bounded"]},
        "bound": {"type": "integer", "minimum": 1, "maximum": MAX_CATCH_UP},
    },
    "required": ["rule"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """`rule`: minute, hour, day of the month, month, day of the week, in `time_zone` (a name of the IANA database).

    `catch_up`, where times were missed: `skip` runs only for a time at most an hour ago, `once` once for all of
    them, `bounded` once for each of the newest `bound`.
    """

    rule: str
    time_zone: str = "UTC"
    catch_up: CatchUp = "skip"
    bound: int = 3

    def as_json(self) -> JsonObject:
        told: JsonObject = {"rule": self.rule, "time_zone": self.time_zone, "catch_up": self.catch_up}
        return told | ({"bound": self.bound} if self.catch_up == "bounded" else {})


def parse_schedule(given: dict[str, Any]) -> Schedule:
    """A schedule that fits SCHEDULE_SCHEMA, checked. Raises BadArguments."""
    schedule = Schedule(**{**given, "rule": " ".join(given["rule"].split())})
    if len(schedule.rule.split()) != 5:
        raise BadArguments("mandate: schedule.rule has not five fields.", 'As "0 9 * * 1-5": nine on working days.')
    if "bound" in given and schedule.catch_up != "bounded":
        raise BadArguments("mandate: schedule.bound means nothing here.", 'It belongs to catch_up "bounded".')
    zone = _load_zone(schedule.time_zone)
    try:
        next(CronSim(schedule.rule, datetime(2000, 1, 1, tzinfo=zone)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "no day has such a time"
        raise BadArguments(f"mandate: schedule.rule can't be kept: {why}.", 'As "0 9 * * 1-5".') from None
    return schedule


def due_times(schedule: Schedule, last: int, now: int) -> tuple[int, ...]:
    """The times to run for, oldest first, in milliseconds since 1970: those after `last` and not after `now`.

    `last` is the time of the last run, or the moment the mandate was saved where there was none. Times that a rule
    names inside an hour that the clocks skip or repeat are those of Debian's cron, as cronsim has them.
    """
    missed = takewhile(lambda at: at > last, _times_before(schedule, now))
    match schedule.catch_up:
        case "skip":
            newest = [at for at in _take(missed, 1) if now - at <= MAX_LATE_MS]
        case "once":
            newest = _take(missed, 1)
        case "bounded":
            newest = _take(missed, schedule.bound)
    return tuple(reversed(newest))


def _times_before(schedule: Schedule, now: int) -> Any:
    """The times of the rule up to `now`, that one included, newest first."""
    zone = _load_zone(schedule.time_zone)
    after = datetime.fromtimestamp(now // 1000 + 1, zone)
    return (round(at.timestamp() * 1000) for at in CronSim(schedule.rule, after, reverse=True))


def _take(times: Any, most: int) -> list[int]:
    return [at for at, _ in zip(times, range(most), strict=False)]


def _load_zone(name: str) -> tzinfo:
    try:
        return load_time_zone(name)
    except ConfigError as error:
        raise BadArguments(f"mandate: {error.message}", error.hint) from None
