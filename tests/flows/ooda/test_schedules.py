"""When a mandate is due, and what is made up for."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_mcp.core.schedule import MAX_LATE_MS, Schedule, due_times, next_time, parse_schedule


def at(text: str, zone: str = "UTC") -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone))
    return round(moment.timestamp() * 1000)


NINE = "0 9 * * *"


@pytest.mark.parametrize(
    ("catch_up", "now", "times"),
    [
        ("skip", "2026-11-20T08:59", []),
        ("skip", "2026-11-20T09:00", ["2026-11-20T09:00"]),
        ("skip", "2026-11-20T09:59", ["2026-11-20T09:00"]),
        ("skip", "2026-11-20T10:01", []),
        ("once", "2026-11-20T10:01", ["2026-11-20T09:00"]),
        ("once", "2026-11-24T08:00", ["2026-11-23T09:00"]),
        ("bounded", "2026-11-21T10:00", ["2026-11-20T09:00", "2026-11-21T09:00"]),
        ("bounded", "2026-11-26T10:00", ["2026-11-24T09:00", "2026-11-25T09:00", "2026-11-26T09:00"]),
    ],
)
def test_missed_times_are_skipped_made_up_for_once_or_up_to_a_bound(catch_up: str, now: str, times: list[str]) -> None:
    schedule = parse_schedule({"rule": NINE, "catch_up": catch_up})
    assert due_times(schedule, at("2026-11-19T09:00"), at(now)) == tuple(at(time) for time in times)


def test_a_time_is_due_once() -> None:
    schedule = Schedule(NINE, catch_up="bounded")
    now = at("2026-11-20T09:00")
    assert due_times(schedule, at("2026-11-19T09:00"), now) == (now,)
    assert due_times(schedule, now, now + 1) == ()


def test_a_rule_is_read_in_its_time_zone_also_where_the_clocks_change() -> None:
    schedule = Schedule(NINE, "Europe/Berlin", "bounded", 10)
    found = due_times(schedule, at("2026-10-23T12:00"), at("2026-10-27T12:00"))
    assert found == tuple(at(f"2026-10-{day}T09:00", "Europe/Berlin") for day in (24, 25, 26, 27))
    assert found[1] - found[0] == 25 * MAX_LATE_MS


def test_years_without_a_look_cost_nothing() -> None:
    schedule = Schedule("* * * * *", catch_up="bounded", bound=2)
    now = at("2026-11-20T09:00")
    assert due_times(schedule, 0, now) == (now - 60_000, now)
    assert due_times(Schedule("0 0 29 2 *", catch_up="once"), 0, now) == (at("2024-02-29T00:00"),)


@given(
    st.sampled_from(["*/30 * * * *", "30 2 * * *", "15 1,2,3 * * *", "5 2 * * 0", "0 9 1 * *", "0 */2 * * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    st.integers(0, 200 * 24 * 60),
    st.integers(0, 3 * 24 * 60),
)
@settings(max_examples=80, deadline=None)
def test_what_is_due_is_what_the_rule_names_in_between(rule: str, zone: str, begin: int, minutes: int) -> None:
    last = at("2026-03-01T00:00") + begin * 60_000 + 1
    now = last + minutes * 60_000
    tz = UTC if zone == "UTC" else ZoneInfo(zone)
    forwards = CronSim(rule, datetime.fromtimestamp(last / 1000, tz))
    named = [round(t.timestamp() * 1000) for t in takewhile(lambda t: t.timestamp() * 1000 <= now, forwards)]
    assert due_times(Schedule(rule, zone, "bounded", 10), last, now) == tuple(named[-10:])


@pytest.mark.parametrize(
    ("zone", "now", "time"),
    [
        ("UTC", "2026-11-20T08:59:59", "2026-11-20T09:00"),
        ("UTC", "2026-11-20T09:00", "2026-11-21T09:00"),  # this time is due now, and no longer to come
        ("Europe/Berlin", "2026-11-20T09:00:30", "2026-11-21T09:00"),
    ],
)
def test_the_next_time_is_the_first_that_is_not_due_yet(zone: str, now: str, time: str) -> None:
    schedule = parse_schedule({"rule": NINE, "time_zone": zone})
    assert next_time(schedule, at(now, zone)) == at(time, zone)
    assert at(time, zone) not in due_times(schedule, 0, at(now, zone))
