"""The register of phases has all that is known of each by its name, and nothing else names one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import kairos_mcp
from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.flows.ooda.phase_flow import PhaseFlow
from kairos_mcp.flows.ooda.phase_kinds import PHASES, PhaseKind, phase_after, phase_before
from kairos_mcp.flows.ooda.phases import check_phase_input
from kairos_mcp.views.steps import group_of

PACKAGE = Path(kairos_mcp.__file__).parent
TOOLS = {tool["name"]: tool for tool in json.loads((PACKAGE / "server" / "listing.json").read_bytes())["tools"]}
each_phase = pytest.mark.parametrize("kind", PHASES.values(), ids=PHASES)


@each_phase
def test_a_phase_has_a_module_that_runs_it(kind: PhaseKind) -> None:
    assert isinstance(kind.flow(), PhaseFlow)


@each_phase
def test_its_tool_takes_the_output_of_the_phase_before_and_no_other(kind: PhaseKind) -> None:
    listed = TOOLS[kind.tool]["inputSchema"]
    inputs = {each.input_name for each in PHASES.values()} & listed["properties"].keys()
    assert inputs == {kind.input_name} - {None} == set(listed.get("required", ()))
    assert (kind.input_name is None) == (phase_before(kind.name) is None)


@each_phase
def test_what_is_no_output_of_the_phase_before_is_refused(kind: PhaseKind) -> None:
    for given in (None, {}, {"status": "unanswered"}, {"of": "another"}):
        if kind.input_name is None:
            check_phase_input(kind.name, given)
            continue
        with pytest.raises(BadArguments):
            check_phase_input(kind.name, given)


@each_phase
def test_what_it_calls_are_built_in_tools_that_flows_call(kind: PhaseKind) -> None:
    for name in kind.calls or ():
        assert BUILTIN[name].is_ooda_step
        assert BUILTIN[name].effect != "read"


@each_phase
def test_its_steps_are_one_group_alone_and_in_a_cycle(kind: PhaseKind) -> None:
    for step in ("", "/call-1", "/read-1/call-2", "/repair-1"):
        assert group_of(f"{kind.name}{step}") == kind.name
        assert group_of(f"cycle-3/{kind.name}{step}") == f"cycle-3/{kind.name}"


def test_steps_of_other_flows_are_grouped_by_rounds_and_tasks() -> None:
    groups = {
        "round-2/call-1": "round-2",
        "round-2/compact": "round-2",
        "task-1/try-2/round-3/call-1": "task-1/try-2/round-3",
        "task-1/try-2/closing": "task-1/try-2/closing",
        "cycle-2/goal-1": "cycle-2",
        "synthesis": "synthesis",
        "plan/repair-1": "plan",
        "call-1": "call-1",
    }
    assert {path: group_of(path) for path in groups} == groups


def test_each_phase_follows_the_one_before() -> None:
    for before, after in pairwise(PHASES.values()):
        assert (phase_before(after.name), phase_after(before.name)) == (before, after)


def test_the_register_is_read_without_the_flows() -> None:
    """A server reads it at every start."""
    loaded = "import sys, kairos_mcp.flows.ooda.phase_kinds; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in modules if name.startswith("kairos_mcp.flows.")} == {
        "kairos_mcp.flows.ooda",
        "kairos_mcp.flows.ooda.phase_flow",
        "kairos_mcp.flows.ooda.phase_kinds",
    }


def test_no_page_and_no_server_module_names_a_phase() -> None:
    named = re.compile(r"\b(?:ooda_)?(?:observe|orient|reflect)\b")
    files = [*PACKAGE.glob("page/assets/*.js"), *PACKAGE.glob("page/*.py"), *PACKAGE.glob("server/**/*.py")]
    lines = {(file.name, line.strip()) for file in files for line in file.read_text().splitlines()}
    found = {(name, line) for name, line in lines if named.search(line)}
    in_words = {'observe: ["file_tree"],', "}).observe(root);"}  # a key of a mandate; a call of the browser's
    in_words.add('(`observe` without `run`) only those that look."""')  # a scope of tokens, as other lines say
    of_scope = re.compile(r"(?i)observe\?:|scope|/observe|^`observe`,")  # and the page of those who have it
    generated = {name for name, line in found if line not in in_words and not of_scope.search(line)}
    assert generated == {"controls.js", "ooda.py"}  # ooda.py: what ooda_run does, in words
