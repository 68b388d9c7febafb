"""Days of a time zone: each moment belongs to one, one ends where the next begins, also where the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law
from support.daily_accounts import at

from kairos_mcp.core.calendar import day_at, format_timestamp
from kairos_mcp.core.errors import ConfigError

HOUR_MS = 3_600_000
ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe"),
    *("Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca", "America/Havana", "Asia/Beirut"),
]
moments = st.integers(0, at("2060-01-01T00:00", "UTC"))


@law
@given(moments, st.sampled_from(ZONES))
def test_each_moment_belongs_to_a_day_that_ends_where_the_next_begins(now: int, zone: str) -> None:
    day = day_at(now, zone)
    assert day.begins <= now < day.ends
    assert 0 < day.ends - day.begins <= 26 * HOUR_MS
    after, before = day_at(day.ends, zone), day_at(day.begins - 1, zone)
    assert after.begins == day.ends
    assert before.ends == day.begins
    assert before.name < day.name < after.name


@pytest.mark.parametrize(
    ("noon", "zone", "hours"),
    [
        ("2026-03-29T12:00", "Europe/Berlin", 23),
        ("2026-10-25T12:00", "Europe/Berlin", 25),
        ("2026-03-08T12:00", "America/New_York", 23),
        ("2026-11-01T12:00", "America/New_York", 25),
        ("2026-04-05T12:00", "Australia/Lord_Howe", 24.5),
        ("2018-11-04T12:00", "America/Sao_Paulo", 23),  # midnight was skipped
        ("2018-02-17T12:00", "America/Sao_Paulo", 25),  # an hour before midnight came twice
        ("2026-03-29T12:00", "Asia/Beirut", 23),  # midnight is skipped
        ("2026-11-01T12:00", "America/Havana", 25),
    ],
)
def test_a_day_on_which_the_clocks_change_is_as_long_as_it_is(noon: str, zone: str, hours: float) -> None:
    day = day_at(at(noon, zone), zone)
    assert day.ends - day.begins == hours * HOUR_MS
    assert day.name == noon[:10]


def test_a_day_that_was_skipped_belongs_to_nobody() -> None:
    before, after = (
        day_at(at("2011-12-29T12:00", "Pacific/Apia"), "Pacific/Apia"),
        at("2011-12-31T12:00", "Pacific/Apia"),
    )
    assert before.ends == day_at(after, "Pacific/Apia").begins
    assert day_at(before.ends, "Pacific/Apia").name == "2011-12-31"


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    "text", ["2038-01-19T03:14:08", "2016-12-31T23:59:59", "9999-12-30T12:00:00", "9999-12-31T00:30:00"]
)
def test_budget_022_moments_far_off_have_a_day_too(text: str, zone: str) -> None:
    now = round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
    day = day_at(now, zone)
    assert day.begins <= now < day.ends
    assert format_timestamp(now).startswith(text)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ConfigError):
        day_at(0, "Mars/Olympus")
