"""`install --http`: how a host reaches a server over HTTP, with the token where the user alone reads it."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import postgres
from support.terminal import Terminal

from kairos_mcp.server.tokens import make_tokens, read_owner_token
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.names import TOKEN_VARIABLE, unknown_variables
from kairos_mcp.settings.settings import Flags

URL = "http://127.0.0.1:8765/mcp"
USERS = {
    "claude-code": (".claude.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "zed": (".config/zed/settings.json", "context_servers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "goose": (".config/goose/config.yaml", "extensions"),
}
PROJECTS = {
    "claude-code": (".mcp.json", "mcpServers", f"${{{TOKEN_VARIABLE}}}"),
    "vscode": (".vscode/mcp.json", "servers", f"${{env:{TOKEN_VARIABLE}}}"),
    "cursor": (".cursor/mcp.json", "mcpServers", f"${{env:{TOKEN_VARIABLE}}}"),
    "gemini": (".gemini/settings.json", "mcpServers", f"${{{TOKEN_VARIABLE}}}"),
    "codex": (".codex/config.toml", "mcp_servers", TOKEN_VARIABLE),
}


def some(hosts: Iterable[str], *quick: str) -> list[Any]:
    """All hosts, of which the default run takes these."""
    return [host if host in quick else pytest.param(host, marks=pytest.mark.slow) for host in hosts]


def entry_in(file: Path, section: str) -> dict[str, Any]:
    readers = {".toml": tomllib.loads, ".yaml": yaml.safe_load}
    entry: dict[str, Any] = readers.get(file.suffix, json.loads)(file.read_text())[section]["kairos"]
    return entry


def tokens_of(kairos):
    return make_tokens(load_settings(Flags(home=str(kairos.state)), postgres.environ_of(kairos.state.parent)))


@pytest.mark.parametrize("host", some(USERS, "claude-code", "codex", "goose"))
def test_the_user_s_file_gets_the_token_and_is_for_the_user_alone(kairos, host: str) -> None:
    name, section = USERS[host]
    file = kairos.home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}" if file.suffix == ".json" else "")
    file.chmod(0o644)
    said = kairos("install", host, "--http", "--write")
    assert said.code == 0
    entry, token = entry_in(file, section), read_owner_token(kairos.state)
    assert {entry.get("url"), entry.get("httpUrl"), entry.get("uri")} == {URL, None}
    assert (entry.get("headers") or entry["http_headers"]) == {"Authorization": f"Bearer {token}"}
    assert entry.get("type") == {"claude-code": "http", "vscode": "http", "goose": "streamable_http"}.get(host)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tokens_of(kairos).find_principal(str(token)) == "local"
    assert str(token) not in said.out + said.err
    again = kairos("install", host, "--http", "--write")
    assert (again.code, read_owner_token(kairos.state)) == (0, token)


@pytest.mark.parametrize("host", some(PROJECTS, "cursor", "codex"))
def test_the_project_s_file_gets_the_name_of_a_variable(kairos, host: str) -> None:
    name, section, variable = PROJECTS[host]
    assert kairos("install", host, "--http", "--write", "--project", "--port", "8123").code == 0
    entry = entry_in(kairos.folder / name, section)
    assert (entry.get("url") or entry["httpUrl"]) == URL.replace("8765", "8123")
    assert variable in (entry.get("bearer_token_env_var"), entry.get("headers", {}).get("Authorization", "")[7:])
    assert not tokens_of(kairos).any()
    assert unknown_variables({TOKEN_VARIABLE: "x"}) == []


def test_the_token_is_printed_on_a_terminal_alone(kairos) -> None:
    piped = kairos("install", "cursor", "--http")
    assert piped.json["mcpServers"]["kairos"]["headers"] == {"Authorization": f"Bearer ${{env:{TOKEN_VARIABLE}}}"}
    with Terminal("install", "cursor", "--http", folder=kairos.folder, environ=kairos.environ(), columns=200) as shown:
        assert shown.ends() == 0
        assert str(read_owner_token(kairos.state)) in shown.text


def test_where_others_have_tokens_none_is_made(kairos) -> None:
    tokens_of(kairos).add("alice")
    assert kairos("install", "gemini", "--http", "--write").code == 0
    entry = entry_in(kairos.home / ".gemini/settings.json", "mcpServers")
    assert entry["headers"] == {"Authorization": f"Bearer ${{{TOKEN_VARIABLE}}}"}
    assert [each.name for each in tokens_of(kairos).list_tokens()] == ["alice"]
    assert kairos("install", "zed", "--http", "--write").code == 2  # its file can't name a variable
    assert kairos("token", "add", "local").code == 0  # as the error says
    assert kairos("install", "zed", "--http", "--write").code == 0
    zed = entry_in(kairos.home / ".config/zed/settings.json", "context_servers")
    assert zed["headers"] == {"Authorization": f"Bearer {read_owner_token(kairos.state)}"}
    assert kairos("token", "add", "local").code == 2


def test_a_token_that_was_revoked_elsewhere_is_written_nowhere(kairos) -> None:
    """Where a database is the store, another machine can revoke it, and its text stays here."""
    assert kairos("install", "cursor", "--http", "--write").code == 0
    revoked = read_owner_token(kairos.state)
    tokens_of(kairos).revoke("local")
    assert kairos("install", "zed", "--http", "--write").code == 0
    token = read_owner_token(kairos.state)
    assert token != revoked
    assert tokens_of(kairos).find_principal(str(token)) == "local"
    assert str(revoked) not in (kairos.home / ".config/zed/settings.json").read_text()


@pytest.mark.parametrize(
    "words", [("claude-desktop",), ("zed", "--project"), ("cursor", "--workspace", "."), ("goose", "--project")]
)
def test_what_a_host_can_not_have_is_refused(kairos, words: tuple[str, ...]) -> None:
    assert kairos("install", *words, "--http", "--write").code == 2
    assert not any(file.is_file() for file in kairos.folder.rglob(".*/*"))


def test_another_entry_is_replaced_only_if_that_is_asked_for(kairos) -> None:
    assert kairos("install", "cursor", "--write").code == 0
    file = kairos.home / ".cursor/mcp.json"
    assert kairos("install", "cursor", "--http", "--write").code == 0  # ours is replaced by another of ours
    file.write_text('{"mcpServers": {"kairos": {"url": "https://elsewhere.test/mcp"}}}', encoding="utf-8")
    assert kairos("install", "cursor", "--http", "--write").code == 2
    assert kairos("install", "cursor", "--uninstall").code == 2
    assert kairos("install", "cursor", "--http", "--write", "--force").code == 0
    assert entry_in(kairos.home / ".cursor/mcp.json", "mcpServers")["url"] == URL
    assert kairos("install", "cursor", "--uninstall").code == 0
