"""Each benchmark still runs, with sizes of next to nothing, and tells its figures; none of them is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.forked_program import run_program

from benchmarks.peers import PEERS

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import runpy, sys
from benchmarks import fresh
fresh.FORKED = sys.argv[1] != "growth"  # its counters have to be there before kairos_mcp is
runpy.run_module("benchmarks", run_name="__main__")
"""

TINY = [
    ("rounds", "--rounds 3 --times 1", {"floor_us", "round_reading", "round_noop", "round_four_deep", "start_a_round"}),
    ("growth", "--few 12 --many 14", {"statements_grows", "encoded_grows", "hashed_grows", "bound_grows"}),
    ("syncs", "--rounds 2 --times 1", {"floor_ms", "wall"}),
    ("abreast", "--few 2 --many 3 --rounds 2 --times 1", {"round_reading_of_2", "round_noop_of_3", "commits_of_3"}),
    ("stored", "--first 5", {"bytes_a_round_to_10", "bytes_a_round_to_20", "bytes_a_round_to_40"}),
    ("parked", "--runs 24 --rounds 1", {"allocated_kb_kept", "allocated_kb_let_go", "resident_kb_kept"}),
    ("resumed", "--rounds 3 --floor_rounds 3 --times 1", {"fold_ms", "fold", "resume"}),
    ("started", "--times 1", {"bare_ms", "start", "version", "runs", "run_openai"}),
    ("called", "--calls 2 --times 1", {"bare_us", "recorded", "added_in_floors"}),
    ("crowded", "--rounds 2 --times 1 --tools 50", {"round_us", "round_with_50", "start_ms_with_50"}),
    ("counted", "--rounds 8", {"reading_operations", "noop_calls", "caller_statements", "tasks_calls"}),
    ("lengths", "--few 2 --many 30 --times 1", {"report_grows", "round_grows", "round_us_at_30", "push_grows"}),
    ("asked", "--runs 1 --times 1", {"push_above", "input_required_above", "floor_us"}),
    (
        "transports",
        "--calls 2 --clients 2 --each 1 --times 1 --ways 2",
        {"stdio_kairos_cpu", "http_modern_kairos_cpu", "http_modern_2_kairos_rate"},
    ),
    (
        "requests",
        "--calls 4 --runs 4 --times 1 --few 2 --many 3",
        {"call_1_kairos_cpu", "read_2_kairos_cpu", "run_3_kairos_per_s", "task_3_kairos_least"},
    ),
    (
        "team",
        "--tasks 2 --rounds 2 --times 1",
        {"round_of_tasks", "tasks_by_runs", "under_way_at_once", "wall_by_waits"},
    ),
    ("shown", "", {"fix_chars", "question_times", "team_times"}),
    (
        "workers",
        "--runs 2 --rounds 2 --times 1 --most 1",
        {"file_per_s_of_1", "database_server_us_of_1", "database_database_us_of_1", "trips_a_round"},
    ),
    (
        "sizing",
        "--abreast 2 --rounds 3 --runs 4",
        {"server_ms_3_rounds_2_at_once", "bytes_3_rounds_2_at_once", "p99_s_3_rounds_2_at_once"},
    ),
    ("peers", "--rounds 3 --many 5 --times 1 --peers 0", {"floor_us", "kairos_round", "kairos_grows_to_5"}),
]

AT_MOST = {"fix_chars": 20_000, "question_times": 1.15, "team_times": 2.0}
"""What a model is shown of a day's work, the same on any machine."""

LONG = (
    "lengths",
    "asked",
    "transports",
    "requests",
    "syncs",
    "started",
    "parked",
    "team",
    "workers",
    "sizing",
)  # each starts many processes: in the whole run alone


@pytest.mark.parametrize(
    ("name", "sizes", "keys"),
    [pytest.param(*each, id=each[0], marks=pytest.mark.slow if each[0] in LONG else ()) for each in TINY],
)
def test_a_benchmark_runs_and_tells_its_figures(name: str, sizes: str, keys: set[str]) -> None:
    ran = run_program([name, *sizes.split()], code=PROGRAM, cwd=ROOT, timeout=120)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert keys <= result.keys()
    assert result["benchmark"] == name
    assert {key: result[key] for key in keys & AT_MOST.keys() if result[key] > AT_MOST[key]} == {}


@pytest.mark.foreign
def test_a_round_of_each_other_framework_runs() -> None:
    """In their environments, which the first time makes."""
    sizes = ["--rounds", "3", "--many", "5", "--times", "1"]
    ran = run_program(["peers", *sizes], code=PROGRAM, cwd=ROOT, timeout=1_800)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert {f"{name}_{figure}" for name in PEERS for figure in ("round", "least", "grows_to_5")} <= result.keys(), (
        ran.stderr
    )


@pytest.mark.foreign
def test_attacks_of_agentdojo_are_asked_about() -> None:
    """Of the first user task of each suite, whose ground truths are carried out in an environment of their own."""
    ran = run_program(["agentdojo", "--users", "1"], code=PROGRAM, cwd=ROOT, timeout=1_800)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["read"] == result["pairs"] == 35
    assert result["injected_asked"] >= 0.9 * result["injected"]


@pytest.mark.foreign
def test_most_calls_of_ordinary_days_of_bfcl_are_not_asked_about() -> None:
    ran = run_program(["bfcl"], code=PROGRAM, cwd=ROOT, timeout=900)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert (result["changing"], result["days"]) == (491, 164)
    assert result["changing_asked"] <= 0.18 * result["changing"]
