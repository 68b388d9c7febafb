"""The server lists of other programs, taken over: secrets stay references, what is lost is named, the rest loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.settings.schema import read_settings_file
from kairos_mcp.settings.settings import ServerSetting
from kairos_mcp.tools.config_import import ImportedServers, read_claude_desktop, read_mcp_json, read_vscode

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


def test_claude_code() -> None:
    imported = read_mcp_json(json.dumps(CLAUDE_CODE))
    assert [each.name for each in imported.servers] == ["files", "git-hub", "old", "web"]
    assert server(imported, "files").command == ("npx", "-y", "server-filesystem", "${workspace}")
    assert server(imported, "web").headers == (("Authorization", "Bearer ${env:API_KEY}"),)
    hub = server(imported, "git-hub")
    assert hub.env == (("GITHUB_TOKEN", "env:GITHUB_TOKEN"), ("LEVEL", "env:LEVEL"), ("N", "3"))
    notes = {note.partition(":")[0]: note for note in imported.notes}
    assert set(notes) == {"git-hub", "odd", "old"}
    for word in ("'disabled'", "'timeout'", "git hub!", "argument names a variable", "default of LEVEL"):
        assert word in notes["git-hub"]
    assert "not taken" in notes["odd"]


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
    assert issues.headers == (("Authorization", "Bearer ${env:GH_TOKEN}"),)
    assert local.command == ("${workspace}/bin/server", "--url", "http://x/a//b", "${userHome}")
    assert local.env == (("KEY", "env:MY_KEY"), ("OTHER", "env:OTHER"))
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
