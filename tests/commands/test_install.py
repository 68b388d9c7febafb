"""`install`: the entry of each host; a file of somebody else is kept whole or left alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

USERS = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "claude-code": (".claude.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
}
PROJECTS = {
    "claude-code": (".mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
}


def entry_in(file: Path, section: str) -> dict[str, object]:
    entry: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))[section]["kairos"]
    return entry


def cursor_file(kairos) -> Path:
    file = kairos.home / ".cursor" / "mcp.json"
    file.parent.mkdir(parents=True)
    return file


@pytest.mark.parametrize("host", USERS)
def test_without_write_the_entry_is_printed_and_no_file_is_made(kairos, host: str) -> None:
    said = kairos("install", host, "--workspace", ".")
    entry = said.json[USERS[host][1]]["kairos"]
    assert said.code == 0
    assert Path(entry["command"]).is_absolute()
    assert entry["args"][-3:] == ["serve", "--workspace", str(kairos.folder)]
    assert entry.get("type") == ("stdio" if host in ("claude-code", "vscode") else None)
    assert sorted(path.name for path in kairos.home.rglob("*")) == ["README.md", "main.py", "project"]


@pytest.mark.parametrize("host", USERS)
def test_write_makes_the_users_file(kairos, host: str) -> None:
    name, section = USERS[host]
    assert kairos("install", host, "--write", "--home", "../state").code == 0
    assert entry_in(kairos.home / name, section)["args"][-2:] == ["--home", str(kairos.home / "state")]
    assert stat.S_IMODE((kairos.home / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("host", PROJECTS)
def test_write_makes_the_projects_file_with_its_folder_as_workspace(kairos, host: str) -> None:
    name, section = PROJECTS[host]
    assert kairos("install", host, "--write", "--project").code == 0
    assert entry_in(kairos.folder / name, section)["args"][-2:] == ["--workspace", str(kairos.folder)]


def test_claude_desktop_has_no_projects(kairos) -> None:
    assert kairos("install", "claude-desktop", "--project").code == 2


def test_an_unknown_host_is_a_wrong_use(kairos) -> None:
    assert kairos("install", "emacs").code == 2


def test_everything_else_in_the_file_is_kept_and_the_file_before_is_copied(kairos) -> None:
    file = cursor_file(kairos)
    before = '{\n    "mcpServers": {"other": {"command": "x", "env": {"KEY": "geheim ü"}}},\n    "theme": 1.5\n}'
    file.write_text(before, encoding="utf-8")
    file.chmod(0o640)
    assert kairos("install", "cursor", "--write").code == 0
    after = file.read_text(encoding="utf-8")
    assert list(json.loads(after)["mcpServers"]) == ["other", "kairos"]
    assert '\n    "theme": 1.5' in after
    assert "geheim ü" in after
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    copy = file.with_name("mcp.json.before-kairos-1")
    assert copy.read_text(encoding="utf-8") == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["mcp.json", "mcp.json.before-kairos-1"]


def test_the_same_entry_again_changes_nothing(kairos) -> None:
    file = cursor_file(kairos)
    kairos("install", "cursor", "--write")
    before = file.stat()
    assert kairos("install", "cursor", "--write").code == 0
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert len(list(file.parent.iterdir())) == 1


def test_another_entry_of_the_name_is_replaced_only_by_force(kairos) -> None:
    file = cursor_file(kairos)
    before = '{"mcpServers": {"kairos": {"command": "mine"}}}'
    file.write_text(before, encoding="utf-8")
    assert kairos("install", "cursor", "--write").code == 2
    assert file.read_text(encoding="utf-8") == before
    assert kairos("install", "cursor", "--write", "--force").code == 0
    assert entry_in(file, "mcpServers")["args"][-1] == "serve"
    assert file.with_name("mcp.json.before-kairos-1").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    "content",
    [
        b'{\n  // mine\n  "mcpServers": {}\n}',
        b'{"mcpServers": {},}',
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"[]",
        b'{"mcpServers": []}',
        b'{"a": "\xff"}',
        b"{" * 5_000,
    ],
)
def test_a_file_that_could_not_be_written_back_whole_is_left_alone(kairos, content: bytes) -> None:
    file = cursor_file(kairos)
    file.write_bytes(content)
    assert kairos("install", "cursor", "--write").code == 2
    assert file.read_bytes() == content
    assert len(list(file.parent.iterdir())) == 1


def test_line_ends_byte_order_mark_and_escapes_stay(kairos) -> None:
    file = cursor_file(kairos)
    file.write_bytes(b'\xef\xbb\xbf{\r\n\t"a": "\\ud800"\r\n}\r\n')
    assert kairos("install", "cursor", "--write").code == 0
    after = file.read_bytes()
    assert after.startswith(b'\xef\xbb\xbf{\r\n\t"a": "\\ud800",\r\n\t"mcpServers"')
    assert b"\n" not in after.replace(b"\r\n", b"")


def test_a_linked_file_stays_a_link(kairos) -> None:
    file = cursor_file(kairos)
    real = kairos.home / "dotfiles.json"
    real.write_text("{}", encoding="utf-8")
    file.symlink_to(real)
    assert kairos("install", "cursor", "--write").code == 0
    assert file.is_symlink()
    assert entry_in(real, "mcpServers")


def test_what_could_not_start_is_not_installed(kairos) -> None:
    assert kairos("install", "cursor", "--write", "--workspace", "nowhere").code == 2
    assert not (kairos.home / ".cursor").exists()
