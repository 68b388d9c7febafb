"""One row says all of a stop reason, and whatever shows how a run stands knows each status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import kairos_mcp
from kairos_mcp.cli import exit_codes
from kairos_mcp.core.outcomes import (
    END_STATUSES,
    RECORD_CHARS,
    RUN_STATUSES,
    STOP_REASONS,
    Outcome,
    StopName,
    StopReason,
    make_outcome,
)
from kairos_mcp.flows.team import TaskStatus
from kairos_mcp.views import run_log, team_tree
from kairos_mcp.views.run_report import RESULT_SCHEMA

ASSETS = Path(kairos_mcp.__file__).parent / "page" / "assets"
ENDS_AS = {"done": "completed", "limit": "stopped", "circling": "stopped", "person": "cancelled"}


def test_each_name_of_a_stop_reason_has_its_row() -> None:
    assert tuple(STOP_REASONS) == get_args(StopName)


@pytest.mark.parametrize("row", STOP_REASONS.values(), ids=lambda row: row.name)
def test_what_ended_a_run_decides_its_status(row: StopReason) -> None:
    assert row.status == ENDS_AS.get(row.because, "failed")
    assert make_outcome(row.name).status == row.status
    assert row.words
    assert "_" not in row.words  # they are for people


def test_only_a_run_that_did_the_cycles_it_was_asked_for_is_complete_where_a_guard_is_its_reason() -> None:
    for name, row in STOP_REASONS.items():
        expected = "completed" if name == "max_cycles_reached" else row.status
        assert make_outcome(name, did_all=True).status == expected
    assert Outcome("max_cycles_reached", "completed")
    for name, status in (("max_rounds", "completed"), ("max_cycles_reached", "failed"), ("assistant_stop", "stopped")):
        with pytest.raises(ValueError, match=f"ends as {name}"):
            Outcome(name, status)


def test_a_record_is_cut() -> None:
    assert len(make_outcome("budget", record="é" * 9_000).record or "") == RECORD_CHARS
    assert make_outcome("budget", record="short").text == "short"
    assert make_outcome("budget", "said", record="done").text == "said"


def test_every_status_is_known_wherever_a_status_is_shown() -> None:
    assert RESULT_SCHEMA["properties"]["status"]["enum"] == list(RUN_STATUSES)
    assert set(exit_codes._EXIT_CODES) == set(RUN_STATUSES)
    assert set(run_log._END_LEVELS) == set(END_STATUSES)
    script = (ASSETS / "status.js").read_text()
    assert _keys_of(script, "STATUS") == set(RUN_STATUSES)
    (still_open,) = re.findall(r"const OPEN = \[(.*?)\];", script)
    assert set(re.findall(r'"(\w+)"', still_open)) == set(RUN_STATUSES) - set(END_STATUSES)


def test_every_status_of_a_task_is_known_wherever_a_task_is_shown() -> None:
    statuses = {*get_args(TaskStatus), "cancelled"}
    assert set(team_tree.SIGNS) == statuses
    assert _keys_of((ASSETS / "view.js").read_text(), "TASK_SIGNS") == statuses
    (plan,) = [RESULT_SCHEMA["properties"]["plan"]["items"]["properties"]["status"]["enum"]]
    assert set(plan) == statuses


def test_the_page_tells_no_stop_reason_by_its_name() -> None:
    named = re.findall(r'"(\w+)"', (ASSETS / "status.js").read_text())
    assert set(named) & set(STOP_REASONS) <= set(RUN_STATUSES)


def _keys_of(script: str, table: str) -> set[str]:
    """The keys of a constant object of a script whose values are texts or lists."""
    (body,) = re.findall(rf"const {table} = \{{(.*?)\}};", script, re.DOTALL)
    return set(re.findall(r"(\w+):", body))
