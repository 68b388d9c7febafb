"""A rule of the gate that fits no tool protects nothing: doctor, the list of tools and the server's start name it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.app import ME, open_checked_app, place_in, rests, says
from support.forked_program import run_program, start
from support.waiting import wait_until

from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.gate_rules import unused_rules
from kairos_mcp.settings.table_values import GateRule

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
        served = start(["serve", *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=heard)
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


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (GateRule("*", "deny", category="fiels"), "category known so far; 'files' may be meant"),
        (GateRule("*", "deny", category="files"), None),
        (GateRule("*", "deny", category="mcp:later"), None),
        (GateRule("*", "deny", category="mcp:never"), "category"),
        (GateRule("*", "deny", agent="reviewr"), "agent known so far; 'reviewer' may be meant"),
        (GateRule("*", "deny", agent="review*"), None),
        (GateRule("*", "deny", mandate="nightly"), "mandate"),
        (GateRule("*", "deny", mandate="daily"), None),
        (GateRule("reed_file", "deny", category="fiels"), "tool"),
    ],
)
def test_a_rule_for_a_category_an_agent_or_a_mandate_that_is_not_there_is_named(
    rule: GateRule, named: str | None
) -> None:
    there = {"categories": ("files", "http"), "agents": ("reviewer",), "mandates": ("daily",)}
    notes = unused_rules([rule], ("read_file",), ("later__",), **there)
    assert (notes == ()) if named is None else (named in notes[0])
    assert unused_rules([replace(rule, tools="*")], ("read_file",), ()) == ()


async def test_a_run_names_the_rules_that_fit_nothing_that_it_could_call(tmp_path: Path) -> None:
    place = place_in(tmp_path / "place")
    rules = (
        GateRule("raed_file", "deny"),
        GateRule("mine_*", "deny"),
        GateRule("*", "deny", category="fiels"),
        GateRule("*", "deny", agent="nobody"),
        GateRule("*", "deny", mandate="never"),
        GateRule("read_*", "ask"),
    )
    mine = ToolSpec("mine_one", "Mine.", {"type": "object"}, source="caller")
    async with open_checked_app(place.settings(says("done"), gate=rules)) as app:
        request = PlannerRequest("go", tools=("read_file",), caller_tools=(mine,))
        started = await app.runs.start(request, ME)
        report = await rests(app, started.run_id)
    named = [note for note in report.degraded if "of the gate" in note]
    assert len(named) == 4
    assert all(word in " ".join(named) for word in ("'read_file' may be meant", "fiels", "nobody", "never"))
