"""A run whose command was killed is gone on with from the terminal: by `resume`, and by the same `run` again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands.conftest import Shell
from support.commands import printed_words
from support.forked_program import start
from support.waiting import wait_until

LOOK = {"tool_calls": [{"id": "1", "name": "list_files", "arguments": {}}]}
END = {"content": "All done.", "finish": "stop"}
HANGS_ONCE = "echo made >> made.txt; test $(wc -l < made.txt) -gt 1 || sleep 60"
MAKES = {"tool_calls": [{"id": "1", "name": "run_command", "arguments": {"argv": ["sh", "-c", HANGS_ONCE]}}]}


def kill_run_once(kairos: Shell, words: list[str], lines: list[dict[str, Any]], seen: Callable[[], Any]) -> str:
    """Kill a `run` as soon as this is seen of it; returns the id of its run."""
    script = kairos.home / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    environ = kairos.environ(KAIROS_SCRIPT=str(script))
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = start(words, cwd=kairos.folder, env=environ, **quiet)
    try:
        wait_until(seen)
    finally:
        running.kill()
        running.wait()
    ((run_id,),) = kairos.rows("select id from run")
    return str(run_id)


def killed_while_thinking(kairos: Shell, *more: str) -> str:
    lines = [LOOK, {**END, "delay_s": 1.0}]
    return kill_run_once(
        kairos, ["run", "Look.", *more], lines, lambda: kairos.rows("select 1 from step where path='round-2'")
    )


def step_paths(kairos: Shell) -> list[tuple[Any, ...]]:
    return kairos.rows("select path from step order by 1")


def script_of(kairos: Shell) -> dict[str, str]:
    return {"KAIROS_SCRIPT": str(kairos.home / "script.jsonl")}


def test_a_killed_run_is_shown_with_the_command_that_takes_it_up_and_that_command_does(kairos: Shell) -> None:
    run_id = killed_while_thinking(kairos)
    shown = kairos("show", run_id)
    assert "paused" in shown.out
    assert "lacks" not in shown.out  # a command goes into the run's own workspace
    (line,) = [line for line in shown.out.splitlines() if line.startswith("  ") and " resume " in line]
    resumed = kairos(*printed_words(line), **script_of(kairos))
    assert resumed.code == 0, resumed.err
    assert "All done." in resumed.out
    assert kairos.rows("select json_extract(outcome, '$.status') from run") == [("completed",)]
    assert step_paths(kairos) == [("round-1",), ("round-1/call-1",), ("round-2",)]  # nothing is asked twice


def test_the_same_words_again_take_up_the_killed_run(kairos: Shell) -> None:
    run_id = killed_while_thinking(kairos)
    said = kairos("run", "Look.", "--json", **script_of(kairos))
    assert (said.code, said.json["run_id"], said.json["status"]) == (0, run_id, "completed")
    assert run_id in said.err
    assert kairos.rows("select count(*) from run") == [(1,)]


def test_what_cannot_be_repeated_by_itself_is_shown_with_its_key_and_the_exact_command(kairos: Shell) -> None:
    kairos.state.mkdir(mode=0o700)
    rule = 'commands = "bare"\n[[gate]]\ntools = "run_command"\nverdict = "allow"\n'
    (kairos.state / "kairos.toml").write_text(rule)
    made = kairos.folder / "made.txt"
    run_id = kill_run_once(
        kairos,
        ["run", "Make.", "--tools", "run_command"],
        [MAKES, END],
        lambda: made.exists() and made.read_text() != "",
    )
    resumed = kairos("resume", run_id, **script_of(kairos))
    assert resumed.code == 3
    assert "round-1/call-1/settle" in resumed.out
    (line,) = [line for line in resumed.out.splitlines() if " settle " in line and "already_done" in line]
    settled = kairos(*printed_words(line.partition("   (")[0]), **script_of(kairos))
    assert settled.code == 0, settled.err
    assert made.read_text() == "made\n"


def test_a_run_that_was_paused_goes_on_and_one_that_has_ended_is_shown(kairos: Shell) -> None:
    run_id = killed_while_thinking(kairos)
    assert kairos("resume", run_id, "--json", **script_of(kairos)).json["status"] == "completed"
    again = kairos("resume", run_id)
    assert (again.code, "All done." in again.out) == (0, True)
    assert kairos("resume", "run-nobody").code == 2


def test_a_run_that_waits_for_an_answer_still_waits(kairos: Shell) -> None:
    waits = kairos("run", "Think.", "--route", "caller", "--json")
    before = kairos.rows("select * from inbox")
    said = kairos("resume", waits.json["run_id"], "--json")
    assert (said.code, said.json["status"]) == (3, "input_required")
    assert kairos.rows("select * from inbox") == before


@pytest.mark.parametrize("lacking", [True, False])
def test_without_what_it_takes_the_run_stays_and_says_what_is_missing(
    kairos: Shell, tmp_path: Path, lacking: bool
) -> None:
    run_id = killed_while_thinking(kairos)
    (kairos.folder / "README.md").unlink()
    if lacking:
        kairos.folder.rename(tmp_path / "elsewhere")
        said = kairos("resume", run_id, "--json", cwd=tmp_path)
        assert (said.code, said.json["status"]) == (3, "paused")
        assert kairos.rows("select outcome from run") == [(None,)]
    else:
        assert kairos("resume", run_id, "--json", cwd=tmp_path).json["status"] == "completed"
