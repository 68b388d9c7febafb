"""The gate asked by itself: what a search must not show, what holds right before a call, which rules mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import Denied, StaleFile
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.paths import Scopes
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall, risk_of
from kairos_mcp.gate_rules import unused_rules
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.touched_paths import TouchedPaths, TouchedSet

PATH = {"path": {"type": "string"}}
SECRETS = ("secrets/**",)


def ours(name: str, effect: Effect = "read", **properties: Any) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", "properties": properties}, effect)


def theirs(effect: Effect = "irreversible", source: str = "mcp:x#pin") -> ToolSpec:
    return ToolSpec("x__do", "", {"type": "object", "properties": PATH}, effect, source=source)


SEARCH, LIST, SKILL = ours("search_files", **PATH), ours("list_files", **PATH), ours("read_skill", **PATH)
READ, EDIT, SEVERAL = ours("read_file", **PATH), ours("edit_file", "checked", **PATH), ours("peek", edits={})


def gate(*rules: GateRule) -> Gate:
    return Gate(rules, Scopes().scope_of)


# -- what a call that looks around must not show ---------------------------------------------------------------


def test_where_no_rule_is_about_its_paths_a_search_keeps_files_like_env_shut_and_nothing_else() -> None:
    for rules in ((), (GateRule("search_*", "ask"),), (GateRule("edit_*", "deny", SECRETS),)):
        for tool in (SEARCH, SEVERAL):
            shut = gate(*rules).hidden_path_test(GatedCall(tool, {"path": "."}))
            assert shut is not None
            assert [shut(path) for path in (".env", "sub/.ENV.local", ".env.example", "a.txt")] == [
                *(True, True, False, False),
            ]


def test_a_rule_that_allows_the_call_opens_files_like_env_too() -> None:
    allowed = GateRule("search_files", "allow")
    assert gate(allowed).hidden_path_test(GatedCall(SEARCH, {"path": "."})) is None
    elsewhere = gate(GateRule("search_files", "allow", ("docs/**",)))
    assert elsewhere.hidden_path_test(GatedCall(SEARCH, {"path": "docs/a"})) is None
    assert elsewhere.hidden_path_test(GatedCall(SEARCH, {"path": "src"})) is not None
    assert elsewhere.allows_by_rule(GatedCall(SEARCH, {"path": "docs/a"}))
    assert not elsewhere.allows_by_rule(GatedCall(SEARCH, {"path": "src"}))
    assert not gate(GateRule("*", "ask")).allows_by_rule(GatedCall(SEARCH, {"path": "docs/a"}))


@pytest.mark.parametrize(
    "tool",
    [LIST, ours("file_tree", **PATH), SKILL, ours("clock"), EDIT, theirs("read"), theirs("read", "caller"), None],
)
def test_what_shows_no_texts_of_ours_has_nothing_to_keep_shut(tool: ToolSpec | None) -> None:
    assert gate().hidden_path_test(GatedCall(tool, {"path": "."})) is None


@pytest.mark.parametrize("tool", [EDIT, theirs("read"), theirs("read", "caller"), None])
def test_a_rule_on_paths_shuts_nothing_of_what_another_finds_or_of_what_is_changed(tool: ToolSpec | None) -> None:
    assert gate(GateRule("*", "deny", SECRETS)).hidden_path_test(GatedCall(tool, {"path": "."})) is None


@pytest.mark.parametrize("tool", [SEARCH, LIST])
def test_what_the_same_call_would_be_denied_there_is_shut(tool: ToolSpec) -> None:
    shut = gate(GateRule("*", "deny", SECRETS), GateRule("other", "deny")).hidden_path_test(
        GatedCall(tool, {"path": "."})
    )
    assert shut is not None
    assert [shut(path) for path in ("secrets/key", "secrets", "docs/a", "a/.env")] == [
        True,
        True,
        False,
        tool is SEARCH,
    ]


def test_what_a_person_would_be_asked_about_there_is_shut_unless_they_are_asked_already() -> None:
    there = GateRule("search_files", "ask", SECRETS)
    shut = gate(there).hidden_path_test(GatedCall(SEARCH, {"path": "docs"}))
    assert shut is not None
    assert (shut("secrets/key"), shut("docs/a")) == (True, False)
    asked = gate(there, GateRule("*", "deny", ("keys/**",)), GateRule("*", "ask")).hidden_path_test(
        GatedCall(SEARCH, {"path": "."})
    )
    assert asked is not None
    assert (asked("secrets/key"), asked("keys/a"), asked("docs/a")) == (False, True, False)


def test_a_rule_on_scopes_shuts_as_one_on_paths_does_and_one_that_allows_shuts_nothing() -> None:
    scoped = gate(GateRule("*", "deny", scope="L1")).hidden_path_test(GatedCall(LIST, {"path": "."}))
    assert scoped is not None
    assert (scoped("AGENTS.md"), scoped("a.txt")) == (True, False)
    assert gate(GateRule("*", "allow", SECRETS)).hidden_path_test(GatedCall(LIST, {"path": "."})) is None


# -- what may be read without a look at the arguments ----------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "free"),
    [
        (LIST, True),
        (SKILL, True),
        (ours("clock"), True),
        (theirs("read"), True),
        (READ, False),
        (SEVERAL, False),
        (ours("http_fetch"), False),
        (EDIT, False),
        (theirs("idempotent"), False),
    ],
)
def test_a_tool_that_only_reads_and_opens_no_file_of_the_workspace_is_free_for_all(tool: ToolSpec, free: bool) -> None:
    assert gate().allows_every_read(tool) == free
    assert gate(GateRule(tool.name, "allow", effect=tool.effect)).allows_every_read(tool) == free
    for verdict in ("deny", "ask"):
        assert not gate(GateRule("*", verdict)).allows_every_read(tool)  # type: ignore[arg-type]  # literals
    for rule in (
        GateRule("*", "allow", SECRETS),
        GateRule("*", "allow", scope="L2"),
        GateRule("*", "deny", risk="high"),
        GateRule("*", "deny", agent="x"),
        GateRule("*", "deny", mandate="x"),
    ):
        assert not gate(rule).allows_every_read(tool)
        assert gate(GateRule("other", rule.verdict, rule.paths)).allows_every_read(tool) == free


def test_where_paths_lead_is_looked_at_for_what_is_not_ours_and_for_the_caller_s_where_a_rule_looks_at_it() -> None:
    for tool, without, with_rule in (
        (EDIT, False, False),
        (theirs(), True, True),
        (theirs("read"), True, True),
        (theirs(source="caller"), False, True),
    ):
        assert gate().reads_file_system(tool) == without
        assert gate(GateRule("other", "deny", SECRETS), GateRule("*", "ask")).reads_file_system(tool) == without
        assert gate(GateRule("x__*", "deny", SECRETS)).reads_file_system(tool) == with_rule


# -- right before the call -------------------------------------------------------------------------------------


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    for folder in ("docs", "secrets", ".git"):
        (tmp_path / "ws" / folder).mkdir(parents=True)
    (tmp_path / "ws" / "docs" / "a.md").write_text("a\n")
    (tmp_path / "ws" / "docs" / "b.md").write_text("b\n")
    (tmp_path / "ws" / "notes").symlink_to("docs/a.md")
    return tmp_path / "ws"


def on(ws: Path, *rules: GateRule) -> Gate:
    return Gate(rules, Scopes().scope_of, paths=TouchedPaths(ws, Scopes()))


ALLOWED = GateRule("x__do", "allow")
NOTES = GatedCall(theirs(), {"path": "notes"})
SHOWN = {"notes": None, "docs/a.md": "1" * 64}


def relink_notes(ws: Path, target: str) -> None:
    (ws / "notes").unlink()
    (ws / "notes").symlink_to(target)


def test_a_call_that_was_allowed_is_made_while_what_it_touches_is_allowed(ws: Path) -> None:
    gate = on(ws, GateRule("x__do", "allow", ("notes", "docs/**")))
    gate.recheck(NOTES, None)
    relink_notes(ws, "docs/b.md")
    gate.recheck(NOTES, None)
    relink_notes(ws, "secrets/new")
    with pytest.raises(StaleFile):
        gate.recheck(NOTES, None)


def test_a_call_that_a_person_approved_is_made_while_it_touches_what_they_were_shown_and_nothing_else(ws: Path) -> None:
    for gate in (on(ws), on(ws, ALLOWED)):
        gate.recheck(NOTES, SHOWN)
        for shown in ({"notes": None}, {**SHOWN, "docs/b.md": None}, {}):
            with pytest.raises(StaleFile):
                gate.recheck(NOTES, shown)
    relink_notes(ws, "docs/b.md")
    with pytest.raises(StaleFile):
        on(ws, ALLOWED).recheck(NOTES, SHOWN)


def test_no_approval_holds_for_what_is_denied_by_now(ws: Path) -> None:
    relink_notes(ws, "secrets/new")
    for approved in (None, SHOWN, {"notes": None, "secrets/new": None}):
        with pytest.raises(Denied, match="x__do was not run"):
            on(ws, ALLOWED, GateRule("*", "deny", SECRETS)).recheck(NOTES, approved)
    relink_notes(ws, ".git/hooks")
    with pytest.raises(Denied):
        on(ws, ALLOWED).recheck(NOTES, {"notes": None, ".git/hooks": None})


def test_of_a_tool_of_ours_and_of_one_that_nobody_knows_nothing_is_looked_at_again(ws: Path) -> None:
    for tool in (EDIT, None, theirs(source="caller")):
        on(ws).recheck(GatedCall(tool, {"path": "notes"}), {})


# -- what no rule can give -------------------------------------------------------------------------------------


def because(gate: Gate, tool: ToolSpec, arguments: dict[str, Any], **more: Any) -> tuple[str, str]:
    verdict = gate.judge(GatedCall(tool, arguments, **more))
    return verdict.decision, verdict.reason


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("docs/a\u200b.md", "U+200B"),
        ("docs/a\n.md", "U+000A"),
        ("d" * 1_025, "longer than 1,024 characters"),
        (".git/config", "files of the server itself"),
        ("", "files of the server itself"),
    ],
)
def test_a_path_that_can_not_be_told_from_the_server_s_own_is_denied_with_the_reason(path: str, reason: str) -> None:
    allowing = gate(GateRule("edit_file", "allow"))
    for arguments in ({"path": path}, {"edits": [{"path": "docs/a.md"}, {"path": path}]}):
        if path or "path" in arguments:
            decision, why = because(allowing, EDIT, arguments)
            assert (decision, reason in why) == (("deny", True) if path else ("allow", False)), why
    assert because(allowing, EDIT, {"path": "d" * 1_024})[0] == "allow"


def test_a_path_of_another_s_tool_that_is_as_long_as_a_path_can_be_has_a_scope_all_the_same() -> None:
    """What lies in it, if it is a folder, would be longer than any path."""
    longest = TouchedSet(("/".join(["d" * 255] * 16),))
    decision, why = because(gate(ALLOWED), theirs(), {}, touched=longest)
    assert (decision, "longer than 1,024 characters" in why) == ("deny", True)


@pytest.mark.parametrize("effect", ["idempotent", "checked", "irreversible"])
def test_characters_that_nobody_sees_are_asked_about_whoever_found_them(effect: Effect, ws: Path) -> None:
    tool = ours("edit_file", effect, **PATH)
    allowing = gate(GateRule("edit_file", "allow"))
    assert because(allowing, tool, {"path": "a.txt"})[0] == "allow"
    decision, why = because(allowing, tool, {"path": "a.txt"}, brings_hidden=True)
    assert (decision, "invisible characters" in why) == ("ask", True)
    theirs_too = because(on(ws, ALLOWED), theirs(), {"path": "docs/a.md", "text": "a\u202eb"})
    assert (theirs_too[0], "invisible characters" in theirs_too[1]) == ("ask", True)


def test_of_what_only_reads_nothing_is_asked_for_the_characters_that_it_names() -> None:
    assert because(gate(), LIST, {"path": "a.txt"}, brings_hidden=True)[0] == "allow"


def test_a_verdict_says_by_which_rule_or_that_it_is_the_default() -> None:
    rule = GateRule("edit_*", "deny", ("docs/**", "src/**"), scope="L2", effect="checked", risk="low")
    assert because(gate(rule), EDIT, {"path": "docs/a"}) == (
        "deny",
        'the rule deny "edit_*" on "docs/**, src/**", L2, checked, low risk',
    )
    assert because(gate(GateRule("*", "ask")), LIST, {}) == ("ask", 'the rule ask "*"')
    assert because(gate(), EDIT, {"path": "docs/a"}) == ("ask", "tools that are checked ask a person")
    assert because(gate(), LIST, {}) == ("allow", "it only reads")
    assert because(gate(), theirs(source="caller"), {}) == ("allow", "the caller executes its own tools")
    assert ".env" in because(gate(), READ, {"path": ".env"})[1]


@pytest.mark.parametrize("path", [".env", "sub/.env.local"])
def test_a_file_like_env_is_read_if_a_person_or_a_rule_says_so(path: str, ws: Path) -> None:
    assert because(gate(), READ, {"path": path})[0] == "ask"
    assert because(gate(GateRule("read_file", "allow")), READ, {"path": path})[0] == "allow"
    assert because(gate(), LIST, {"path": path})[0] == "allow"  # its name alone
    assert because(gate(), READ, {"path": ".env.example"})[0] == "allow"
    assert because(on(ws), theirs("read"), {"path": path})[0] == "ask"
    assert because(on(ws), theirs("read"), {"path": f"/var/tmp/{path}"})[0] == "ask"
    assert because(on(ws), theirs("read", "caller"), {"path": path})[0] == "allow"
    listing = ToolSpec("list_files", "", {"type": "object", "properties": PATH}, "read", source="mcp:x#pin")
    assert because(on(ws), listing, {"path": path})[0] == "ask"  # another's tool of that name may show more


# -- rules by who asks, and by risk ----------------------------------------------------------------------------


def test_a_rule_by_risk_is_for_calls_of_that_risk_which_a_model_can_raise() -> None:
    table = gate(GateRule("*", "deny", risk="high"), GateRule("*", "allow", risk="low"))
    one = {"path": "docs/a.md"}
    assert because(table, EDIT, one)[0] == "allow"
    assert because(table, EDIT, one, declared_risk="medium")[0] == "ask"
    assert because(table, EDIT, one, declared_risk="high")[0] == "deny"
    assert [table.risk(GatedCall(EDIT, one, declared_risk=risk)) for risk in ("low", "medium", "high")] == [  # type: ignore[arg-type]  # literals
        *("low", "medium", "high"),
    ]
    assert table.risk(GatedCall(EDIT, {"path": "AGENTS.md"})) == "medium"
    assert table.risk(GatedCall(theirs(), {}, declared_risk="low")) == "high"


@pytest.mark.parametrize("field", ["agent", "mandate"])
def test_a_rule_for_somebody_is_not_for_a_call_of_nobody(field: str) -> None:
    for glob, who, fits in (("x*", "xa", True), ("x*", None, False), ("*", None, True), ("X*", "xa", False)):
        rule = GateRule("*", "deny", **{field: glob})
        decision = because(gate(rule), LIST, {}, **{field: who})[0]
        assert decision == ("deny" if fits else "allow"), (glob, who)


def test_several_files_are_a_medium_risk_and_so_is_a_tool_for_several() -> None:
    for name in ("plan_edits", "apply_edit_plan", "apply_edits"):
        assert risk_of(ours(name, "checked"), ["L2"]) == "medium"
    assert risk_of(EDIT, ["L2"]) == "low"
    assert risk_of(EDIT, ["L2", "L2"]) == risk_of(EDIT, ["L1"]) == "medium"


# -- rules on scopes and folders -------------------------------------------------------------------------------


def test_a_rule_on_a_scope_allows_what_lies_in_it_alone_and_denies_whatever_touches_it() -> None:
    plan = ours("plan_edits", "checked", edits={"type": "array"})
    both = {"edits": [{"path": "docs/a.md"}, {"path": "AGENTS.md"}]}
    one = {"edits": [{"path": "docs/a.md"}]}
    allow, deny = gate(GateRule("*", "allow", scope="L2")), gate(GateRule("*", "deny", scope="L1"))
    assert [because(allow, plan, arguments)[0] for arguments in (one, both, {})] == ["allow", "ask", "ask"]
    assert [because(deny, plan, arguments)[0] for arguments in (one, both, {})] == ["ask", "deny", "ask"]


def test_a_folder_is_asked_about_for_what_a_rule_says_of_its_files_and_for_no_other_rule(ws: Path) -> None:
    (ws / "docs" / "deep").mkdir()

    def judge_folder(folder: str, *rules: GateRule) -> str:
        return because(on(ws, *rules), theirs("read"), {"path": folder})[0]

    for glob, folder, held in (
        ("docs/deep/*.md", "docs", True),
        ("./docs/deep/*.md", "docs", True),
        ("DOCS/deep/*", "docs", True),
        ("docs/{deep,x}/*", "docs", True),
        ("docs/deep/*.md", ".", True),
        ("docs/deep/*.md", "secrets", False),
        ("docsy/x", "docs", False),
        ("*.md", "docs", False),
        ("/docs/deep/*", "docs", False),
        ("/docs/deep/*", ".", False),
    ):
        for verdict in ("deny", "ask"):
            assert judge_folder(folder, GateRule("*", verdict, (glob,))) == ("ask" if held else "allow"), (glob, folder)  # type: ignore[arg-type]  # literals
        assert judge_folder(folder, GateRule("*", "allow", (glob,))) == "allow"
        assert judge_folder(folder, GateRule("y__*", "deny", (glob,))) == "allow"
        assert judge_folder(folder, GateRule("*", "deny", (glob,), agent="somebody")) == "allow"
        named = GateRule("*", "allow", (folder, f"{folder}/**"))
        assert judge_folder(folder, GateRule("*", "deny", (glob,)), named) == "allow"


def test_of_a_path_outside_a_rule_is_about_all_but_its_first_slash() -> None:
    outside = TouchedSet(outside=("/?a/b",))
    for verdict, glob, decision in (
        ("deny", "a/b", "ask"),
        ("deny", "?a/b", "deny"),
        ("allow", "/a/b", "ask"),
        ("allow", "/?a/b", "allow"),
    ):
        rule = GateRule("x__do", verdict, (glob,))  # type: ignore[arg-type]  # literals
        assert because(gate(rule), theirs("checked"), {}, touched=outside)[0] == decision, glob


def test_an_allow_rule_on_paths_is_for_a_call_that_names_some() -> None:
    everything = gate(GateRule("edit_file", "allow", ("**",)))
    assert because(everything, EDIT, {"path": "docs/a"})[0] == "allow"
    assert because(everything, EDIT, {})[0] == "ask"


# -- rules that mean nothing -----------------------------------------------------------------------------------


def test_a_rule_that_fits_no_tool_is_named_with_what_may_be_meant() -> None:
    rules = [GateRule("edit_fil", "deny", SECRETS), GateRule("zzz", "ask"), GateRule("edit_file", "ask")]
    assert unused_rules(rules, ["edit_file", "read_file"], []) == (
        'The rule deny "edit_fil" on "secrets/**" of the gate fits no tool known so far; \'edit_file\' may be meant.',
        'The rule ask "zzz" of the gate fits no tool known so far.',
    )


@pytest.mark.parametrize(
    ("glob", "idle"),
    [
        *(("*", False), ("read_?ile", False), ("READ_FILE", True), ("http_fetch", False), ("plan_edits", False)),
        *(("files__*", False), ("files__read", False), ("fi*__x", False), ("[f]iles__x", False), ("files_?x", False)),
        *(
            ("files", True),
            ("files_", True),
            ("files__", False),
            ("file__read", True),
            ("x*", True),
            ("xfiles__*", True),
        ),
    ],
)
def test_a_tool_of_a_server_that_was_not_asked_yet_may_bear_any_name_that_begins_with_the_server_s(
    glob: str, idle: bool
) -> None:
    assert bool(unused_rules([GateRule(glob, "deny")], ["read_file"], ["files__"])) == idle


def test_a_rule_for_another_effect_is_not_about_the_tool() -> None:
    asked = ToolSpec("ask_person", "", {"type": "object"}, "irreversible", source="caller")
    assert gate(GateRule("*", "deny", SECRETS)).reads_file_system(asked)
    assert not gate(GateRule("*", "deny", SECRETS, effect="checked")).reads_file_system(asked)
