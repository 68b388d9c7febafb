"""The register of flows knows each of them, and nothing else does: a flow that is added has what every flow has."""

from __future__ import annotations

import ast
import gc
import json
import re

import pytest
from support.sources import PACKAGE, nodes_with

from benchmarks.house import compares_flow
from kairos_mcp.app import plan_starts
from kairos_mcp.core.run_spec import RunRequest, Spec
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.flows.prompt_texts import PromptTexts
from kairos_mcp.specs.kinds import KINDS, PHASE_KINDS, kind_of

REGISTER = "specs/kinds.py"
IN_STATEMENTS = {  # statements of SQL, which are constants
    "store/agent_records.py": 1,  # what agents did in teams
    "store/find_runs.py": 1,  # the newest run of a person's own commands
    "store/tool_intents.py": 1,  # an edit plan that one call made and another applies
}
TOOLS = {tool["name"] for tool in json.loads((PACKAGE / "server" / "listing.json").read_bytes())["tools"]}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_flow_has_a_version_and_a_tool_of_its_own(kind):
    assert kind.specs.version > 0
    assert kind.tool in TOOLS
    assert [each.name for each in KINDS.values() if each.tool == kind.tool] == [kind.name]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_run_is_a_call_or_a_phase_or_a_loop(kind):
    assert (kind.is_call, kind.phase is not None, kind.has_loop).count(True) == 1
    assert not (kind.has_plan and kind.has_mandate)
    assert kind.has_mandate or kind.phase is None


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_flow_is_started_by_a_request_through_the_one_door(kind):
    specs = kind.specs
    assert specs.request is not None
    assert issubclass(specs.request, RunRequest)
    assert (specs.build is not None) != (specs.request in plan_starts._PLANNED_BY)


def test_every_request_starts_a_flow_and_every_kind_of_spec_and_prompts_is_of_one():
    specs = [kind.specs for kind in KINDS.values()]
    gc.collect()  # a class with slots is made of one without, which may still be there
    assert {each.request for each in specs} == set(RunRequest.__subclasses__())
    assert {each.spec for each in specs} == {Spec, *Spec.__subclasses__()}
    assert {prompts for each in specs for prompts in each.prompts} == set(PromptTexts.__subclasses__())


def test_no_other_code_starts_runs():
    calls = {
        file
        for file, node in nodes_with(["start_run"])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "start_run"
    }
    assert calls == {"app/runs.py"}


def test_every_phase_is_a_flow_alone():
    assert tuple(PHASE_KINDS) == tuple(PHASES)
    assert {kind.phase for kind in KINDS.values() if kind.phase is not None} == set(PHASES)


def test_nothing_is_known_of_a_flow_of_a_later_version():
    unknown = kind_of("of-later")
    assert not any(
        (unknown.specs.version, unknown.has_conversation, unknown.has_plan, unknown.has_mandate, unknown.is_call)
    )


def test_no_flow_is_compared_by_its_name_outside_the_register():
    modules = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / REGISTER]
    compared = [
        (file, line)
        for file, node in nodes_with(KINDS)
        for line in compares_flow(node, tuple(KINDS))
        if file != REGISTER
    ]
    assert compared == []
    found = {path.relative_to(PACKAGE).as_posix(): len(re.findall(r"\bflow = '", path.read_text())) for path in modules}
    assert {name: lines for name, lines in found.items() if lines} == IN_STATEMENTS
