"""`approve`, `deny` and `show` as commands: what they print, deposit and drive."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import subprocess
import sys
from typing import Any

import pytest
from support.app import Place
from support.forked_program import run
from support.reviewers import DIFF, KEY, open_asking_app, verdicts, waiting

from kairos_mcp.core.identity import Caller

EVIL = "--- a.txt\n+++ a.txt\n+\x1b[2Jrm -rf \u202e/"


def kairos(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return ran(words[0], "--home", str(place.home), *words[1:])


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
    done = run(words, env=environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def on_a_terminal(place: Place, *words: str) -> bytes:
    """What the command writes to a terminal that knows colours."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kairos_mcp", words[0], "--home", str(place.home), *words[1:]]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("KAIROS_", "NO_COLOR"))}
    shown = subprocess.Popen(command, stdout=theirs, env=environ | {"TERM": "xterm"})
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
    for line in DIFF.splitlines():
        assert f"  {line}\n" in shown
    (approve,) = [line.strip() for line in shown.splitlines() if " approve " in line]
    (deny,) = [line.strip() for line in shown.splitlines() if " deny --home" in line]
    assert shlex.split(approve)[-2:] == [run_id, KEY]
    assert await (await asyncio.create_subprocess_exec(*shlex.split(deny))).wait() == 0
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
    assert f"  {DIFF.splitlines()[-1]}\n" in done.stdout
    assert verdicts(place) == [("approve", "local", "command", None)]
    assert place.rows("select kind, taken is not null from deposit") == [("verdict", 1)]


async def test_without_driving_the_word_is_left_to_whoever_comes(place, run_id):
    done = kairos(place, "deny", run_id, KEY, "--feedback", "not that file", "--no-drive")
    assert (done.returncode, verdicts(place)) == (0, [("deny", "local", "command", "not that file")])
    assert place.rows("select taken from deposit") == [(None,)]
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
    assert DIFF.splitlines()[-1] in kairos(place, "show", run_id, "--principal", "alice").stdout
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
