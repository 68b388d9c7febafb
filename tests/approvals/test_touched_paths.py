"""What a call of anybody's tool touches: every form of a path is resolved, and the gate judges what it leads to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.core.effects import Effect
from kairos_mcp.core.messages import ToolResult, ToolSpec
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.table_values import GateRule, ServerSetting
from kairos_mcp.tools.tool import call_redacted, call_redacted_at_once
from kairos_mcp.tools.touched_paths import MAX_TEXTS, TouchedPaths, TouchedSet, base_folders

ALLOWED = GateRule("x__*", "allow", effect="irreversible")


def theirs(effect: Effect = "irreversible", **properties: Any) -> ToolSpec:
    return ToolSpec("x__do", "", {"type": "object", "properties": properties}, effect, source="mcp:x#pin")


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    ws = tmp_path / "ws"
    for folder in ("docs", "secrets", "src/deep", ".git"):
        (ws / folder).mkdir(parents=True)
    for file in ("AGENTS.md", "secrets/key", "docs/a.md", "two words.md", "src/deep/CLAUDE.md"):
        (ws / file).write_text("x\n")
    return ws


def find_touched_paths(ws: Path, arguments: dict[str, Any], spec: ToolSpec | None = None) -> TouchedSet:
    return TouchedPaths(ws, Scopes(), [ws.parent / "home"]).find(spec or theirs(), arguments)


def judge_call(ws: Path, arguments: dict[str, Any], *rules: GateRule, effect: Effect = "irreversible") -> str:
    gate = Gate(rules, Scopes().scope_of, paths=TouchedPaths(ws, Scopes(), [ws.parent / "home"]))
    return gate.judge(GatedCall(theirs(effect), arguments)).decision


SECRET = "secrets/key"
FORMS: list[Any] = [
    {"path": "{ws}/secrets/key"},
    {"path": "{ws}//secrets/./key/"},
    {"path": "../ws/secrets/key"},
    {"path": "../../{parent}/ws/secrets/key"},
    {"path": "docs/../secrets/key"},
    {"path": "absent/../secrets/key"},
    {"path": " secrets/key\n"},
    {"path": "secrets%2Fkey"},
    {"path": "secrets%252Fkey"},
    {"path": "%73ecrets/key"},
    {"path": "secrets\\key"},
    {"path": "SECRETS/KEY"},
    {"uri": "file://{ws}/secrets/key"},
    {"uri": "FILE:{ws}/secrets/key"},
    {"uri": "file://localhost{ws}/secrets%2fkey"},
    {"uri": "file:secrets/key"},
    {"uri": "file://secrets/key"},
    {"uri": "workspace:///secrets/key?x#y"},
    {"text": "file:///{ws}/secrets/key"},
    {"text": "secrets/key"},
    {"text": "./secrets/new"},
    {"text": "secrets/new"},
    {"text": "--file=secrets/key"},
    {"text": "secrets/key:12"},
    {"text": "@secrets/key"},
    {"paths": ["docs/a.md", "secrets/key"]},
    {"paths": "docs/a.md,secrets/key"},
    {"paths": "docs/a.md secrets/key"},
    {"argv": ["cat", "secrets/key"]},
    {"source": "docs/a.md", "destination": "secrets/new one"},
    {"sourceFile": "secrets/key"},
    {"file_path": "secrets/new"},
    {"from": "secrets/key", "to": "b"},
    {"files": {"secrets/new": "text"}},
    {"changes": {"{ws}/secrets/key": None}},
    {"edits": [{"options": {"where": {"filename": "secrets/key"}}}]},
    {"files": [{"name": "secrets/new"}]},
    {"directory": "secrets", "name": "new"},
    {"cwd": "docs", "text": "../secrets/key"},
    {"path": "link/key"},
    {"path": "link-of-link"},
    {"path": "docs/up/secrets/key"},
    {"path": "/proc/self/cwd/secrets/key"},
    {"path": "~/secrets/key"},
    {"path": "$WORKSPACE/secrets/key"},
    {"path": "sec*/key"},
    {"path": "secrets/\u200bkey"},
    {"path": "C:\\ws\\secrets\\key"},
]


def fill_in_paths(value: Any, ws: Path) -> Any:
    match value:
        case str():
            return value.replace("{ws}", str(ws)).replace("{parent}", ws.parent.name)
        case dict():
            return {fill_in_paths(name, ws): fill_in_paths(item, ws) for name, item in value.items()}
        case list():
            return [fill_in_paths(item, ws) for item in value]
        case _:
            return value


@pytest.mark.parametrize("arguments", FORMS, ids=str)
def test_a_deny_rule_on_paths_holds_for_every_form_of_a_path(ws: Path, arguments: Any) -> None:
    (ws / "link").symlink_to("secrets")
    (ws / "link-of-link").symlink_to("link/key")
    (ws / "docs" / "up").symlink_to(ws.parent / "ws")
    deny = GateRule("*", "deny", ("secrets/**",))
    for effect in ("read", "irreversible"):
        assert judge_call(ws, fill_in_paths(arguments, ws), ALLOWED, deny, effect=effect) == "deny"  # type: ignore[arg-type]  # of a table
    assert judge_call(ws, fill_in_paths(arguments, ws), GateRule("x__do", "allow", ("docs/**",))) == "ask"


def as_agents(value: Any) -> Any:
    match value:
        case str():
            text = (
                value.replace("secrets/key", "AGENTS.md")
                .replace("secrets", "skills")
                .replace("SECRETS/KEY", "agents.MD")
            )
            return text.replace("%73ecrets/key", "%41GENTS.md").replace("key", "a")
        case dict():
            return {as_agents(name): as_agents(item) for name, item in value.items()}
        case list():
            return [as_agents(item) for item in value]
        case _:
            return value


@pytest.mark.parametrize("arguments", FORMS[:39], ids=str)
def test_instructions_to_agents_are_asked_about_in_every_form_of_a_path(ws: Path, arguments: Any) -> None:
    given = as_agents(fill_in_paths(arguments, ws))
    assert judge_call(ws, given, ALLOWED) == "ask"
    assert judge_call(ws, given, GateRule("x__do", "allow", ("**",))) == "ask"


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "docs/a.md"},
        {"path": "docs/new/b.md", "content": "any / text, of ~ several words, ../ and all"},
        {"path": "docs/[slug]/a.md", "file_type": "secret", "count": 3, "force": True, "more": None},
        {"files": [{"path": "docs/b.md", "content": "x"}]},
        {"url": "https://example.com/secrets/key", "uri": "HTTP://example.com/AGENTS.md", "path": "docs/a.md"},
        {"path": "docs/a.md", "markup": "<br/>", "branch": "feature/x", "profile": "me", "email": "me@example.com"},
    ],
)
def test_a_call_that_touches_what_a_rule_allows_alone_is_allowed(ws: Path, arguments: dict[str, Any]) -> None:
    deny = GateRule("*", "deny", ("secrets/**",))
    assert judge_call(ws, arguments, deny, GateRule("x__do", "allow", ("docs/**",))) == "allow"
    assert judge_call(ws, arguments, deny, ALLOWED) == "allow"


def test_a_link_is_what_it_leads_to_and_itself(ws: Path) -> None:
    (ws / "docs" / "link").symlink_to("../secrets/key")
    assert set(find_touched_paths(ws, {"path": "docs/link"}).inside) == {"docs/link", "secrets/key"}
    (ws / "docs" / "out").symlink_to("/etc/passwd")
    assert find_touched_paths(ws, {"path": "docs/out"}).outside == (os.path.realpath("/etc/passwd"),)
    os.link(ws / "AGENTS.md", ws / "docs" / "hard")  # a second name of one file can't be told from a first
    assert find_touched_paths(ws, {"path": "docs/hard"}).inside == ("docs/hard",)


def test_a_workspace_reached_under_another_name_is_the_workspace(ws: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(ws)
    assert find_touched_paths(ws, {"path": str(tmp_path / "other" / "docs" / "new")}).inside == ("docs/new",)
    assert find_touched_paths(tmp_path / "other", {"path": str(ws / "docs" / "new")}).inside == ("docs/new",)
    assert "docs/new" in find_touched_paths(ws, {"path": f"/proc/{os.getpid()}/root{ws}/docs/new"}).inside


@pytest.mark.parametrize(
    "path", ["~/x", "~other/x", "$HOME/x", "${HOME}/x", "%APPDATA%/x", "a*", "loop", "x\0y", "\u202ex"]
)
def test_a_writing_call_with_a_path_that_nobody_can_resolve_counts_as_one_on_instructions(ws: Path, path: str) -> None:
    (ws / "loop").symlink_to("loop")
    assert find_touched_paths(ws, {"path": path}).unresolved == (path,)
    assert judge_call(ws, {"path": path}, ALLOWED) == "ask"
    assert judge_call(ws, {"path": path}, effect="read") == "ask"  # it may be a file like .env
    assert judge_call(ws, {"path": path}, GateRule("x__*", "allow"), effect="read") == "allow"
    assert judge_call(ws, {"path": path}, GateRule("*", "deny", scope="L1")) == "deny"


def test_what_can_not_be_resolved_matches_each_deny_and_ask_rule_with_paths(ws: Path) -> None:
    for verdict in ("deny", "ask"):
        rule = GateRule("x__*", verdict, ("nowhere/**",))  # type: ignore[arg-type]  # of a table
        assert judge_call(ws, {"path": "~/x"}, rule, effect="read") == verdict
        assert judge_call(ws, {"path": "docs/a.md"}, rule, effect="read") == "allow"


def test_a_writing_call_outside_the_workspace_asks_unless_a_rule_names_its_path(ws: Path) -> None:
    out = {"path": "/var/tmp/x/y"}
    assert judge_call(ws, out, ALLOWED) == "ask"
    assert judge_call(ws, out, GateRule("x__do", "allow", ("**",))) == "ask"
    assert judge_call(ws, out, GateRule("x__do", "allow", ("/var/tmp/**",))) == "allow"
    assert (
        judge_call(ws, {"paths": ["/var/tmp/x", "AGENTS.md"]}, GateRule("x__do", "allow", ("/var/tmp/**", "**")))
        == "ask"
    )
    assert judge_call(ws, out, effect="read") == "allow"
    assert judge_call(ws, {"path": "/var/tmp/.env"}, GateRule("*", "deny", (".env",)), effect="read") == "deny"


@pytest.mark.parametrize("path", ["../home/kairos.db", "{home}/new", ".git/config", "sub/.GIT", "file://{home}/x"])
def test_the_servers_own_files_are_written_by_nobodys_tool_wherever_they_lie(ws: Path, path: str) -> None:
    (ws.parent / "home").mkdir()
    given = {"path": path.replace("{home}", str(ws.parent / "home"))}
    assert judge_call(ws, given, ALLOWED, GateRule("x__do", "allow", ("**", "/**"))) == "deny"
    assert judge_call(ws, given, GateRule("x__*", "allow"), effect="read") == "allow"


def test_a_folder_that_holds_what_is_guarded_is_asked_about(ws: Path) -> None:
    deny = GateRule("*", "deny", ("src/deep/**",))
    for folder in (".", str(ws), "src", str(ws.parent)):
        assert judge_call(ws, {"path": folder}, ALLOWED) == "ask", folder
        assert judge_call(ws, {"path": folder}, deny, effect="read") == "ask", folder
    assert judge_call(ws, {"path": "docs"}, deny, ALLOWED) == "allow"
    assert judge_call(ws, {"path": "src"}, GateRule("x__do", "allow", ("src", "src/**"))) == "allow"


def test_a_tool_that_reads_at_a_path_and_is_given_none_reads_the_workspace(ws: Path) -> None:
    assert find_touched_paths(ws, {}, theirs("read", directory={"type": "string"})).inside == (".",)
    assert find_touched_paths(ws, {}, theirs("read", query={"type": "string"})).inside == ()


def test_a_server_that_stands_elsewhere_means_its_own_folder_too(ws: Path) -> None:
    server = ServerSetting("x", ("npx", "server", "${workspace}/secrets"), cwd="${workspace}/src")
    paths = TouchedPaths(ws, Scopes(), bases={"mcp:x": base_folders(server, ws)})
    assert set(paths.find(theirs(), {"path": "key"}).inside) == {"key", "src/key", "secrets/key"}
    assert "AGENTS.md" in paths.find(theirs(), {"path": "../AGENTS.md"}).inside


def test_a_call_with_more_texts_than_are_looked_at_can_not_be_resolved(ws: Path) -> None:
    many = {"paths": [f"docs/{n}" for n in range(MAX_TEXTS + 1)]}
    assert len(find_touched_paths(ws, many).unresolved) == 1
    nested: Any = "secrets/key"
    for _ in range(500):
        nested = [{"x": nested}]
    assert find_touched_paths(ws, {"x": nested}).inside == (SECRET,)


def test_a_call_whose_paths_lead_elsewhere_by_now_is_not_made(ws: Path) -> None:
    made: list[Any] = []

    def run_tool(arguments: dict[str, Any], _around: ToolContext) -> ToolResult:
        made.append(arguments)
        return ToolResult("made")

    gate = Gate([ALLOWED], Scopes().scope_of, paths=TouchedPaths(ws, Scopes()))
    wanted = GatedCall(theirs(), {"path": "notes"})

    def make_call() -> str | None:
        ctx = ToolContext("r", 1e12, lambda _: None, check_paths=lambda: gate.recheck(wanted, None))
        tool = Tool(theirs("read"), run_tool, at_once=run_tool)
        assert call_redacted_at_once(Redactor(), tool, wanted.arguments, ctx) is None  # the check reads files
        return call_redacted(Redactor(), tool, wanted.arguments, ctx).code

    (ws / "notes").symlink_to("docs/a.md")
    assert (make_call(), len(made)) == (None, 1)
    (ws / "notes").unlink()
    (ws / "notes").symlink_to("AGENTS.md")
    assert (make_call(), len(made)) == ("stale_file", 1)


def test_a_tool_of_ours_is_judged_by_its_own_words_alone(ws: Path) -> None:
    ours = ToolSpec("write_file", "", {"type": "object"}, "checked")
    assert find_touched_paths(ws, {"path": "./docs//a.md", "content": "AGENTS.md"}, ours) == TouchedSet(("docs/a.md",))
    rule = GateRule("write_file", "allow")
    gate = Gate([rule], Scopes().scope_of, paths=TouchedPaths(ws, Scopes()))
    assert not gate.reads_file_system(ours)
    assert gate.judge(GatedCall(ours, {"path": "docs/a.md", "content": "AGENTS.md"})).decision == "allow"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=20)
    | st.sampled_from(["..", "/", "~", "file:", "%00", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "x", "../a", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


@law
@given(st.dictionaries(st.sampled_from(["path", "files", "text", "to"]), json_values, max_size=3))
def test_law_any_arguments_are_looked_at_and_none_raise(arguments: dict[str, Any]) -> None:
    found = TouchedPaths(Path("/usr"), Scopes()).find(theirs(), arguments)
    assert all(path == "." or not path.startswith(("/", "../")) for path in found.inside)
    assert all(path.startswith("/") for path in found.outside)


def test_a_write_that_makes_a_repository_of_any_name_or_goes_into_one_asks_though_a_rule_allows_it(
    tmp_path: Path,
) -> None:
    gate = Gate((GateRule("write_file", "allow"),), Scopes().scope_of, paths=TouchedPaths(tmp_path, Scopes()))
    write = ToolSpec("write_file", "", {"type": "object"}, effect="checked", source="builtin")

    def judge(path: str, *more: str) -> str:
        return gate.judge(GatedCall(write, {"path": path}, preview_paths=more)).decision

    (tmp_path / "evil" / "objects").mkdir(parents=True)
    assert [judge(path) for path in ("evil/HEAD", "evil/config", "evil/refs/x")] == ["allow"] * 3
    assert judge("new/HEAD", "new/objects/x", "new/refs/x") == "ask"
    (tmp_path / "evil" / "HEAD").write_text("ref: refs/heads/main\n")
    assert judge("evil/refs/x") == "ask"
    (tmp_path / "evil" / "refs").mkdir()
    assert [judge(path) for path in ("evil/config", "evil/a/b/c")] == ["ask"] * 2
    assert judge("good/config") == "allow"
