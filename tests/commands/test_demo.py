"""The demo: what it says of itself is what its rows, files and processes show."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.terminal import Terminal

ROUNDS = "select path from step join run on run.n = step.run where run.id = ? and path like 'round-_' order by step.id"
DEMO_S = 30  # in which it promises to be over
AGAIN = "select path from attempt join step on step.id = attempt.step"


def runs_of(kairos) -> list[str]:
    return [run_id for (run_id,) in kairos.rows("select id from run order by n")]


def guide_of(shown: str) -> Path:
    (folder,) = re.findall(r"^/\S+/kairos-demo-\w+$", shown, re.MULTILINE)
    return Path(folder, "docs", "guide.md")


def test_a_killed_run_goes_on_and_asks_each_answered_turn_once(kairos) -> None:
    before = {file.name: file.read_bytes() for file in kairos.folder.iterdir()}
    began = os.times()
    said = kairos("demo")
    ended = os.times()
    cpu_s = sum(getattr(ended, name) - getattr(began, name) for name in ("children_user", "children_system"))
    assert (said.code, cpu_s < DEMO_S) == (0, True)  # not by the clock: another test may be running
    (killed,) = re.findall(r"kill -9 (\d+)", said.err)
    with pytest.raises(ProcessLookupError):
        os.kill(int(killed), 0)
    mended, limited = runs_of(kairos)
    assert kairos.rows(ROUNDS, mended) == [(f"round-{n}",) for n in range(1, 5)]
    assert kairos.rows(f"select path from ({AGAIN}) where path like 'round-_'") == [("round-3",)]
    assert kairos.rows("select verdict, through from approval") == [("approve", "command")]
    assert "(install.md)" in guide_of(said.err).read_text()
    outcome = kairos("show", limited, "--json").json
    assert (outcome["status"], outcome["stop_reason"], outcome["rounds"]) == ("stopped", "max_rounds", 2)
    assert outcome["summary"].startswith("Both pages were read once.")
    assert {file.name: file.read_bytes() for file in kairos.folder.iterdir()} == before


def test_a_person_at_the_terminal_is_asked_and_may_say_no(kairos) -> None:
    with Terminal("demo", folder=kairos.folder, environ=kairos.environ()) as terminal:
        terminal.shows("for this project")
        terminal.types("n")
        terminal.shows("Verify it:")
        assert terminal.ends() == 0
        assert "(instal.md)" in guide_of(terminal.text).read_text()
    assert kairos.rows("select verdict from approval") == [("deny",)]


def test_json_is_the_report_of_the_first_run_alone(kairos) -> None:
    said = kairos("demo", "--json")
    assert (said.code, said.json["status"], said.json["rounds"]) == (0, "completed", 4)
    assert runs_of(kairos) == [said.json["run_id"]]
    assert "kill" not in said.err
