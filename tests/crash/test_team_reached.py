"""A team in a server's process, and commands in others: what a person wants of the run reaches each of its tasks.

In the default run core/test_branches_apart.py has the same in one process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.app import Place
from support.forked_program import run_program
from support.stdio_server import StdioClient
from support.waiting import wait_until

pytestmark = pytest.mark.slow

WITHIN_S = 30.0
THINKS, ASKS, RUNS, READS = (f"task-{n}/try-1" for n in (1, 2, 3, 4))
AGENTS = ("code_analyzer", "file_manager", "system_operator", "search_specialist")
PLAN = {
    "analysis": "Four parts.",
    "strategy": "decomposed",
    "tasks": [{"id": agent, "agent": agent, "description": f"Do what {agent} does."} for agent in AGENTS],
}
SETTINGS = """
commands = "bare"

[[gate]]
tools = "run_command"
verdict = "allow"
"""
SLEEPS = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep({})"


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def prepare(place: Place, *, think_s: float, run_s: float) -> None:
    """One task thinks, one asks a person, one runs a program, one reads and reads."""
    place.home.mkdir(mode=0o700)
    (place.home / "kairos.toml").write_text(SETTINGS)
    program = [sys.executable, "-c", SLEEPS.format(run_s)]
    lines = [
        {"for": f"{THINKS}/round-1", "content": "thought", "finish": "stop", "delay_s": think_s},
        {"for": f"{ASKS}/round-1", **calls("edit_file", path="a.txt", old_string="alpha", new_string="omega")},
        {"for": f"{ASKS}/round-2", "content": "asked", "finish": "stop"},
        {"for": f"{RUNS}/round-1", **calls("run_command", argv=program, timeout_s=60)},
        {"for": f"{RUNS}/round-2", "content": "it ran", "finish": "stop"},
        *({"for": f"{READS}/round-{n}", **calls("read_file", path="b.txt", end_line=n)} for n in range(1, 9)),
        {"for": f"{READS}/round-9", "content": "read", "finish": "stop", "delay_s": think_s},
        {"for": "synthesis", "content": "All is done.", "finish": "stop"},
    ]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


def steps(place: Place) -> dict[str, bool]:
    """The steps by path, and whether each was answered."""
    found = place.rows("select path, answer.step is not null from step left join answer on answer.step = step.id")
    return {path: bool(is_answered) for path, is_answered in found}


def begin(client: StdioClient, place: Place) -> tuple[str, int]:
    """Start the team, wait until each of its tasks is in the middle, and return its id and its program's process."""
    run_id: str = client.call("team_run", plan=PLAN, goal="Do all.", wait_s=0)["run_id"]
    middle = {f"{THINKS}/round-1", f"{ASKS}/round-1/call-1", f"{RUNS}/round-1/call-1", f"{READS}/round-9"}
    wait_until(lambda: middle <= steps(place).keys(), WITHIN_S, lambda: steps(place))
    pid = wait_until(lambda: (place.workspace / "pid").exists() and (place.workspace / "pid").read_text(), WITHIN_S)
    assert [path for path in middle if steps(place)[path]] == []
    return run_id, int(pid)


def command(place: Place, *words: str) -> str:
    done = run_program([*words, "--home", str(place.home)], timeout=WITHIN_S)
    assert done.returncode in (0, 3), (words, done.stdout, done.stderr)
    return done.stdout


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_cancel_from_another_process_ends_every_task_and_its_program(place: Place) -> None:
    prepare(place, think_s=60, run_s=60)
    with StdioClient.start(place) as client:
        run_id, pid = begin(client, place)
        command(place, "cancel", run_id)
        ((outcome,),) = wait_until(lambda: place.rows("select outcome from run where outcome is not null"), WITHIN_S)
        assert json.loads(outcome)["status"] == "cancelled"
        assert [path for path, is_answered in steps(place).items() if not is_answered] == [f"{ASKS}/round-1/call-1"]
        wait_until(lambda: not is_alive(pid), WITHIN_S)
        (run,) = client.call("run_status", run_ids=[run_id])["runs"]
        assert (run["status"], run["waiting"]) == ("cancelled", [])
    assert (place.workspace / "a.txt").read_text() == "alpha\n"


def test_a_pause_from_another_process_lets_every_task_end_its_step_and_begins_no_other(place: Place) -> None:
    prepare(place, think_s=1.5, run_s=1.5)
    with StdioClient.start(place) as client:
        run_id, _ = begin(client, place)
        command(place, "pause", run_id)
        wait_until(lambda: place.rows("select 1 from run where paused is not null and owner is null"), WITHIN_S)
        before = steps(place)
        assert [path for path, is_answered in before.items() if not is_answered] == [f"{ASKS}/round-1/call-1"]
        assert not before.keys() & {f"{RUNS}/round-2", "synthesis"}
        command(place, "approve", run_id, f"{ASKS}/round-1/call-1/approval")
        assert (place.workspace / "a.txt").read_text() == "alpha\n"
        command(place, "resume", run_id)
        wait_until(lambda: place.rows("select 1 from run where outcome is not null"), WITHIN_S, lambda: steps(place))
        (run,) = client.call("run_status", run_ids=[run_id])["runs"]
        assert (run["status"], run["summary"]) == ("completed", "All is done.")
    assert (place.workspace / "a.txt").read_text() == "omega\n"


def test_an_approval_from_another_process_lets_its_task_go_on_while_the_others_are_under_way(place: Place) -> None:
    prepare(place, think_s=60, run_s=60)
    with StdioClient.start(place) as client:
        run_id, _ = begin(client, place)
        command(place, "approve", run_id, f"{ASKS}/round-1/call-1/approval", "--no-drive")
        wait_until(lambda: steps(place).get(f"{ASKS}/round-2"), WITHIN_S, lambda: steps(place))
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        under_way = [path for path, is_answered in steps(place).items() if not is_answered]
        assert sorted(under_way) == [f"{THINKS}/round-1", f"{RUNS}/round-1/call-1", f"{READS}/round-9"]
        command(place, "cancel", run_id)
