"""The benchmark that kills runtimes: its controls are caught, ours is not, and a sweep that was ended goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from loopfaults.__main__ import control_subject
from loopfaults.cases import PLAN_BESIDE, BadCases, Case, Fault, make_cases, read_cases
from loopfaults.controls import CONTROLS
from loopfaults.mcp import BadMapping, McpSystem, point_at, read_mapping
from loopfaults.play import find_last_write
from loopfaults.report import make_report, make_table, read_rows
from loopfaults.sweep import Subject, sweep
from loopfaults.witness import Event, Job, find_round

from benchmarks.faults.systems import make_subject

SERVER = Path(__file__).with_name("task_server.py")
CASES = [
    Case("asked-3", (Fault("asked", 3),), group="sample"),
    Case("called-2", (Fault("called", 2),), group="sample"),
    Case("recorded-4", (Fault("recorded", 4),), group="sample"),
    Case("waiting", (Fault("waiting"),), group="sample"),
]


async def play(subjects: list[Subject], folder: Path, cases: list[Case] = CASES) -> dict[str, Any]:
    await sweep(subjects, cases, 1, folder, folder / "outcomes.jsonl")
    return make_report(read_rows(folder / "outcomes.jsonl"))


async def test_each_control_is_caught_by_what_is_wrong_with_it_and_by_nothing_else(tmp_path: Path) -> None:
    report = await play([control_subject(name) for name in CONTROLS], tmp_path)
    assert report["is_valid"]
    sums = {name: each["whole"] for name, each in report["systems"].items()}
    assert all(each["jobs"] == 4 and each["never"] == 0 for each in sums.values())
    told = ("effects_twice", "effects_lost", "unapproved", "paid_beyond_flight")
    assert {name: tuple(each[key] for key in told) for name, each in sums.items()} == {
        "stores_nothing": (5, 0, 0, 13),
        "marks_first": (0, 1, 0, 0),
        "approves_itself": (1, 0, 1, 0),
        "retries_all": (1, 0, 0, 13),
    }


async def test_ours_does_nothing_twice_loses_nothing_and_asks_where_it_can_not_know(tmp_path: Path) -> None:
    beside = Case("second", (Fault("recorded", 3),), PLAN_BESIDE, group="sample", is_attended=True)
    report = await play([make_subject("kairos")], tmp_path, [*CASES, beside])
    assert not report["is_valid"]  # nobody believes a report without its controls
    ours = report["systems"]["kairos"]["whole"]
    assert (ours["jobs"], ours["deaths"], ours["never"]) == (5, 5, 0)
    assert (ours["effects_twice"], ours["effects_lost"], ours["unapproved"]) == (0, 0, 0)
    assert (ours["paid_again"], ours["paid_in_flight"]) == (1, 1)
    assert 3 <= ours["settled"] <= ours["calls_in_flight"]
    assert ours["settled_unsent"] == 0


async def test_a_server_of_others_is_driven_by_a_mapping_alone(tmp_path: Path) -> None:
    mapping = read_mapping(SERVER.with_suffix(".toml"))
    values = {"python": sys.executable, "server": str(SERVER)}
    subject = Subject(
        "task_server", lambda folder, url: McpSystem(mapping, folder, url, values=values), has_approval=False
    )
    report = await play([subject], tmp_path, CASES[2:3])
    whole = report["systems"]["task_server"]["whole"]
    assert (whole["jobs"], whole["never"], whole["by_a_call"]) == (1, 0, 1)
    assert whole["effects_twice"] == 2  # it keeps its conversation in memory alone


async def test_a_sweep_goes_on_where_it_was_ended_and_plays_a_cut_line_again(tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes.jsonl"
    await play([control_subject("marks_first")], tmp_path, CASES[:2])
    whole = outcomes.read_text()
    outcomes.write_text(whole[:-20])
    await play([control_subject("marks_first")], tmp_path, CASES)
    rows = read_rows(outcomes)
    assert [row["case"] for row in rows] == [case.name for case in CASES]
    assert whole.startswith(json.dumps(rows[0]))


def test_a_round_has_its_calls_side_by_side_each_with_its_own_step() -> None:
    assert find_round(PLAN_BESIDE, 2) == [(2, "append"), (3, "append"), (4, "append")]
    assert find_round(PLAN_BESIDE, 3) == []  # no round begins there
    assert Case("a", plan=PLAN_BESIDE).calls == ["read", "append", "append", "append", "append", "read"]


def test_in_flight_is_what_nothing_has_come_of_yet() -> None:
    job = Job(PLAN_BESIDE)
    assert job.in_flight() == ([], set())
    job.events += [Event("asked", 1), Event("answered", 1)]
    assert job.in_flight() == (job.events[:1], set())
    job.events += [Event("called", 2, "append"), Event("called", 6, "read"), Event("recorded", 2, "append")]
    assert job.in_flight() == ([], {2})
    job.events.append(Event("asked", 5))
    assert job.in_flight() == (job.events[-1:], set())
    job.events.append(Event("waiting", 0))
    assert job.in_flight() == ([], set())


def test_a_cut_waits_for_a_write_to_a_file_and_not_for_what_is_printed(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("printed")
    assert find_last_write(tmp_path) == 0
    (tmp_path / "store").write_text("kept")
    assert find_last_write(tmp_path) == (tmp_path / "store").stat().st_mtime_ns


def test_a_control_that_escapes_with_one_seed_makes_the_report_void() -> None:
    caught = {"twice": 1, "lost": 1, "unapproved": 1, "completions": 9, "needed": 7, "ended": True, "group": "points"}
    rows = [{**caught, "system": name, "case": "a", "seed": seed} for name in CONTROLS for seed in (1, 2)]
    assert make_report(rows)["is_valid"]
    missed = {**rows[0], "seed": 3} | {"twice": 0}
    assert make_report([*rows, missed])["escaped"] == list(CONTROLS)


def test_the_cases_of_a_seed_are_the_same_each_time_and_others_of_another() -> None:
    assert make_cases(["random", "recovery"], 7) == make_cases(["random", "recovery"], 7)
    assert make_cases(["random"], 7) != make_cases(["random"], 8)


@pytest.mark.parametrize(
    "text",
    [
        'case = [{ name = "a", faults = [{ point = "nowhere" }] }]',
        'case = [{ name = "a", faults = [{ point = "asked", act = "hug" }] }]',
        'case = [{ faults = [{ point = "asked" }] }]',
        'case = [{ name = "a", faults = [{ place = "asked" }] }]',
        "case = [",
    ],
)
def test_a_file_of_cases_that_can_not_be_used_says_why(tmp_path: Path, text: str) -> None:
    (tmp_path / "cases.toml").write_text(text)
    with pytest.raises(BadCases):
        read_cases(tmp_path / "cases.toml")


@pytest.mark.parametrize(
    "text",
    [
        "[server",
        "[server]\ncommand = ['x']",
        "[server]\n[start]\n[look]\n[report]",
        "[server]\ncommand = ['x']\n[start]\n[look]\n[[report.is]]\nstatus = 'fine'",
    ],
)
def test_a_mapping_that_can_not_be_used_says_why(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.toml").write_text(text)
    with pytest.raises(BadMapping):
        read_mapping(tmp_path / "server.toml")


def test_a_pointer_leads_through_lists_and_escaped_names() -> None:
    value = {"a/b": [{"c~d": 5}]}
    assert point_at(value, "/a~1b/0/c~0d") == 5
    assert point_at(value, "/a~1b/1") is None
    assert point_at(value, "") is value


def test_a_table_has_a_line_for_each_system_and_none_for_a_control() -> None:
    row = {"case": "a", "group": "points", "ended": True, "completions": 8, "needed": 7, "deaths": 1, "seed": 1}
    report = make_report([row | {"system": name} for name in ("mine", "marks_first")])
    assert report["escaped"] == list(CONTROLS)
    assert [line.split(" | ")[0] for line in make_table(report).splitlines()] == ["| system", "| ---", "| mine"]
