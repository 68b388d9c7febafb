"""What a person reads at a terminal: check marks where it shows them, and times in words and in its own zone."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import CHANGE, QUESTION, terminal, writes
from support.script_lines import looks, says
from support.terminal import Terminal

from kairos_mcp.cli.terminal import when_words

WEEKDAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
IN_UTC = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (-9, r"\d{4}-\d\d-\d\d 12:30"),
        (-1, "yesterday 12:30"),
        (0, "today 12:30"),
        (1, "tomorrow 12:30"),
        (3, f"({WEEKDAYS}) 12:30"),
        (9, r"\d{4}-\d\d-\d\d 12:30"),
    ],
)
def test_a_moment_is_said_in_the_zone_of_the_terminal(days: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        noon = datetime.now().astimezone().replace(hour=12, minute=30) + timedelta(days=days)
        assert re.fullmatch(said, when_words(noon.astimezone(UTC).isoformat().replace("+00:00", "Z")))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_until_when_an_approval_waits_is_said_in_words_on_a_terminal_and_in_utc_elsewhere(kairos: Shell) -> None:
    with terminal(kairos, *CHANGE, lines=(looks(), writes("new.txt"), says("All done."))) as person:
        person.shows(QUESTION)
        person.types("l")
        assert person.ends() == 3
        shown = person.text
    assert re.search(rf"until ({WEEKDAYS}) \d\d:\d\d\)", shown)
    assert "✗ round 1  list_files" in shown
    assert not IN_UTC.search(shown)
    said = kairos("show", "last")
    assert IN_UTC.search(said.out)
    assert "! round 1  list_files" in said.out
    assert IN_UTC.fullmatch(kairos("show", "last", "--json").json["waiting"][0]["expires_at"])


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "✓"), ("ascii", "ok  ")])
def test_doctor_marks_what_works_by_signs_that_the_terminal_can_show(kairos: Shell, encoding: str, shown: str) -> None:
    environ = kairos.environ(PYTHONIOENCODING=encoding)
    with Terminal("doctor", "--offline", "--all", folder=kairos.folder, environ=environ) as person:
        person.ends()
    assert any(line.startswith(shown) for line in person.text.splitlines())
