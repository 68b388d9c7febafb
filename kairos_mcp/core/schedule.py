"""When a mandate is due: a cron rule of five fields in a time zone, and which missed times are caught up. No clock."""

from __future__ import annotations

from datetime import datetime, tzinfo
from itertools import takewhile
from typing import Any, Literal

from cronsim import CronSim, CronSimError

from kairos_mcp.core.calendar import load_time_zone
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass

CatchUp = Literal["skip", "once", "bounded"]
MAX_LATE_MS = 60 * 60 * 1000  # a run so late is still on time: a timer that looks once an hour misses nothing
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
    """A cron rule: minute, hour, day of the month, month, day of the week, in `time_zone` (an IANA name).

    `catch_up`, for missed times: `skip` runs only for a time at most an hour ago, `once` runs once for all of them,
    `bounded` once for each of the newest `bound`.
    """

    rule: str
    time_zone: str = "UTC"
    catch_up: CatchUp = "skip"
    bound: int = 3

    def as_json(self) -> JsonObject:
        fields: JsonObject = {"rule": self.rule, "time_zone": self.time_zone, "catch_up": self.catch_up}
        return fields | ({"bound": self.bound} if self.catch_up == "bounded" else {})


def describe_schedule(schedule: Schedule) -> str:
    """Say in words when a schedule is due, as "At 09:00 on Monday through Friday (UTC)"."""
    at = datetime(2000, 1, 1, tzinfo=load_time_zone(schedule.time_zone))
    return f"{CronSim(schedule.rule, at).explain()} ({schedule.time_zone})"


def parse_schedule(fields: dict[str, Any]) -> Schedule:
    """Parse a schedule whose JSON fits SCHEDULE_SCHEMA. Raises BadArguments for a rule that never comes true."""
    schedule = Schedule(**{**fields, "rule": " ".join(fields["rule"].split())})
    if len(schedule.rule.split()) != 5:
        raise BadArguments(
            "mandate: schedule.rule does not have five fields.", 'As "0 9 * * 1-5": nine on working days.'
        )
    if "bound" in fields and schedule.catch_up != "bounded":
        raise BadArguments("mandate: schedule.bound has no effect here.", 'It belongs to catch_up "bounded".')
    zone = _load_zone(schedule.time_zone)
    try:
        next(CronSim(schedule.rule, datetime(2000, 1, 1, tzinfo=zone)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "no day has such a time"
        raise BadArguments(f"mandate: schedule.rule is not valid: {why}.", 'As "0 9 * * 1-5".') from None
    return schedule


def due_times(schedule: Schedule, last: int, now: int) -> tuple[int, ...]:
    """Return the times to run for (ms since 1970), oldest first: those after `last` and not after `now`.

    `last`: the time of the last run, or the moment when the mandate was saved. Where the clocks skip or repeat an hour,
    times within it are those of Debian's cron, as cronsim computes them.
    """
    after = datetime.fromtimestamp(now // 1000 + 1, _load_zone(schedule.time_zone))
    newest_first = (round(at.timestamp() * 1000) for at in CronSim(schedule.rule, after, reverse=True))
    missed = takewhile(lambda at: at > last, newest_first)
    match schedule.catch_up:
        case "skip":
            newest = [at for at in _take(missed, 1) if now - at <= MAX_LATE_MS]
        case "once":
            newest = _take(missed, 1)
        case "bounded":
            newest = _take(missed, schedule.bound)
    return tuple(reversed(newest))


def next_time(schedule: Schedule, now: int) -> int | None:
    """Return the first time of the rule after `now` (both ms since 1970); None where none comes any more."""
    after = datetime.fromtimestamp(now // 1000, _load_zone(schedule.time_zone))
    return next((round(at.timestamp() * 1000) for at in CronSim(schedule.rule, after)), None)


def _take(times: Any, most: int) -> list[int]:
    return [at for at, _ in zip(times, range(most), strict=False)]


def _load_zone(name: str) -> tzinfo:
    try:
        return load_time_zone(name)
    except ConfigError as error:
        raise BadArguments(f"mandate: {error.message}", error.hint) from None
