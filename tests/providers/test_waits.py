"""How long a provider asks to wait, in each form in which one says so: in fields, headers and words."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from kairos_mcp.models.replies.errors import read_error
from kairos_mcp.models.replies.waits import find_wait, read_wait

DURATIONS: list[tuple[Any, float | None]] = [
    (7, 7), (7.5, 7.5), (0, 0), ("7", 7), ("7.5", 7.5), (" 7 ", 7), ("0", 0), ("120", 120),
    ("7s", 7), ("7S", 7), ("7 s", 7), ("7.66s", 7.66), ("34.074824224s", 34.074824224), ("7.660000000000001s", 7.66),
    ("500ms", 0.5), ("500 ms", 0.5), ("120 msec", 0.12), ("20 milliseconds", 0.02),
    ("1m", 60), ("1 min", 60), ("2 mins", 120), ("1 minute", 60), ("3 minutes", 180),
    ("1h", 3_600), ("1 hr", 3_600), ("2 hours", 7_200), ("1d", 86_400), ("2 days", 172_800),
    ("2m30s", 150), ("6m0s", 360), ("7m12.5s", 432.5), ("2h3m10.8s", 7_390.8), ("1h0m", 3_600), ("1m500ms", 60.5),
    ("1 hour 5 minutes", 3_900), ("1 minute and 30 seconds", 90), ("1 hour, 2 minutes, and 3 seconds", 3_723),
    ("1 second", 1), ("20 secs", 20), ("1 sec", 1),
    ("PT7S", 7), ("PT1H", 3_600), ("PT2M30S", 150), ("PT0.5S", 0.5), ("P1DT2H", 93_600), ("P2D", 172_800),
    ("00:00:07", 7), ("00:01:30", 90), ("01:00:00.5", 3_600.5),
    ({"seconds": 7}, 7), ({"seconds": "7", "nanos": 0}, 7),
    (-1, None), ("-1", None), ("-7s", None), (True, None), (None, None), ("", None), ("soon", None), ("NaN", None),
    (float("nan"), None), (float("inf"), None), (10**400, None), ("9" * 400, None), ([7], None), ({}, None),
    ("7 attempts", None), ("7 %", None), ("7x", None), ("P", None), ("later: 7s", None),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "seconds"), DURATIONS, ids=lambda value: str(value)[:30])
def test_a_duration_is_read_in_any_form(stated: Any, seconds: float | None) -> None:
    wait = read_wait(stated)
    assert wait == (None if seconds is None else pytest.approx(seconds, abs=1e-6))


IN_AN_HOUR = datetime.now(UTC) + timedelta(hours=1)
DATES: list[Any] = [
    format_datetime(IN_AN_HOUR, usegmt=True),
    format_datetime(IN_AN_HOUR),
    IN_AN_HOUR.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
    IN_AN_HOUR.isoformat(),
    IN_AN_HOUR.strftime("%Y-%m-%dT%H:%M:%SZ"),
    IN_AN_HOUR.strftime("%Y-%m-%dT%H:%M:%S"),
    IN_AN_HOUR.strftime("%Y-%m-%d %H:%M:%S UTC"),
    IN_AN_HOUR.astimezone().strftime("%Y-%m-%d %H:%M:%S%z"),
    int(IN_AN_HOUR.timestamp()),
    str(int(IN_AN_HOUR.timestamp())),
    int(IN_AN_HOUR.timestamp() * 1_000),
]


@pytest.mark.parametrize("stated", DATES, ids=[f"form-{n}" for n in range(len(DATES))])
def test_a_date_is_read_in_any_form(stated: Any) -> None:
    wait = read_wait(stated)
    assert wait == pytest.approx(IN_AN_HOUR.timestamp() - time.time(), abs=2)


@pytest.mark.parametrize("stated", ["Wed, 21 Oct 2015 07:28:00 GMT", "2015-10-21T07:28:00Z", 1_445_412_480])
def test_a_date_that_has_passed_is_no_wait(stated: Any) -> None:
    assert read_wait(stated) == 0


@pytest.mark.parametrize("stated", ["Xyz, 99 Oct 2015 07:28:00 GMT", "2015-13-41T07:28:00Z", "2015-10-21T"])
def test_what_is_no_date_is_no_wait_either(stated: str) -> None:
    assert read_wait(stated) is None


WORDS: list[tuple[str, float | None]] = [
    ("Please try again in 7.66s.", 7.66), ("Please try again in 20s. Visit https://example.com", 20),
    ("Please try again in 120ms.", 0.12), ("Please try again in 6m0s.", 360),
    ("Please try again in 2h3m10.8s.", 7_390.8),
    ("Limit 3, Used 3. Please try again in 1h.", 3_600), ("retry in 1h", 3_600), ("Retry in 2 hours", 7_200),
    ("Please retry in 34.074824224s.", 34.074824224), ("Please retry after 6 seconds.", 6),
    ("retry after 1 day", 86_400),
    ("Retrying in 5 minutes", 300), ("Please retry your request after 7 seconds", 7),
    ("try again in about 2 minutes", 120),
    ("Please wait 30 seconds before the next request", 30), ("You have to wait for 1 minute", 60),
    ("Your rate limit resets in ~30s", 30), ("The limit will reset in 2m30s", 150),
    ("available again in 20 seconds", 20),
    ("Retry-After: 7", 7), ("retry_after: 7s", 7), ("retry_delay { seconds: 34 }", 34), ("try again in 7", 7),
    ("try again in 20, at the earliest", 20), ("try again in a moment; retry in 7s", 7),
    ("try again after 00:01:30", 90),
    ("Try again later.", None), ("retry after 5 attempts", None), ("try again in 2 weeks", None), ("7s", None),
    ("It took 7s. Try again.", None), ("entry in 7s", None), ("", None), ("retry in -7s", None),
]  # fmt: skip


@pytest.mark.parametrize(("words", "seconds"), WORDS, ids=[words for words, _ in WORDS])
def test_a_wait_in_words_is_read_in_any_form(words: str, seconds: float | None) -> None:
    expected = None if seconds is None else pytest.approx(seconds)
    assert find_wait(words) == expected
    assert read_error({"error": {"message": words}}).wait_s == expected
    assert read_error(words or None).wait_s == expected


def test_a_date_in_words_is_read() -> None:
    for stated in DATES[:8]:
        assert find_wait(f"Try again at {stated}.") == pytest.approx(IN_AN_HOUR.timestamp() - time.time(), abs=2)


FIELDS: list[tuple[dict[str, Any], float | None]] = [
    ({"retry_after": 7}, 7), ({"retryAfter": "7"}, 7), ({"Retry-After": "1h"}, 3_600), ({"RETRY-AFTER": "7"}, 7),
    ({"retry_after_seconds": 7.5}, 7.5), ({"retry_after_ms": 7_000}, 7), ({"retry-after-ms": "7000"}, 7),
    ({"retry_after_ms": "7s"}, 7), ({"x-ms-retry-after-ms": 7_000}, 7), ({"retryDelay": "7s"}, 7),
    ({"retryDelay": {"seconds": 7}}, 7), ({"resets_in_seconds": 7}, 7), ({"retry_in": "2m30s"}, 150),
    ({"headers": {"Retry-After": "7"}}, 7), ({"metadata": {"headers": {"retry-after": "PT7S"}}}, 7),
    ({"retry_after": "soon"}, None), ({"retry": 7}, None), ({"after": 7}, None),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "seconds"), FIELDS, ids=[str(fields) for fields, _ in FIELDS])
def test_a_wait_in_a_field_goes_before_the_words(fields: dict[str, Any], seconds: float | None) -> None:
    assert read_error({"error": {"message": "busy", **fields}}).wait_s == seconds
    if seconds is not None:
        assert read_error({"error": {"message": "retry in 1s", **fields}}).wait_s == seconds


@pytest.mark.parametrize("text", ["try again in " * 1_500, "wait " * 4_000, "retry in " + "1s " * 6_000, "9" * 20_000])
def test_no_words_take_long_to_search(text: str) -> None:
    began = time.process_time()
    find_wait(text)
    assert time.process_time() - began < 0.2
