"""`approve`, `deny` and `show` as commands: what they print, deposit and drive."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import subprocess
from typing import Any

import pytest
from support.app import Place, says, start_run
from support.commands import printed_words
from support.environment import plain_environ
from support.forked_program import run_program, start
from support.reviewers import KEY, open_asking_app, verdicts, waiting

from kairos_mcp.cli import respond, rules
from kairos_mcp.cli.command_table import GROUPS
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, NotFound
from kairos_mcp.settings.settings import Flags
from kairos_mcp.views.command_text import COMMAND_GROUPS

WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}
EVIL = "--- a.txt\n+++ a.txt\n+\x1b[2Jrm -rf \u202e/"


def kairos(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return ran(words[0], "--home", str(place.home), *words[1:])


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    environ = plain_environ()
    done = run_program(words, env=environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def on_a_terminal(place: Place, *words: str) -> bytes:
    """What the command writes to a terminal that knows colours."""
    ours, theirs = pty.openpty()
    environ = plain_environ("NO_COLOR") | {"TERM": "xterm"}
    shown = start([words[0], "--home", str(place.home), *words[1:]], stdout=theirs, env=environ)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 65_536):
            text += chunk
    except OSError:
        pass  # the other end of a terminal was closed
    finally:
        os.close(ours)
        assert shown.wait(60) == 0
    return text


@pytest.fixture
async def run_id(place: Place) -> str:
    async with open_asking_app(place) as app:
        return await waiting(app, place)


async def test_show_prints_what_is_asked_whole_and_the_lines_that_decide(place, run_id):
    shown = kairos(place, "show", run_id).stdout
    assert "\nedit a.txt  -1 +1\n  @@ -1,1 +1,1 @@\n  - alpha\n  + omega\n" in shown
    (approve,) = [line.strip() for line in shown.splitlines() if " approve " in line]
    (deny,) = [line.strip() for line in shown.splitlines() if " deny --home" in line]
    assert shlex.split(approve)[-2:] == [run_id, KEY]
    assert ran(*printed_words(deny)).returncode == 0
    assert verdicts(place) == [("deny", "local", "command", None)]


async def test_on_a_terminal_the_diff_has_colours_and_steers_nothing(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place, preview=EVIL)
    text = on_a_terminal(place, "show", run_id)
    assert b"\x1b[32m+\\x1b[2Jrm -rf \\u202e/\x1b[0m" in text
    assert b"\x1b[31m--- a.txt" in text
    assert b"\x1b[2J" not in text


async def test_approve_drives_the_run_on_as_answer_does(place, run_id):
    done = kairos(place, "approve", run_id, KEY)
    assert done.returncode == 3  # it waits for what the caller's own tool gives
    assert "  + omega\n" in done.stdout
    assert verdicts(place) == [("approve", "local", "command", None)]
    assert place.rows("select kind, taken is not null from inbox") == [("verdict", 1)]


async def test_without_driving_the_word_is_left_to_whoever_comes(place, run_id):
    done = kairos(place, "deny", run_id, KEY, "--feedback", "not that file", "--no-drive")
    assert (done.returncode, verdicts(place)) == (0, [("deny", "local", "command", "not that file")])
    assert place.rows("select taken from inbox") == [(None,)]
    assert place.rows("select owner from run") == [(0,)]


async def test_what_can_not_be_decided_is_said_and_stores_nothing(place, run_id):
    for words in (
        ("approve", run_id, "round-1/call-1"),
        ("approve", "--principal", "bob", run_id, KEY),
    ):
        done = kairos(place, *words)
        assert done.returncode in (1, 2), words
        assert done.stderr
    assert verdicts(place) == [(None, None, None, None)]


async def test_the_owner_of_the_folder_decides_for_a_principal_by_name(place):
    alice: Any = Caller("alice")
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place, caller=alice)
    assert "  + omega\n" in kairos(place, "show", run_id, "--principal", "alice").stdout
    kairos(place, "approve", "--principal", "alice", run_id, KEY, "--json")
    assert verdicts(place) == [("approve", "alice", "command", None)]


async def test_a_whole_id_finds_whose_run_it_is_and_a_short_name_only_the_own_ones(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place, caller=Caller("alice"))
    for words in (("approve", run_id[:10], KEY, "--digest", "0" * 64), ("show", "last"), ("cancel", run_id[:10])):
        assert kairos(place, *words).returncode == 2, words
    assert verdicts(place) == [(None, None, None, None)]
    assert run_id in kairos(place, "show", run_id[:10], "--principal", "alice").stdout
    assert kairos(place, "show", run_id, "--principal", "bob").returncode == 2
    kairos(place, "deny", run_id, KEY, "--json")
    assert verdicts(place) == [("deny", "alice", "command", None)]


async def _waits(place: Place, line: dict[str, Any], tool: str) -> str:
    async with open_asking_app(place, line, says("done")) as app:
        return await start_run(app, tools=(tool,))


def test_what_is_remembered_is_made_listed_and_removed_by_commands(place, capsys):
    """In this process: each is what the program does with the same words."""
    run_id, flags = asyncio.run(_waits(place, WRITES, "write_file")), Flags(home=str(place.home))

    def read_rules(**more: Any) -> list[dict[str, Any]]:
        assert rules.list_rules(as_json=True, flags=more.pop("flags", flags), **more) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rules"]
        return found

    for refused in ({"pattern": "touch *"}, {"pattern": "touch *", "always": "run"}):
        with pytest.raises(BadArguments, match="pattern"):
            respond.approve(run_id, KEY, flags=flags, **refused)
    assert verdicts(place) == [(None, None, None, None)]
    assert respond.approve(run_id, KEY, always="project", flags=flags) == 0
    said = capsys.readouterr().out
    assert "(rule 1): write_file: new.txt" in said
    (remove,) = [line.strip() for line in said.splitlines() if " remove " in line]
    (found,) = read_rules(flags=Flags(home=str(place.home), workspaces=(str(place.workspace),)))
    assert (found["rule"], found["path"], found["workspace"]) == (1, "new.txt", str(place.workspace))
    assert [each["rule"] for each in read_rules(everywhere=True)] == [1]
    elsewhere = Flags(home=str(place.home), workspaces=(str(place.root),))
    assert read_rules(flags=elsewhere) == []
    assert rules.list_rules(flags=elsewhere) == 0
    assert "1 rule of other workspaces" in capsys.readouterr().out
    with pytest.raises(BadArguments, match=re.escape(f"Rule 1 is for {place.workspace}: write_file: new.txt")):
        rules.remove(1, flags=elsewhere)
    assert rules.list_rules(everywhere=True, flags=flags) == 0
    assert re.match(r"rule 1 +\d+ s old  in workspace +write_file: new.txt\n", capsys.readouterr().out)
    assert read_rules(everywhere=True, principal="x") == []
    with pytest.raises(NotFound):
        rules.remove(1, principal="x", flags=flags)
    removed = ran(*remove_words(remove))  # as it is shown
    assert (removed.returncode, str(place.workspace) in removed.stdout) == (0, True)
    assert read_rules(everywhere=True) == []
    with pytest.raises(NotFound):
        rules.remove(1, flags=flags)


def remove_words(shown: str) -> list[str]:
    """The words of the command that was shown, behind those that call the program."""
    words = shlex.split(shown)
    return words[words.index("rules") :]


def test_each_group_of_commands_has_its_options_behind_both_words():
    assert set(COMMAND_GROUPS) == set(GROUPS)


@pytest.mark.sandbox
def test_the_pattern_of_a_command_is_typed_where_nobody_is_there_to_confirm_it(place, capsys):
    runs = {"tool_calls": [{"name": "run_command", "arguments": {"argv": ["true", "a b"]}}]}
    run_id, flags = asyncio.run(_waits(place, runs, "run_command")), Flags(home=str(place.home))
    with pytest.raises(BadArguments) as refused:
        respond.approve(run_id, KEY, always="project", flags=flags)
    assert verdicts(place) == [(None, None, None, None)]
    (pattern,) = re.findall(r"--pattern (.+)\.$", refused.value.hint)
    assert respond.approve(run_id, KEY, always="project", pattern=shlex.split(pattern)[0], flags=flags) == 0
    assert place.rows("select json_extract(covered, '$.argv') from rule") == [('["true","a b"]',)]
