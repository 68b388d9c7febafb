"""`install`: the entry of each host; a file of somebody else is kept whole or left alone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
import yaml

import kairos_mcp
from kairos_mcp.cli.host_entries import find_own_entries
from kairos_mcp.cli.host_formats import TOML
from kairos_mcp.cli.hosts import HOSTS, HostName

OPEN_FOLDER = {"claude-code": ".", "vscode": "${workspaceFolder}", "cursor": "${workspaceFolder}", "gemini": "."}
USERS = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "claude-code": (".claude.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "zed": (".config/zed/settings.json", "context_servers"),
}
PROJECTS = {
    "claude-code": (".mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "zed": (".zed/settings.json", "context_servers"),
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
    workspace = ["--workspace", OPEN_FOLDER[host]] if host in OPEN_FOLDER else []
    args = entry_in(kairos.home / name, section)["args"]
    assert args == ["serve", "--home", str(kairos.home / "state"), *workspace]
    assert stat.S_IMODE((kairos.home / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("is_cache", [True, False])
def test_where_uvx_started_it_the_entry_is_uvx_s_and_not_what_lies_in_its_cache(
    kairos, tmp_path: Path, is_cache: bool
) -> None:
    environment = tmp_path / "uv" / "archive-v0" / "x1"
    venv.create(environment, symlinks=True)
    (environment / "CACHEDIR.TAG").write_text("")  # which every environment that uv makes bears
    if is_cache:
        (tmp_path / "uv" / "CACHEDIR.TAG").write_text("")
    (site,) = environment.glob("lib/python*/site-packages")
    root = Path(kairos_mcp.__file__).parent.parent
    (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{root}\n")
    words = [str(environment / "bin" / "python"), "-m", "kairos_mcp", "install", "gemini"]
    environ = kairos.environ(UV="/opt/uv")
    said = subprocess.run(words, cwd=kairos.folder, env=environ, capture_output=True, text=True, check=True, timeout=60)
    entry = json.loads(said.stdout)["mcpServers"]["kairos"]
    if is_cache:
        assert (entry["command"], entry["args"][:3]) == ("/opt/uv", ["tool", "run", "--from"])
        assert (entry["args"][3:6], Path(entry["args"][3]).is_absolute()) == ([str(root), "kairos-mcp", "serve"], True)
    else:
        assert (Path(entry["command"]).name, entry["args"][0]) == ("kairos-mcp", "serve")


@pytest.mark.parametrize("host", PROJECTS)
def test_write_makes_the_projects_file_with_its_folder_as_workspace(kairos, host: str) -> None:
    name, section = PROJECTS[host]
    assert kairos("install", host, "--write", "--project").code == 0
    folder = HOSTS[host].open_folder or str(kairos.folder)
    assert entry_in(kairos.folder / name, section)["args"][-2:] == ["--workspace", folder]


@pytest.mark.parametrize("host", [host for host in PROJECTS if HOSTS[host].open_folder is not None])
def test_a_file_that_a_team_shares_names_no_folder_of_this_machine(kairos, host: str) -> None:
    name, _ = PROJECTS[host]
    assert kairos("install", host, "--write", "--project").code == 0
    assert f'"{kairos.folder}"' not in (kairos.folder / name).read_text()


def test_an_unknown_host_is_refused_with_the_nearest_one(kairos) -> None:
    said = kairos("install", "claude-cod")
    assert (said.code, "Did you mean claude-code?" in said.err, "Value error" in said.err) == (2, True, False)


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
    assert kairos("install", "cursor", "--uninstall").code == 2
    assert file.read_text(encoding="utf-8") == before
    assert kairos("install", "cursor", "--write", "--force").code == 0
    assert entry_in(file, "mcpServers")["args"][0] == "serve"
    assert file.with_name("mcp.json.before-kairos-1").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": 1} {}',
        b'{"a": /* 1}',
        b"[]",
        b'{"mcpServers": []}',
        b'{"a": "\xff"}',
        b"{" * 5_000,
    ],
)
def test_a_file_that_can_t_be_understood_is_left_alone(kairos, content: bytes) -> None:
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


def test_comments_and_trailing_commas_stay(kairos) -> None:
    file = kairos.home / ".config" / "zed" / "settings.json"
    file.parent.mkdir(parents=True)
    before = """// Zed settings
{
  "theme": "One", // the best
  "context_servers": {
    // mine
    "other": {"command": "x", "args": ["http://y", "a,}"]}, /* why
    not */
  },
}
"""
    file.write_text(before, encoding="utf-8")
    assert kairos("install", "zed", "--write", "--workspace", ".").code == 0
    after = file.read_text(encoding="utf-8")
    command = json.loads(kairos("install", "zed", "--workspace", ".").out)["context_servers"]["kairos"]["command"]
    added = f'''
    "kairos": {{
      "command": "{command}",
      "args": [
        "serve",
        "--workspace",
        "{kairos.folder}"
      ]
    }},'''
    assert added in after
    assert after.replace(added, "") == before
    assert kairos("install", "zed", "--uninstall").code == 0
    assert file.read_text(encoding="utf-8") == before


CODEX = """# mine
model = "gpt"  # the newest

[mcp_servers.other]
command = "x"

[projects."/home/me/a.b"]
trust_level = "trusted"
"""


def test_codex_has_its_table(kairos) -> None:
    file = kairos.home / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_text(CODEX, encoding="utf-8")
    assert kairos("install", "codex", "--write").code == 0
    after = file.read_text(encoding="utf-8")
    assert tomllib.loads(after)["mcp_servers"]["kairos"]["args"] == ["serve", "--workspace", "."]
    assert all(line in after.splitlines() for line in CODEX.splitlines())
    assert kairos("install", "codex", "--uninstall").code == 0
    assert tomllib.loads(file.read_text(encoding="utf-8")) == tomllib.loads(CODEX)


GOOSE = """# mine
GOOSE_MODEL: 'gpt'   # the newest
extensions:
  developer:
    type: builtin
    enabled: true
    name: developer
"""


def test_goose_has_its_extension(kairos) -> None:
    file = kairos.home / ".config" / "goose" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(GOOSE, encoding="utf-8")
    assert kairos("install", "goose", "--write", "--workspace", ".").code == 0
    after = file.read_text(encoding="utf-8")
    assert after.startswith(GOOSE)
    entry = yaml.safe_load(after)["extensions"]["kairos"]
    assert (entry["type"], entry["enabled"]) == ("stdio", True)
    assert entry["args"] == ["serve", "--workspace", str(kairos.folder)]
    assert kairos("install", "goose", "--uninstall").code == 0
    assert file.read_text(encoding="utf-8") == GOOSE


@pytest.mark.parametrize(("host", "file"), [("codex", ".codex/config.toml"), ("goose", ".config/goose/config.yaml")])
@pytest.mark.parametrize("content", [b"a = = 1", b"\xff", b"- a\n- b"])
def test_a_file_of_another_format_is_left_alone(kairos, host: str, file: str, content: bytes) -> None:
    path = kairos.home / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert kairos("install", host, "--write").code == 2
    assert path.read_bytes() == content


@pytest.mark.parametrize("host", ["zed", "codex", "goose"])
def test_the_entry_is_printed_as_its_file_has_it(kairos, host: str) -> None:
    said = kairos("install", host, "--workspace", ".")
    read = {"zed": json.loads, "codex": tomllib.loads, "goose": yaml.safe_load}[host]
    section = {"zed": "context_servers", "codex": "mcp_servers", "goose": "extensions"}[host]
    assert read(said.out)[section]["kairos"]["args"] == ["serve", "--workspace", str(kairos.folder)]


@pytest.mark.parametrize(
    "before",
    [
        *("", 'model = "gpt"\n', '[mcp_servers.other]\ncommand = "x"\n', "a = 1\n[mcp_servers]\n# a note\n"),
        '[mcp_servers.b]\nc = "d"\n\n[projects]\na = 1\n\n[mcp_servers.c]\nd = "e"\n',  # in two places
    ],
)
def test_a_toml_file_is_as_it_was_once_the_entry_is_gone(before: str) -> None:
    after = TOML.set_entry(before, "mcp_servers", "kairos", {"command": "x"})
    assert tomllib.loads(after)["mcp_servers"]["kairos"] == {"command": "x"}
    assert TOML.remove_entry(after, "mcp_servers", "kairos") == before


@pytest.mark.parametrize(
    ("host", "name"), [("zed", ".config/zed/settings.json"), ("goose", ".config/goose/config.yaml")]
)
def test_uninstall_says_what_was_removed_and_leaves_no_empty_section(kairos, host: HostName, name: str) -> None:
    file = kairos.home / name
    assert kairos("install", host, "--write", "--workspace", ".").code == 0
    said = kairos("install", host, "--uninstall")
    assert (said.code, file.read_text(encoding="utf-8")) == (0, "{}\n")
    assert said.out.startswith(f"Removed: kairos from {file}\n")
    assert f"Restart {HOSTS[host].name}" in said.err


def test_uninstall_without_an_entry_changes_nothing(kairos) -> None:
    file = cursor_file(kairos)
    file.write_text('{"mcpServers": {}}', encoding="utf-8")
    assert kairos("install", "cursor", "--uninstall").code == 0
    assert len(list(file.parent.iterdir())) == 1
    assert kairos("install", "cursor", "--uninstall", "--write").code == 2


def test_a_table_on_one_line_is_left_alone(kairos) -> None:
    path = kairos.home / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text("mcp_servers = {}\n")
    assert kairos("install", "codex", "--write").code == 2
    assert path.read_text() == "mcp_servers = {}\n"


UNSAFE = json.dumps({"mcpServers": {"kairos": {"command": "python", "args": ["-m", "kairos_mcp"]}}})


@contextmanager
def pipe_with(file: Path, text: str) -> Iterator[None]:
    """A pipe, as an archive may bring one; whoever reads it gets the text."""
    os.mkfifo(file)

    def write() -> None:
        with suppress(BrokenPipeError):
            file.write_text(text, encoding="utf-8")

    writing = Thread(target=write, daemon=True)
    writing.start()
    try:
        yield
        assert writing.is_alive(), "it was read"
    finally:
        reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # else it waits for one
        writing.join(10)
        os.close(reader)


def test_a_pipe_in_the_place_of_a_project_s_file_is_not_read(kairos) -> None:
    with pipe_with(kairos.folder / ".mcp.json", UNSAFE):
        assert list(find_own_entries({}, [kairos.folder])) == []


def test_a_pipe_in_the_place_of_a_project_s_file_is_not_edited(kairos) -> None:
    with pipe_with(kairos.folder / ".mcp.json", "{}"):
        assert kairos("install", "claude-code", "--project", "--uninstall").code == 2
    assert stat.S_ISFIFO((kairos.folder / ".mcp.json").stat().st_mode)


def test_of_a_project_s_file_without_end_no_more_is_read_than_of_any_other(kairos) -> None:
    """As of a link to a device, which a repository may bring."""
    (kairos.folder / ".mcp.json").symlink_to("/dev/zero")
    assert list(find_own_entries({}, [kairos.folder])) == []
    assert kairos("install", "claude-code", "--project", "--write").code == 2


def test_a_project_s_file_that_leads_out_of_the_project_is_left_alone(kairos) -> None:
    users = kairos.home / ".claude.json"
    users.write_text("{}", encoding="utf-8")
    (kairos.folder / ".mcp.json").symlink_to(users)
    (kairos.folder / ".cursor").symlink_to(kairos.home / "made")
    for host in ("claude-code", "cursor"):
        assert kairos("install", host, "--project", "--write").code == 2
    assert users.read_text(encoding="utf-8") == "{}"
    assert not (kairos.home / "made").exists()
