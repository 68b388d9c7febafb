"""The demo: what it says of itself is what its rows, files and processes show."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands.conftest import Shell
from support import postgres
from support.commands import printed_words
from support.terminal import Terminal

ROUNDS = "select path from step join run on run.n = step.run where run.id = ? and path like 'round-_' order by step.id"
DEMO_S = 30  # in which it promises to be over
AGAIN = "select path from attempt join step on step.id = attempt.step"


@pytest.fixture
def kairos(kairos: Shell) -> Iterator[Shell]:
    """With a state folder that this version refuses, as that of an older one: the demo has its own."""
    kairos.state.mkdir(mode=0o700)
    refused = kairos.state / "kairos.db"
    refused.write_bytes(b"not a store")
    yield kairos
    assert refused.read_bytes() == b"not a store"
    refused.unlink()


def runs_of(demo: Shell) -> list[str]:
    return [run_id for (run_id,) in demo.rows("select id from run order by n")]


def folder_of(shown: str) -> Path:
    (folder,) = re.findall(r"^/\S+/kairos-demo-\w+$", shown, re.MULTILINE)
    return Path(folder)


def state_of(kairos: Shell, folder: Path) -> Shell:
    """Commands on the demo's own state, beside its files, and its rows."""
    return kairos if postgres.is_chosen() else replace(kairos, state=folder / "state")


def guide_of(shown: str) -> Path:
    return folder_of(shown) / "project" / "docs" / "guide.md"


def test_a_killed_run_goes_on_and_asks_each_answered_turn_once(kairos: Shell, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in kairos.folder.iterdir()}
    began = os.times()
    said = kairos("demo", TMPDIR=str(tmp_path))
    ended = os.times()
    cpu_s = sum(getattr(ended, name) - getattr(began, name) for name in ("children_user", "children_system"))
    assert (said.code, cpu_s < DEMO_S) == (0, True)  # not by the clock: another test may be running
    (killed,) = re.findall(r"kill -9 (\d+)", said.err)
    with pytest.raises(ProcessLookupError):
        os.kill(int(killed), 0)
    demo = state_of(kairos, folder_of(said.err))
    mended, limited = runs_of(demo)
    assert demo.rows(ROUNDS, mended) == [(f"round-{n}",) for n in range(1, 5)]
    assert demo.rows(f"select path from ({AGAIN}) where path like 'round-_'") == [("round-3",)]
    assert demo.rows("select verdict, through from approval") == [("approve", "command")]
    assert "(install.md)" in guide_of(said.err).read_text()
    for line in re.findall(r"^(?:Look at the first run|Verify it): +(.*)$", said.out, re.MULTILINE):
        assert kairos(*printed_words(line)).code == 0
    outcome = demo("show", limited, "--json").json
    assert (outcome["status"], outcome["stop_reason"], outcome["rounds"]) == ("stopped", "max_rounds", 2)
    assert outcome["summary"].startswith("Both pages were read once.")
    assert {file.name: file.read_bytes() for file in kairos.folder.iterdir()} == before


def test_a_person_at_the_terminal_is_asked_and_may_say_no(kairos: Shell, tmp_path: Path) -> None:
    with Terminal("demo", folder=kairos.folder, environ=kairos.environ(TMPDIR=str(tmp_path))) as terminal:
        terminal.shows("for this project")
        terminal.types("n")
        terminal.shows("Verify it:")
        assert terminal.ends() == 0
        assert "(instal.md)" in guide_of(terminal.text).read_text()
    assert state_of(kairos, folder_of(terminal.text)).rows("select verdict from approval") == [("deny",)]


def test_json_is_the_report_of_the_first_run_alone(kairos: Shell, tmp_path: Path) -> None:
    said = kairos("demo", "--json", TMPDIR=str(tmp_path))
    assert (said.code, said.json["status"], said.json["rounds"]) == (0, "completed", 4)
    (folder,) = tmp_path.glob("kairos-demo-*")
    assert runs_of(state_of(kairos, folder)) == [said.json["run_id"]]
    assert "kill" not in said.err
