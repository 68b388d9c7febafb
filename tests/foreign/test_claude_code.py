"""Claude Code at a terminal and without one, with the real server: what its person sees and decides, what its model is
shown, and what is found again after it was killed. A person types, and presses keys."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server.test_found_by_words import PHRASES
from support.waiting import wait_until

from tests.foreign.changes import lay_changes, make_changes
from tests.foreign.environs import Environ
from tests.foreign.served import Place, environ
from tests.foreign.steps import MANDATE, PLAN, lay_site
from tests.foreign.terminal import COMMAND_S, PATIENCE_S, Call, Terminal, terminal
from tests.foreign.terminal_hosts import CLAUDE_CODE_AT_TERMINAL as CLAUDE_CODE
from tests.foreign.terminal_hosts import LOOK

pytestmark = pytest.mark.foreign

CHANGES = make_changes()
VISITOR = Path(__file__).with_name("clients") / "page_visitor.py"
PEER = Path(__file__).parents[1] / "downstream" / "peer.py"
WRITE: Call = ("planner_run", {"goal": "Write made.txt.", "tools": ["write_file"]})
LOADED = {"planner_run", "run_continue", "run_status"}
WON_BY_ITS_OWN = {"connect the MCP server of our tracker": "ReadMcpResourceDirTool"}
"""It finds MCP, and the letters of our, in that name; no description and no hint is worth as much."""
OUTCOME = "select outcome ->> 'status', outcome ->> 'stop_reason' from run"


class Desk:
    """A person before Claude Code at a terminal of 80 columns and 24 lines."""

    def __init__(self, shown: Terminal, place: Place, packages: Path) -> None:
        self.shown, self.place, self._packages = shown, place, packages

    def start(self, *words: str) -> None:
        CLAUDE_CODE.start(self.shown, self._packages, self.place, *words)

    def reopen(self) -> None:
        """Start it again in the conversation before, and type nothing."""
        CLAUDE_CODE.launch(self.shown, self._packages, self.place, "--continue")

    def start_headless(self, typed: str, *words: str) -> None:
        """Start it without a terminal's dialogs, and wait for its end."""
        CLAUDE_CODE.launch(self.shown, self._packages, self.place, "-p", typed, *words)
        wait_until(lambda: "host" not in self.shown.windows(), PATIENCE_S, self.shown.screen)

    def finds(self, *words: str) -> bool:
        """Whether its model is shown these in what run_status says, once the server is there again."""
        for n in range(10):
            self.shown.does(f"look-{n}", LOOK)
            shown = "".join(self.shown.rests()["results"])
            if "run-" in shown:
                return all(word in shown for word in words)
        return False

    def gives(self, command: list[str]) -> None:
        """Give a command in another terminal."""
        subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S, env=environ())

    def approves_elsewhere(self) -> None:
        """Approve the only thing that waits, in another terminal; and go on with it there."""
        ((run_id, digest),) = self.place.rows("select id, digest from approval join run on run.n = approval.run")
        self.gives(self.place.say("approve", run_id, "--digest", digest))

    def comes_to(self, statement: str, *row: Any) -> None:
        """Wait until this is the only row."""
        wait_until(lambda: self.place.rows(statement) == [row], PATIENCE_S, lambda: self.place.rows(statement))

    def reads(self, path: str) -> str:
        return (self.place.workspace / path).read_text()


@pytest.fixture
def desk(environment: Callable[[Environ], Path], tmp_path: Path) -> Iterator[Desk]:
    """A small site with a script for runs, and the files of the changes."""
    place = lay_changes(lay_site(tmp_path / "place"), CHANGES)
    with terminal(tmp_path / "terminal", (80, 24)) as shown:
        yield Desk(shown, place, environment(CLAUDE_CODE.client.environ))


@pytest.mark.parametrize(("name", "way", "lines"), [("edit-2", "whole", 2), ("edit-8", "walk", 8)])
def test_a_person_approves_in_a_dialog_and_what_it_showed_is_kept(desk: Desk, name: str, way: str, lines: int) -> None:
    desk.start()
    desk.shown.does(name, CHANGES[name].call)
    CLAUDE_CODE.approves(desk.shown)
    desk.comes_to("select ending from task", "completed")
    ((path, before),) = CHANGES[name].before.items()
    assert desk.reads(path) == before.replace("old_", "new_")
    ((verdict, through, client, shown),) = desk.place.rows("select verdict, through, client, shown from approval")
    assert (verdict, through, client) == ("approve", "elicitation", "claude-code 2.1.332")
    view = json.loads(shown)
    assert (view["way"], view["lines"], view["of"]) == (way, lines, lines)
    assert view["open_ms"] > 0


def test_a_person_decides_on_the_page_behind_the_link_of_a_dialog(desk: Desk) -> None:
    desk.start()
    desk.shown.does("edit-50", CHANGES["edit-50"].call)
    CLAUDE_CODE.reads(desk.shown)
    CLAUDE_CODE.chooses(desk.shown, "Open in browser")
    opened = desk.place.root / "host" / "opened"
    link = wait_until(lambda: opened.exists() and opened.read_text().strip(), PATIENCE_S)
    assert link in desk.shown.screen().replace("\n", "")
    desk.comes_to("select verdict from approval", None)
    visit = [sys.executable, str(VISITOR), link, str(desk.place.home)]
    desk.shown.beside("page", visit, environ(), desk.place.root)
    desk.comes_to("select verdict, through from approval", "approve", "page")
    CLAUDE_CODE.chooses(desk.shown, "I'm done, continue")
    desk.comes_to("select ending from task", "completed")
    ((path, before),) = CHANGES["edit-50"].before.items()
    assert desk.reads(path) == before.replace("old_", "new_")


def test_who_says_done_without_a_decision_is_waited_for(desk: Desk) -> None:
    desk.start()
    desk.shown.does("edit-50", CHANGES["edit-50"].call)
    CLAUDE_CODE.reads(desk.shown)
    CLAUDE_CODE.chooses(desk.shown, "I'm done, continue")
    desk.shown.shows(CLAUDE_CODE.prompt, without="Decline")
    assert desk.place.rows("select verdict, ending from approval, task") == [(None, None)]
    desk.approves_elsewhere()
    desk.comes_to("select ending from task", "completed")


def test_what_is_answered_in_a_dialog_that_is_out_of_date_changes_nothing(desk: Desk) -> None:
    desk.start()
    desk.shown.does("edit-2", CHANGES["edit-2"].call)
    CLAUDE_CODE.reads(desk.shown)
    desk.approves_elsewhere()
    desk.comes_to("select outcome ->> 'status' from run", "completed")
    CLAUDE_CODE.declines(desk.shown)
    desk.comes_to("select ending from task", "completed")
    assert desk.place.rows("select verdict, through from approval") == [("approve", "command")]


def test_a_long_call_is_a_task_whose_result_comes_to_its_model(desk: Desk) -> None:
    desk.start()
    desk.shown.does("plan", ("planner_plan", {"goal": "Split two things."}))
    assert "started server-side task" in desk.shown.rests()["results"][0]
    desk.comes_to("select ending from task", "completed")
    ((run_id,),) = desk.place.rows("select id from run")
    told = wait_until(lambda: [line for line in desk.shown.asked() if "completed" in line["text"][-3000:]], PATIENCE_S)
    assert run_id in told[-1]["text"]


def test_a_person_approves_the_act_of_an_ooda_cycle(desk: Desk) -> None:
    desk.start()
    desk.shown.does("cycle", ("ooda_run", {"mandate": MANDATE}))
    CLAUDE_CODE.approves(desk.shown)
    desk.comes_to(OUTCOME, "completed", "goal_achieved")
    assert "(install.md)" in desk.reads("docs/guide.md")
    assert desk.place.rows("select verdict, through from approval") == [("approve", "elicitation")]


def test_a_team_does_its_tasks(desk: Desk) -> None:
    desk.start()
    desk.shown.does("team", ("team_run", {"goal": "Two things.", "plan": PLAN}))
    desk.comes_to(OUTCOME, "completed", "team_done")
    asked = "select path from step where path like 'task-%/round-1' order by path"
    assert desk.place.rows(asked) == [("task-1/try-1/round-1",), ("task-2/try-1/round-1",)]
    assert "Both are done." in json.dumps(desk.shown.rests()["results"])


def test_after_it_was_killed_its_run_is_found_and_approved(desk: Desk) -> None:
    desk.start()
    desk.shown.does("write", WRITE)
    CLAUDE_CODE.reads(desk.shown)
    os.kill(desk.shown.pid(), signal.SIGKILL)
    wait_until(lambda: "host" not in desk.shown.windows(), PATIENCE_S)
    desk.comes_to("select verdict from approval", None)
    desk.reopen()
    CLAUDE_CODE.approves(desk.shown)  # it takes its task up again, with the dialog
    desk.comes_to(OUTCOME, "completed", "assistant_stop")
    assert desk.reads("made.txt") == "made\n"
    assert desk.place.rows("select verdict, through from approval") == [("approve", "elicitation")]
    ((run_id,),) = desk.place.rows("select id from run")
    assert desk.finds(run_id, "completed")


def test_without_a_terminal_nobody_decides_but_by_the_command(desk: Desk) -> None:
    desk.shown.knows("write", WRITE)
    desk.start_headless("DO write")
    assert desk.place.rows("select verdict from approval") == [(None,)]
    (waiting,) = json.loads(desk.shown.results()[-1])["waiting"]
    desk.gives(shlex.split(waiting["command"]))
    desk.comes_to(OUTCOME, "completed", "assistant_stop")
    assert desk.reads("made.txt") == "made\n"
    desk.shown.knows("look", LOOK)
    desk.start_headless("DO look", "--continue")
    assert "completed" in desk.shown.results()[-1]


def test_three_tools_are_loaded_at_once_and_the_others_found_by_what_users_say(desk: Desk) -> None:
    desk.start()
    ours = {name.removeprefix("mcp__kairos__") for name in desk.shown.asked()[-1]["tools"] if "mcp__kairos" in name}
    assert ours == LOADED
    searched = {tool: phrases for tool, phrases in PHRASES.items() if tool not in LOADED}
    phrases = [phrase for each in searched.values() for phrase in each]
    desk.shown.does("find", *(("ToolSearch", {"query": phrase, "max_results": 1}) for phrase in phrases))
    found = dict(zip(phrases, desk.shown.rests()["results"], strict=True))
    led = {phrase for tool, each in searched.items() for phrase in each if found[phrase] == f"mcp__kairos__{tool}"}
    assert {phrase: found[phrase] for phrase in phrases if phrase not in led} == WON_BY_ITS_OWN


def test_a_long_result_reaches_its_model_whole(desk: Desk) -> None:
    """Such a result of a server that does not ask for it is put into a file."""
    other = desk.place.root / "other.json"
    other.write_text(json.dumps({"mcpServers": {"other": {"command": sys.executable, "args": [str(PEER)]}}}))
    (desk.place.workspace / "long.txt").write_text("".join(f"line {n} of a long text\n" for n in range(4_000)))
    desk.start("--mcp-config", str(other), "--allowedTools", "mcp__other")
    desk.shown.does("read", ("registry_call", {"name": "read_file", "arguments": {"path": "long.txt"}}))
    desk.shown.rests()
    ((run_id,),) = desk.place.rows("select id from run")
    desk.shown.does("trace", ("run_trace", {"run_id": run_id, "ref": "call-1", "max_chars": 100_000}))
    (ours,) = desk.shown.rests()["results"]
    desk.shown.does("other", ("mcp__other__echo", {"text": "x" * len(ours)}))
    *_, theirs = desk.shown.rests()["results"]
    assert len(ours) > 90_000
    assert len(theirs) < len(ours) / 10
