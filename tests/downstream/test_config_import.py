"""The server lists of other programs, taken over: no text of theirs refers to a secret here, and the result loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.settings.schema import read_settings_file
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.tools.config_import import ImportedServers, read_claude_desktop, read_mcp_json, read_vscode
from kairos_mcp.tools.mcp_servers.launch import resolve_references

CLAUDE_CODE = {
    "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "server-filesystem", "${PWD}"]},
        "git hub!": {
            "type": "stdio",
            "command": "docker",
            "args": ["run", "-e", "TOKEN=${GITHUB_TOKEN}"],
            "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}", "LEVEL": "${LEVEL:-warn}", "N": 3},
            "timeout": 60,
            "disabled": True,
        },
        "web": {
            "type": "http",
            "url": "https://mcp.example.com/mcp",
            "headers": {"Authorization": "Bearer ${API_KEY}"},
        },
        "old": {"type": "sse", "url": "https://old.example.com/sse"},
        "odd": {"args": ["x"]},
    }
}

VSCODE = """{
  // what VS Code asks its user for
  "inputs": [{"type": "promptString", "id": "gh-token", "password": true}],
  "servers": {
    "issues": {
      "type": "http",
      "url": "https://api.example.com/mcp", /* as "documented" */
      "headers": {"Authorization": "Bearer ${input:gh-token}"},
    },
    "local": {
      "command": "${workspaceFolder}/bin/server",
      "args": ["--url", "http://x/a//b", "${userHome}"],
      "env": {"KEY": "${env:MY_KEY}", "OTHER": "${input:other}"},
      "envFile": "${workspaceFolder}/.env",
      "cwd": "${workspaceFolder}",
    },
  },
}"""


def server(imported: ImportedServers, name: str) -> ServerSetting:
    (found,) = [each for each in imported.servers if each.name == name]
    return found


def wanted(imported: ImportedServers) -> list[tuple[str, str, str, bool]]:
    return [(each.server, each.name, each.value, each.is_asked_for) for each in imported.wanted]


def refuse_secret(reference: str) -> str:
    raise AssertionError(f"{reference} was read")


REFERENCES = ("env:OPENAI_API_KEY", "file:~/.ssh/id_ed25519", "keyring:github/token")
INSIDE = tuple(f"Bearer ${{{reference}}}" for reference in REFERENCES)


@pytest.mark.parametrize("read", [read_mcp_json, read_claude_desktop, read_vscode])
@pytest.mark.parametrize("text", [*REFERENCES, *INSIDE, "${OPENAI_API_KEY}", "${env:OPENAI_API_KEY}", "${input:key}"])
def test_no_text_of_another_program_s_file_becomes_a_reference_to_a_secret(
    tmp_path: Path, read: Callable[[str], ImportedServers], text: str
) -> None:
    local = {"command": "x", "args": [text], "env": {"PLAIN": "a", "K": text}, "cwd": text}
    entries = {"local": local, "web": {"url": "https://a.test/", "headers": {"X-Plain": "a", "X-K": text}}}
    imported = read(json.dumps({"mcpServers": entries, "servers": entries}))
    file = tmp_path / "k.toml"
    file.write_text(imported.format_toml(), encoding="utf-8")
    for setting in read_settings_file(file)["servers"]:
        values = [value for _, value in (*setting.env, *setting.headers)]
        assert [resolve_references(value, refuse_secret) for value in values] == values
        assert values[0] == "a"
        assert setting.command in ((), ("x", text))
    assert all(each.name in file.read_text() for each in imported.wanted)


def test_what_a_person_confirms_is_a_reference(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    text = read_mcp_json(json.dumps(CLAUDE_CODE)).format_toml()
    file.write_text(text.replace('# "', '"'), encoding="utf-8")
    (hub,) = (each for each in read_settings_file(file)["servers"] if each.name == "git-hub")
    assert hub.env == (("N", "3"), ("GITHUB_TOKEN", "env:GITHUB_TOKEN"), ("LEVEL", "env:LEVEL"))


def test_what_would_be_started_is_said_on_lines_of_its_own() -> None:
    odd = {"command": "sh", "args": ["-c", "a\nweb connects to https://b.test"], "env": {"A": "1", "A_TOKEN": "t0p"}}
    said = read_mcp_json(json.dumps({"mcpServers": {"x": odd, **CLAUDE_CODE["mcpServers"]}})).describe_starts()
    assert "web connects to https://mcp.example.com/mcp" in said
    assert "  Authorization asks for your Bearer ${env:API_KEY}: not given" in said
    assert "files starts npx -y server-filesystem '${workspace}'" in said
    assert not [line for line in said if "\n" in line or line.startswith("web connects to https://b.test")]
    assert ("t0p" in " ".join(said), "  with A=1, A_TOKEN" in said) == (False, True)


def test_claude_code() -> None:
    imported = read_mcp_json(json.dumps(CLAUDE_CODE))
    assert [each.name for each in imported.servers] == ["files", "git-hub", "old", "web"]
    assert server(imported, "files").command == ("npx", "-y", "server-filesystem", "${workspace}")
    assert server(imported, "web").headers == ()
    hub = server(imported, "git-hub")
    assert (hub.command[-1], hub.env) == ("TOKEN=${GITHUB_TOKEN}", (("N", "3"),))
    assert wanted(imported) == [
        ("git-hub", "GITHUB_TOKEN", "env:GITHUB_TOKEN", True),
        ("git-hub", "LEVEL", "env:LEVEL", True),
        ("web", "Authorization", "Bearer ${env:API_KEY}", True),
    ]
    notes = {note.partition(":")[0]: note for note in imported.notes}
    assert set(notes) == {"git-hub", "odd", "old"}
    for word in ("'disabled'", "'timeout'", "git hub!", "argument names a variable", "default of LEVEL"):
        assert word in notes["git-hub"]
    assert "not imported" in notes["odd"]


def test_claude_desktop_keeps_values_and_says_which_lie_open() -> None:
    text = json.dumps(
        {"globalShortcut": "x", "mcpServers": {"gh": {"command": "npx", "env": {"GH_TOKEN": "ghp_1", "A": "${B}"}}}}
    )
    imported = read_claude_desktop(text)
    assert server(imported, "gh").env == (("GH_TOKEN", "ghp_1"), ("A", "${B}"))
    notes = " ".join(imported.notes)
    assert "GH_TOKEN" in notes
    assert "globalShortcut" in notes
    assert "ghp_1" not in notes


def test_vscode() -> None:
    imported = read_vscode(VSCODE)
    issues, local = imported.servers
    assert (issues.headers, local.env) == ((), ())
    assert wanted(imported) == [
        ("issues", "Authorization", "Bearer ${env:GH_TOKEN}", True),
        ("local", "KEY", "env:MY_KEY", True),
        ("local", "OTHER", "env:OTHER", True),
    ]
    assert local.command == ("${workspace}/bin/server", "--url", "http://x/a//b", "${userHome}")
    assert local.cwd == "${workspace}"
    notes = " ".join(imported.notes)
    for word in ("GH_TOKEN", "OTHER", "userHome", "envFile"):
        assert word in notes


@pytest.mark.parametrize("read", [read_mcp_json, read_claude_desktop, read_vscode])
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mcpServers": [], "servers": 3}', "[" * 100_000, "{'a': 1}"])
def test_a_file_of_something_else_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(BadArguments):
        read(text)


def test_what_was_imported_loads_as_settings(tmp_path: Path) -> None:
    for n, imported in enumerate((read_mcp_json(json.dumps(CLAUDE_CODE)), read_vscode(VSCODE))):
        file = tmp_path / f"{n}.toml"
        file.write_text(imported.format_toml(), encoding="utf-8")
        assert read_settings_file(file)["servers"] == imported.servers


words = some.text(some.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=25, deadline=None)
@given(
    some.dictionaries(
        words,
        some.fixed_dictionaries(
            {"command": some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)},
            optional={
                "args": some.lists(words, max_size=3),
                "env": some.dictionaries(some.from_regex(r"\A[A-Z_]{1,8}\Z"), words, max_size=3),
            },
        ),
        max_size=4,
    )
)
def test_whatever_names_and_values_there_are_the_result_loads(
    tmp_path_factory: pytest.TempPathFactory, servers: dict[str, object]
) -> None:
    for imported in (
        read_claude_desktop(json.dumps({"mcpServers": servers})),
        read_mcp_json(json.dumps({"mcpServers": servers})),
    ):
        assert len(imported.servers) == len(servers)
        file = tmp_path_factory.mktemp("toml") / "k.toml"
        file.write_text(imported.format_toml(), encoding="utf-8", newline="")
        assert read_settings_file(file).get("servers", ()) == imported.servers


@pytest.mark.parametrize("extra", ["//" * 40, "/**/" * 40, "//\n" * 40, " " * 40])
def test_a_comma_before_many_comments_is_read_in_linear_time(extra: str) -> None:
    text = '{"servers": {"a": {"command": "x",' + extra + '\n"args": []}}}'
    assert [server.command for server in read_vscode(text).servers] == [("x",)]
    with pytest.raises(BadArguments):
        read_vscode(text[:-1] + "," + extra + "x")
