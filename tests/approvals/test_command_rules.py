"""Rules about commands: `[[gate]] argv`, in the table and at real programs; and where an answer may be remembered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import says

from approvals.test_gate import EDIT, PLAN, READ, RUN, load_gate, tool
from approvals.test_remembered import let_through, runs_program, status_of_new_run
from kairos_mcp.core.command_patterns import ProgramNames
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.paths import Scopes
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.gate_rules import unused_rules
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.touched_paths import TouchedSet

OUTSIDE, INSIDE = ProgramNames(("git", "/usr/bin/git"), ("git", "/usr/bin/git")), ProgramNames(("./git",), ("git",))


def judge_git(rules: list[GateRule], *arguments: str, program: ProgramNames | None = OUTSIDE, **more: Any) -> str:
    call = GatedCall(RUN, {"argv": ["git", *arguments], **more}, program=program)
    return Gate(rules, Scopes().scope_of).judge(call).decision


def rule(verdict: Any, *argv: str, **more: Any) -> GateRule:
    return GateRule("run_command", verdict, argv=argv, **more)


@pytest.mark.parametrize(
    ("rules", "arguments", "decision"),
    [
        ([rule("allow", "git", "status")], ["status"], "allow"),
        ([rule("allow", "git", "status")], ["status", "-s"], "ask"),
        ([rule("allow", "git", "status", "...")], ["status", "-s"], "allow"),
        ([rule("allow", "git", "...")], [], "allow"),
        ([rule("allow", "git", "..."), rule("deny", "git", "push", "...")], ["push"], "deny"),
        ([rule("ask", "git", "push", "..."), rule("allow", "git", "...")], ["push", "-f"], "ask"),
        ([rule("deny", "git", "push")], ["push", "-f"], "ask"),
        ([rule("allow", "hg", "...")], ["status"], "ask"),
        ([GateRule("*", "allow", argv=("git", "..."))], ["status"], "allow"),
        ([rule("allow", "git", "...", risk="low")], ["status"], "ask"),
    ],
)
def test_a_rule_on_a_command_matches_its_whole_argument_list(rules, arguments, decision):
    assert judge_git(rules, *arguments) == decision


def test_a_program_is_allowed_by_a_safe_name_and_denied_by_any():
    allow, deny = rule("allow", "git", "..."), rule("deny", "git", "...")
    assert [judge_git([allow], program=each) for each in (OUTSIDE, INSIDE, None)] == ["allow", "ask", "ask"]
    assert [judge_git([deny], program=each) for each in (OUTSIDE, INSIDE, None)] == ["deny", "deny", "deny"]
    assert judge_git([rule("allow", "./git", "...")], program=INSIDE) == "allow"


def test_a_rule_on_paths_judges_a_command_by_its_folder():
    deny = [GateRule("*", "deny", paths=("secrets/**",))]
    assert [judge_git(deny, cwd=cwd) for cwd in ("secrets/keys", "./src/../secrets", "src")] == ["deny", "deny", "ask"]
    assert judge_git([rule("allow", "git", "...", paths=("src/**",))], cwd="src/a") == "allow"
    assert judge_git([rule("allow", "git", "...", paths=("src/**",))]) == "ask"


def test_a_rule_on_a_command_is_about_no_other_tool():
    every = GateRule("*", "allow", argv=("*", "..."))
    for spec in (EDIT, tool("run_command", "irreversible", "mcp:x"), tool("elsewhere", "irreversible", "mcp:x")):
        assert Gate([every], Scopes().scope_of).judge(GatedCall(spec, {"argv": ["git"]})).decision == "ask"
    notes = unused_rules([GateRule("edit_*", "deny", argv=("rm", "..."))], ["edit_file", "run_command"], ["x__"])
    assert notes == ('The rule deny "edit_*" on "rm ..." of the gate fits no tool known so far.',)
    assert unused_rules([every], ["run_command"], []) == ()


@pytest.mark.parametrize("argv", [None, [], "git", [1]])
def test_what_is_no_command_is_left_to_the_tool_to_refuse(argv):
    call = GatedCall(RUN, {} if argv is None else {"argv": argv})
    assert Gate([rule("allow", "*", "...")], Scopes().scope_of).judge(call).decision == "ask"


def test_argv_alone_is_a_rule(tmp_path):
    (found,) = load_gate(tmp_path, '[[gate]]\nargv = ["pytest*", "..."]\nverdict = "allow"')
    assert found == GateRule("run_command", "allow", argv=("pytest*", "..."))


@pytest.mark.parametrize("lines", ["", 'argv = ["..."]', "argv = []", 'argv = ["git", "...", "x"]', 'argv = "git"'])
def test_a_pattern_that_means_nothing_is_refused(tmp_path, lines):
    with pytest.raises(ConfigError, match=r"gate\.0"):
        load_gate(tmp_path, f'[[gate]]\n{lines}\nverdict = "deny"')


@pytest.mark.sandbox
async def test_a_configured_command_runs_unasked_and_one_of_the_workspace_does_not(place):
    allowed = (rule("allow", "true", "..."),)
    (place.workspace / "true").write_text("#!/bin/sh\ntouch made\n")
    (place.workspace / "true").chmod(0o755)
    assert await status_of_new_run(place.settings(runs_program("true"), says("done"), gate=allowed)) == "completed"
    assert let_through(place) == []
    theirs = place.settings(runs_program("./true"), says("done"), gate=allowed)
    assert await status_of_new_run(theirs) == "input_required"
    denied = place.settings(runs_program("./true"), says("done"), gate=(rule("deny", "true", "..."),))
    assert await status_of_new_run(denied) == "completed"
    assert not (place.workspace / "made").exists()


# -- where an answer may be remembered ------------------------------------------------------------------------------

FOREIGN = tool("x__do", "irreversible", "mcp:x")
verdicts = st.sampled_from(["allow", "ask", "deny"])
tables = st.lists(
    st.builds(
        GateRule,
        tools=st.sampled_from(["*", "edit_*", "run_command", "x__*"]),
        verdict=verdicts,
        paths=st.sampled_from([(), ("docs/**",), ("src/**", "AGENTS.md")]),
        effect=st.sampled_from([None, "checked", "irreversible", "read"]),
        argv=st.sampled_from([(), ("git", "..."), ("git", "push")]),
    ),
    max_size=5,
)
places = st.sampled_from(["docs/a.md", "src/a.py", "AGENTS.md", ".git/config", ".github/x"])
touched = st.builds(
    TouchedSet,
    inside=st.lists(places, max_size=2).map(tuple),
    outside=st.sampled_from([(), ("/etc/passwd",)]),
    unresolved=st.sampled_from([(), ("~/x",)]),
    has_own_files=st.booleans(),
    folders=st.sampled_from([(), ("docs",)]),
    has_instructions=st.booleans(),
    has_hidden_text=st.booleans(),
)
calls = st.one_of(
    st.builds(lambda path, hidden: GatedCall(EDIT, {"path": path}, brings_hidden=hidden), places, st.booleans()),
    st.builds(lambda path: GatedCall(READ, {"path": path}), places),
    st.builds(lambda paths: GatedCall(PLAN, {"edits": [{"path": path} for path in paths]}), st.lists(places)),
    st.builds(lambda words: GatedCall(RUN, {"argv": ["git", *words]}, program=OUTSIDE), st.lists(st.just("push"))),
    st.builds(lambda found: GatedCall(FOREIGN, {}, touched=found), touched),
)


@given(tables, calls)
def test_law_an_answer_is_remembered_only_where_neither_deny_nor_what_is_always_asked_applies(table, call):
    """Both are found out by other tables: of the deny rules alone, and of one that allows all that can be allowed."""
    found = Gate(table, Scopes().scope_of).judge(call)
    if not found.may_remember:
        return
    assert found.decision == "ask"
    denying = [each for each in table if each.verdict == "deny"]
    assert Gate(denying, Scopes().scope_of).judge(call).decision != "deny"
    assert call.tool is not None
    everything = GateRule(call.tool.name, "allow", effect=call.tool.effect)
    assert Gate([everything], Scopes().scope_of).judge(call).decision == "allow"
