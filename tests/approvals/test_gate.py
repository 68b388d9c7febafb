"""The table: deny first, then the first match, then the default; what no rule can give; the risk of a call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_mcp.core.effects import EFFECTS, Effect
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.paths import Scopes
from kairos_mcp.execution.authorization import approval_digest, tool_pin
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall, risk_of
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.selection import MORE_ROUNDS_SPEC
from kairos_mcp.tools.touched_paths import TouchedPaths, TouchedSet, read_named_paths

ONE = {"path": "docs/a.md", "old_string": "a", "new_string": "b"}
SEVERAL = {"edits": [{"path": "docs/a.md"}, {"path": "src/b.py"}]}


def tool(name: str, effect: Effect = "checked", source: str = "builtin", **properties: Any) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", "properties": properties}, effect, source=source)


EDIT, PLAN = tool("edit_file", path={"type": "string"}), tool("plan_edits", edits={"type": "array"})
READ, LIST = tool("read_file", "read"), tool("list_files", "read", path={"type": "string"})
RUN, FETCH = tool("run_command", "irreversible"), tool("http_fetch", "irreversible")
OFTEN, THEIRS = tool("touch", "idempotent"), tool("theirs", "irreversible", "caller")


def judge_call(
    rules: list[GateRule], spec: ToolSpec | None, arguments: dict[str, Any] | None = None, **more: Any
) -> str:
    return Gate(rules, Scopes().scope_of).judge(GatedCall(spec, arguments or {}, **more)).decision


@pytest.mark.parametrize(
    ("category", "verdict", "decisions"),
    [
        ("files", "deny", ("deny", "allow")),
        ("mcp:*", "deny", ("allow", "deny")),
        ("mcp:x", "ask", ("allow", "ask")),
        ("mcp:y", "deny", ("allow", "allow")),
    ],
)
def test_a_rule_may_be_for_a_category(category: str, verdict: Any, decisions: tuple[str, str]) -> None:
    ours, theirs = (replace(READ, category=name) for name in ("files", "mcp:x"))
    rule = GateRule("*", verdict, category=category)
    assert tuple(judge_call([rule], spec, {"path": "docs/a.md"}) for spec in (ours, theirs)) == decisions
    assert judge_call([replace(rule, paths=("docs/**",))], theirs, {"path": "src/a.md"}) == "allow"


@pytest.mark.parametrize(
    ("spec", "decision"),
    [
        *(
            (READ, "allow"),
            (OFTEN, "ask"),
            (EDIT, "ask"),
            (RUN, "ask"),
            (FETCH, "deny"),
            (None, "deny"),
            (THEIRS, "allow"),
        ),
        (tool("http_fetch", "read"), "deny"),
        (tool("elsewhere", "irreversible", "mcp:x"), "ask"),
    ],
)
def test_without_a_rule_the_default_of_the_effect_class_holds(spec: ToolSpec | None, decision: str) -> None:
    assert judge_call([], spec) == decision


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        ([GateRule("*", "allow"), GateRule("edit_*", "deny")], "deny"),
        ([GateRule("edit_*", "ask"), GateRule("*", "deny")], "deny"),
        ([GateRule("edit_*", "allow"), GateRule("*", "ask")], "allow"),
        ([GateRule("*", "ask"), GateRule("edit_*", "allow")], "ask"),
        ([GateRule("EDIT_*", "allow")], "ask"),
        ([GateRule("edit_file", "allow", effect="read")], "ask"),
        ([GateRule("edit_file", "allow", effect="checked", risk="low", scope="L2")], "allow"),
        ([GateRule("edit_file", "allow", risk="high")], "ask"),
        ([GateRule("*", "deny", risk="low")], "deny"),
        ([GateRule("*", "allow", agent="file_*")], "ask"),
        ([GateRule("*", "allow", mandate="docs-*")], "ask"),
    ],
)
def test_deny_wins_then_the_first_that_matches(rules: list[GateRule], decision: str) -> None:
    assert judge_call(rules, EDIT, ONE) == decision


def test_a_rule_for_an_agent_or_a_mandate_is_for_it_alone() -> None:
    rules = [GateRule("*", "allow", agent="file_*"), GateRule("*", "deny", mandate="docs-*")]
    assert judge_call(rules, EDIT, ONE, agent="file_manager") == "allow"
    assert judge_call(rules, EDIT, ONE, agent="planner") == "ask"
    assert judge_call(rules, EDIT, ONE, agent="file_manager", mandate="docs-links") == "deny"


@pytest.mark.parametrize(
    ("paths", "arguments", "allow", "deny"),
    [
        (("docs/**",), ONE, "allow", "deny"),
        (("docs/**",), {"path": "./docs//x/../a.md"}, "allow", "deny"),
        (("docs/**",), SEVERAL, "ask", "deny"),
        (("docs/**", "src/*.py"), SEVERAL, "allow", "deny"),
        (("docs/*.md",), {"path": "docs/sub/a.md"}, "ask", "ask"),
        (("DOCS/**",), ONE, "ask", "deny"),
        (("docs/**",), {"path": "docs"}, "ask", "deny"),
        (("docs/**",), {"path": "docs/../src/a.md"}, "ask", "ask"),
        (("docs/**",), {}, "ask", "ask"),
        (("**",), {"path": "/etc/passwd"}, "allow", "deny"),
        (("docs/**",), {"path": 3, "edits": "x"}, "ask", "ask"),
    ],
)
def test_a_rule_on_paths_allows_all_of_a_call_and_denies_any_of_it(
    paths: tuple[str, ...], arguments: dict[str, Any], allow: str, deny: str
) -> None:
    for spec in (EDIT, PLAN) if arguments != {} else (PLAN,):
        assert judge_call([GateRule("*", "allow", paths)], spec, arguments) == allow
        assert judge_call([GateRule("*", "deny", paths)], spec, arguments) == deny


def test_a_tool_that_is_given_no_path_is_about_the_workspace_itself() -> None:
    assert read_named_paths(LIST, {}) == (".",)
    assert read_named_paths(RUN, {}) == ()
    assert read_named_paths(PLAN, SEVERAL) == ("docs/a.md", "src/b.py")


def test_paths_that_a_preview_found_count_as_those_that_are_named() -> None:
    apply = tool("apply_edit_plan")
    rules = [GateRule("apply_edit_plan", "allow", ("docs/**",)), GateRule("*", "deny", ("secrets/**",))]
    assert judge_call(rules, apply, {"plan_id": "1"}) == "ask"
    assert judge_call(rules, apply, {"plan_id": "1"}, preview_paths=("docs/a.md",)) == "allow"
    assert judge_call(rules, apply, {"plan_id": "1"}, preview_paths=("docs/a.md", "secrets/key")) == "deny"
    assert judge_call([], apply, {"plan_id": "1"}, preview_paths=(".git/hooks/pre-commit",)) == "deny"


@pytest.mark.parametrize("path", [".git/config", "./.GIT/config", "a/../.git/hooks/x"])
def test_no_rule_lets_a_run_write_what_is_the_servers_own(path: str) -> None:
    allowed = [GateRule("*", "allow"), GateRule("edit_file", "allow", (path,))]
    assert judge_call(allowed, EDIT, {"path": path}) == "deny"
    assert judge_call(allowed, PLAN, {"edits": [{"path": "a.txt"}, {"path": path}]}) == "deny"
    assert judge_call(allowed, READ, {"path": path}) == "allow"


@pytest.mark.parametrize("path", ["AGENTS.md", "sub/CLAUDE.md", ".github/workflows/x.yml", "skills/x/SKILL.md"])
def test_instructions_to_agents_are_always_asked_about(path: str) -> None:
    assert judge_call([GateRule("edit_file", "allow")], EDIT, {"path": path}) == "ask"
    assert judge_call([GateRule("edit_file", "deny")], EDIT, {"path": path}) == "deny"
    assert judge_call([GateRule("*", "allow")], READ, {"path": path}) == "allow"


@pytest.mark.parametrize(
    ("rule", "decision"),
    [
        (GateRule("*", "allow"), "ask"),
        (GateRule("run_*", "allow"), "ask"),
        (GateRule("run_command", "allow"), "allow"),
        (GateRule("*", "allow", effect="irreversible"), "allow"),
        (GateRule("*", "allow", risk="high"), "ask"),
    ],
)
def test_TENANCY_010_a_broad_allowance_does_not_cover_what_can_not_be_undone(rule: GateRule, decision: str) -> None:
    assert judge_call([rule], RUN, {"argv": ["rm", "-rf", "."]}) == decision
    assert judge_call([rule, GateRule("run_command", "deny")], RUN) == "deny"


def test_no_rule_however_broad_lets_a_tool_through_that_nobody_knows() -> None:
    broad = [GateRule("*", "allow"), GateRule("", "allow"), *(GateRule("*", "allow", effect=each) for each in EFFECTS)]
    for rule in broad:
        assert judge_call([rule], None, {"path": "docs/a.md"}) == "deny", rule
    assert Gate([], Scopes().scope_of).risk(GatedCall(None, {"path": "docs/a.md"})) == "high"


def test_TENANCY_010_a_deny_rule_holds_beyond_any_number_of_paths() -> None:
    many = {"edits": [{"path": f"docs/{n}.md"} for n in range(2_000)] + [{"path": "secrets/key"}]}
    rules = [GateRule("*", "allow"), GateRule("*", "deny", ("secrets/**",))]
    assert judge_call(rules, PLAN, many) == "deny"


def test_tools_whose_calls_differ_say_so_where_no_rule_does() -> None:
    def by_method(arguments: dict[str, Any]) -> Any:
        return "allow" if arguments.get("method") == "GET" else "ask"

    gate = Gate([GateRule("*", "deny", agent="x")], Scopes().scope_of, {"http_fetch": by_method})
    assert gate.judge(GatedCall(FETCH, {"method": "GET"})).decision == "allow"
    assert gate.judge(GatedCall(FETCH, {"method": "PUT"})).decision == "ask"
    assert gate.judge(GatedCall(FETCH, {"method": "GET"}, agent="x")).decision == "deny"


@pytest.mark.parametrize(
    ("spec", "scopes", "declared", "risk"),
    [
        (READ, ("L0",), "low", "low"),
        (EDIT, ("L2",), "low", "low"),
        (EDIT, ("L2",), "high", "high"),
        (EDIT, ("L1",), "low", "medium"),
        (EDIT, ("L0",), "low", "high"),
        (EDIT, ("L2", "L2"), "low", "medium"),
        (EDIT, (), "low", "high"),
        (PLAN, ("L2",), "low", "medium"),
        (OFTEN, (), "low", "medium"),
        (OFTEN, (), "medium", "medium"),
        (RUN, (), "low", "high"),
        (None, (), "low", "high"),
    ],
)
def test_the_risk_is_a_fixed_table_that_a_model_can_only_raise(
    spec: Any, scopes: Any, declared: Any, risk: str
) -> None:
    assert risk_of(spec, scopes, declared) == risk


def test_what_may_be_read_freely_is_what_no_rule_looks_further_into() -> None:
    def freely(*rules: GateRule) -> bool:
        return Gate(rules, Scopes().scope_of).allows_every_read(READ)

    assert freely()
    assert freely(
        GateRule("edit_*", "deny", ("x",)), GateRule("read_*", "allow"), GateRule("*", "deny", effect="checked")
    )
    assert not freely(GateRule("read_*", "deny"))
    assert not freely(GateRule("*", "deny", ("secrets/**",)))
    assert not freely(GateRule("*", "ask", agent="x"))
    assert not Gate([], Scopes().scope_of).allows_every_read(EDIT)


# -- what an approval is bound to ------------------------------------------------------------------------------


def test_whatever_differs_in_what_was_shown_is_another_ask() -> None:
    base = {"a.txt": "1" * 64}
    first = approval_digest(EDIT, ONE, "/w", "diff", base)
    assert first == approval_digest(EDIT, dict(reversed(ONE.items())), "/w", "diff", dict(base))
    others = [
        approval_digest(tool("edit_fil"), ONE, "/w", "diff", base),
        approval_digest(tool("edit_file", "irreversible", path={"type": "string"}), ONE, "/w", "diff", base),
        approval_digest(EDIT, ONE | {"new_string": "c"}, "/w", "diff", base),
        approval_digest(EDIT, ONE, "/v", "diff", base),
        approval_digest(EDIT, ONE, None, "diff", base),
        approval_digest(EDIT, ONE, "/w", "diff ", base),
        approval_digest(EDIT, ONE, "/w", "diff", {"a.txt": None}),
        approval_digest(EDIT, ONE, "/w", "diff", {}),
    ]
    assert len({first, *others}) == len(others) + 1


def test_DOWNSTREAM_023_a_tool_from_another_place_is_another_tool() -> None:
    assert tool_pin(tool("x", source="mcp:a")) != tool_pin(tool("x", source="mcp:b"))


names = st.sampled_from(["edit_file", "read_file", "run_command"])
rules = st.builds(
    GateRule,
    tools=st.sampled_from(["*", "edit_*", "read_file", "run_command"]),
    verdict=st.sampled_from(["allow", "ask", "deny"]),
    paths=st.sampled_from([(), ("docs/**",), ("**",)]),
    effect=st.sampled_from([None, "read", "checked", "irreversible"]),
)


@given(st.lists(rules, max_size=6), st.sampled_from([EDIT, READ, RUN]), st.sampled_from(["docs/a", "src/a", ".git/a"]))
def test_law_a_deny_that_matches_wins_wherever_it_stands(table: list[GateRule], spec: ToolSpec, path: str) -> None:
    wanted = GatedCall(spec, {"path": path})
    denied = any(
        Gate(alone, Scopes().scope_of).judge(wanted).decision == "deny" for alone in ([], *([r] for r in table))
    )
    assert (Gate(table, Scopes().scope_of).judge(wanted).decision == "deny") == denied


SEARCH = tool("search_files", "read", path={"type": "string"})
READ_AT = tool("read_file", "read", path={"type": "string"})
PATHS = ["docs/a", "src/a", ".git/a", ".env", "src/.env.local", ".env.example", "..", "", 3, None]


@given(st.lists(rules, max_size=3), st.sampled_from([READ_AT, SEARCH, LIST, EDIT, RUN, FETCH]), st.sampled_from(PATHS))
def test_law_a_call_that_is_let_through_by_its_paths_alone_is_one_that_the_table_allows(
    table: list[GateRule], spec: ToolSpec, path: Any
) -> None:
    gate, arguments = Gate(table, Scopes().scope_of), {"path": path}
    is_secret = gate.secret_file_test(spec)
    if is_secret is not None:
        assert gate.hidden_path_test(GatedCall(spec, arguments)) is is_secret
        if not any(map(is_secret, read_named_paths(spec, arguments))):
            assert gate.judge(GatedCall(spec, arguments)).decision == "allow"


def test_only_where_a_person_is_asked_may_they_answer_for_further_calls() -> None:
    gate = Gate([], Scopes().scope_of)
    assert gate.judge(GatedCall(EDIT, {"path": "src/a.py"})).may_remember
    assert not gate.judge(GatedCall(READ, {})).may_remember


@pytest.mark.parametrize(
    ("touched", "brings_hidden", "may_remember"),
    [
        (TouchedSet(("docs/a.md",)), False, True),
        (TouchedSet(("docs/a.md",)), True, False),
        (TouchedSet(("docs/a.md",), has_hidden_text=True), False, False),
        (TouchedSet(("docs",), folders=("docs",), has_instructions=True), False, False),
        (TouchedSet(("AGENTS.md",)), False, False),
        (TouchedSet(unresolved=("~/x",)), False, False),
        (TouchedSet(outside=("/var/tmp/x",)), False, False),
    ],
)
def test_what_is_always_asked_about_is_answered_for_this_call_alone(
    touched: TouchedSet, brings_hidden: bool, may_remember: bool
) -> None:
    call = GatedCall(tool("x__do", source="mcp:x"), {}, touched=touched, brings_hidden=brings_hidden)
    ruling = Gate([], Scopes().scope_of).judge(call)
    assert (ruling.decision, ruling.may_remember) == ("ask", may_remember)


def test_a_caller_s_own_tool_is_judged_by_no_path_outside_the_workspace(tmp_path: Path) -> None:
    rules = [GateRule("*", "deny", scope="L1")]
    gate = Gate(rules, Scopes().scope_of, paths=TouchedPaths(tmp_path, Scopes()))
    for source, decision in (("caller", "allow"), ("mcp:x", "deny")):
        spec = tool("theirs", "read", source, path={"type": "string"})
        assert gate.judge(GatedCall(spec, {"path": "/etc/hosts"})).decision == decision


def test_a_loop_may_always_ask_its_limits_for_more_rounds() -> None:
    assert judge_call([], MORE_ROUNDS_SPEC, {"additional": 1}) == "allow"


def test_files_of_secrets_are_hidden_where_the_rules_for_a_tool_are_for_others() -> None:
    gate = Gate([GateRule("search_files", "allow", agent="somebody")], Scopes().scope_of)
    is_hidden = gate.hidden_path_test(GatedCall(SEARCH, {"path": "."}, "somebody else"))
    assert is_hidden is not None
    assert is_hidden("src/.env")


# -- how it is configured --------------------------------------------------------------------------------------


def load_gate(home: Path, text: str) -> tuple[GateRule, ...]:
    home.mkdir(exist_ok=True)
    (home / "kairos.toml").write_text(text, encoding="utf-8")
    return load_settings(Flags(home=str(home)), {}).gate


@pytest.mark.parametrize(("word", "verdict"), [("auto", "allow"), ("propose", "ask"), ("deny", "deny"), ("ask", "ask")])
def test_other_words_mean_the_same_verdicts(tmp_path: Path, word: str, verdict: str) -> None:
    text = f'[[gate]]\ntools = "*"\nverdict = "{word}"\npaths = ["docs/**"]\nscope = "L2"\n'
    (rule,) = load_gate(tmp_path, text)
    assert rule == GateRule("*", verdict, ("docs/**",), "L2")  # type: ignore[arg-type]  # literals of a table


@pytest.mark.parametrize(
    "line",
    [
        *('scope = "L0"', 'scope = "L1"', 'scope = "L3"', 'risk = "none"', 'effect = "write"', 'paths = "docs/**"'),
        *('path = ["docs/**"]', 'paths = [""]', 'agent = ""', "mandate = 1"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError):
        load_gate(tmp_path, f'[[gate]]\ntools = "*"\nverdict = "allow"\n{line}\n')


def test_a_glob_that_can_not_be_read_is_refused() -> None:
    with pytest.raises(ConfigError):
        Gate([GateRule("*", "deny", ("{a",))], Scopes().scope_of)
