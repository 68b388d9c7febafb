"""A command that is shown anywhere works where it is pasted; a placeholder of a proposed call is refused."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import PERSON, Place, place_in, start_run
from support.commands import command
from support.sources import nodes_with
from support.stdio_server import StdioClient

from kairos_mcp.app.app import App
from kairos_mcp.cli.command_table import COMMANDS, GROUPS
from kairos_mcp.cli.main import run_command
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import Placeholder
from kairos_mcp.views.command_text import COMMAND_GROUPS, CommandLine, name_commands

WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}
VERBS = "|".join((*COMMANDS, *GROUPS))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "a place")  # with a blank, as folders have


def run_in_shell(words: str, folder: Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a person pastes it into a shell that knows of this program no `more` than that."""
    environ = {"PATH": os.defpath, "HOME": str(folder), **more}
    return subprocess.run(
        ["/bin/sh", "-c", words], cwd=folder, env=environ, capture_output=True, timeout=60, check=False
    )


def test_the_command_that_next_tells_a_person_works_in_any_shell(place: Place) -> None:
    place.settings(WRITES, {"content": "Written.", "finish": "stop"})
    with StdioClient.start(place) as server:
        run = server.call("planner_run", goal="Write it.", tools=["write_file"])
        why = run["next"]["why"]
        (approve,) = re.findall(r"`([^`]+)`", why)
        assert run["waiting"][0]["command"] == approve
        done = run_in_shell(approve, place.root)
        assert done.returncode == 0, done.stderr
    assert (place.workspace / "new.txt").read_text() == "new\n"


def test_the_commands_of_show_and_of_an_error_work_when_pasted(place: Place) -> None:
    store = postgres.environ_of(place.root)
    environ = {"HOME": str(place.root), **store}
    start = ("run", "Think.", "--home", str(place.home), "--route", "caller")
    waiting = command(*start, folder=place.workspace, environ=environ)
    assert waiting.code == 3, waiting.err
    shown = next(line.strip() for line in waiting.out.splitlines() if " answer " in line)
    refused = run_in_shell(shown, place.root, **store)
    assert (refused.returncode, b"placeholder" in refused.stderr) == (2, True), refused
    words = shlex.split(shown)
    words[-1] = json.dumps({"content": "Thought.", "finish": "stop"})
    assert run_in_shell(shlex.join(words), place.root, **store).returncode == 0
    ((outcome,),) = place.rows("select outcome from run")
    assert json.loads(outcome)["summary"] == "Thought."


async def test_another_principal_is_told_to_ask_and_sees_no_path(place: Place) -> None:
    tenant = Caller(principal="tenant")
    async with App.open(place.settings(WRITES, {"content": "Written."}), via="mcp") as app:
        from kairos_mcp.core.run_spec import PlannerRequest

        run_id = (await app.runs.start(PlannerRequest("Write.", tools=("write_file",)), tenant)).run_id
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=tenant)
        next_call = (await app.runs.report(run_id, tenant)).next
    assert next_call is not None
    assert str(place.root) not in json.dumps(next_call)
    assert "--principal tenant" in next_call["why"]
    assert "Whoever runs this server" in next_call["why"]


@pytest.mark.parametrize("line", ["approve run-1 round-1/call-1", "mandate edit x --workspace /a", "doctor"])
def test_options_stand_behind_the_words_of_a_command(line: str) -> None:
    spelled = CommandLine(("/opt/k m",), ("--home", "/a b")).complete_all(f"Run `kairos-mcp {line}`, then go on.")
    (found,) = re.findall(r"`([^`]+)`", spelled)
    words = shlex.split(found)
    named = 2 if line.startswith("mandate") else 1
    assert words == ["/opt/k m", *line.split()[:named], "--home", "/a b", *line.split()[named:]]


def test_a_command_in_a_text_stands_in_backticks_so_that_it_is_worded() -> None:
    bare = re.compile(rf"(?<=[^`])kairos-mcp (?:{VERBS})\b")  # a text that is a command is no sentence
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    written = list(nodes_with(["kairos-mcp"]))
    docs = {
        id(node.body[0].value)
        for _, node in written
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        (file, node.lineno, node.value)
        for file, node in written
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]
    assert len(texts) > 100
    assert [text for text in texts if bare.search(text[2])] == []


def answers_of(value: Any) -> bool:
    return any(word in json.dumps(value, ensure_ascii=False) for word in Placeholder.ALL)


def test_a_proposed_call_that_is_sent_verbatim_completes_nothing(place: Place) -> None:
    with StdioClient.start(place, script=False) as server:
        run = server.call("planner_run", goal="Think.", route="caller")
        proposed = run["next"]
        assert answers_of(proposed["arguments"])
        refused = server.call(proposed["tool"], **proposed["arguments"])
        assert refused["code"] == "bad_arguments"
        (now,) = server.call("run_status", run_ids=[run["run_id"]])["runs"]
        assert (now["status"], now["seq"]) == ("input_required", run["seq"])
    assert place.rows("select count(*) from answer") == [(0,)]


def test_no_tool_takes_a_placeholder_for_what_it_stands_for(place: Place) -> None:
    with StdioClient.start(place, script=False) as server:
        server.call("planner_run", goal="Think.", route="caller")
        for word in sorted(Placeholder.ALL):
            refused = server.call("planner_run", goal=word, route="caller")
            assert (refused["code"], word in refused["message"]) == ("bad_arguments", True), refused
    assert place.rows("select count(*) from run") == [(1,)]


async def test_a_placeholder_is_no_answer_from_a_person_at_a_terminal_either(place: Place) -> None:
    async with App.open(place.settings(), via="command") as app:
        run_id = await start_run(app, route="caller")
        for value in (
            {"content": Placeholder.ANSWER},
            {"tool_calls": [{"name": Placeholder.RESULT, "arguments": {}}]},
        ):
            with pytest.raises(BadArguments, match="placeholder"):
                await app.answers.submit(run_id, {"round-1": value}, PERSON)
    assert place.rows("select count(*) from answer") == place.rows("select count(*) from inbox") == [(0,)]


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("run_status without run_ids lists the newest runs.", "`kairos-mcp runs` lists the newest runs."),
        ("run_status shows what waits now.", "`kairos-mcp show run-1` shows what waits now."),
        ('planner_run continues="run-1" goes on from it.', "`kairos-mcp run -i --continue run-1` goes on from it."),
        ("mandate_save makes one. Saved: none.", "`kairos-mcp mandate save FILE` makes one. Saved: none."),
        ('registry_search names=["a"] shows the schema.', "`kairos-mcp tools show NAME` shows the schema."),
        ("Ask a person; planner_runs is no tool.", "Ask a person; planner_runs is no tool."),
    ],
)
def test_a_person_is_told_commands_where_a_model_is_told_tools(hint: str, told: str) -> None:
    assert name_commands(hint, "run-1") == told
    words = told.partition("`kairos-mcp ")[2].partition("`")[0].split()
    assert not words or run_command([*words[: 2 if words[0] in COMMAND_GROUPS else 1], "--help"]) == 0
