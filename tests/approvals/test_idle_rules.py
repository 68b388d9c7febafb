"""A rule of the gate that fits no tool protects nothing: doctor, the list of tools and the server's start name it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.app import place_in
from support.forked_program import run_program
from support.waiting import wait_until

from kairos_mcp.gate import WORKSPACE_TOOLS, unused_rules
from kairos_mcp.settings.settings import GateRule
from kairos_mcp.tools import builtin_tools

RULES = """
[[gate]]
tools = "edit_fiel"
verdict = "deny"

[[gate]]
tools = "read_*"
verdict = "deny"
paths = ["secrets/**"]

[[gate]]
tools = "http_fetch"
verdict = "deny"

[[gate]]
tools = "files__write*"
verdict = "deny"

[servers.files]
command = "true"
sandbox = false
"""
NAMED = 'The rule deny "edit_fiel" of the gate fits no tool known so far'


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    place = place_in(tmp_path / "place")
    place.home.mkdir()
    (place.home / "kairos.toml").write_text(RULES)
    return ["--home", str(place.home), "--workspace", str(place.workspace)]


def kairos(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_program(words, env={**os.environ, **environ})


def test_doctor_and_the_list_of_tools_name_a_rule_that_fits_no_tool_and_only_that(words: list[str]) -> None:
    found = json.loads(kairos("doctor", "--json", *words).stdout)["findings"]
    rules = [each["text"] for each in found if "of the gate" in each["text"]]
    assert rules == [f"{NAMED}; 'edit_file' may be meant."]
    listed = kairos("tools", "list", *words)
    assert [line for line in listed.stderr.splitlines() if "of the gate" in line] == [f"note: {rules[0]}"]


def test_the_start_of_a_server_names_it_on_stderr(words: list[str], tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as heard:
        served = subprocess.Popen(
            [sys.executable, "-m", "kairos_mcp", "serve", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=heard,
        )
        try:
            assert wait_until(lambda: NAMED in (tmp_path / "stderr").read_text(), 30)
        finally:
            assert served.stdin is not None
            served.stdin.close()
            served.wait(20)


@pytest.mark.parametrize(
    ("glob", "idle"),
    [
        *(("*", False), ("edit_file", False), ("edit_*", False), ("http_fetch", False), ("apply_edits", False)),
        *(("files__*", False), ("files__write", False), ("f*", False), ("*__write", False)),
        *(("edit_fil", True), ("Edit_file", True), ("file__write", True), ("files_write", True), ("files", True)),
    ],
)
def test_a_tool_that_was_not_met_yet_gives_no_false_alarm(glob: str, idle: bool) -> None:
    assert bool(unused_rules([GateRule(glob, "deny")], ["edit_file", "read_file"], ["files__"])) == idle


@pytest.mark.parametrize(
    ("glob", "idle"),
    [("edit_*", False), ("read_file", False), ("run_command", False), ("file_tree", False), ("edits_*", True)],
)
def test_the_tools_of_a_workspace_are_known_where_there_is_none(glob: str, idle: bool) -> None:
    assert bool(unused_rules([GateRule(glob, "allow", paths=("docs/**",))], [], [])) == idle


def test_the_tools_that_need_a_workspace_are_these(tmp_path: Path) -> None:
    without, within = ({tool.spec.name for tool in builtin_tools(folder, read_bytes=9)} for folder in (None, tmp_path))
    assert within - without == WORKSPACE_TOOLS
