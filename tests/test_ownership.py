"""What other users could have written is not obeyed: the state folder, what is in it, and the settings file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.commands import command

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.file_ownership import SERVER_CACHES, list_readable_secrets
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.names import TRUST_VARIABLE
from kairos_mcp.settings.settings import Flags

SOMEBODY = 54_321  # no user of this machine
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def give_to(path: Path, user: int = -1, group: int = -1) -> None:
    """Give the path, a link too, to them; skips where this root has no other users, as in some containers."""
    try:
        os.lchown(path, user, group)
    except OSError:
        pytest.skip("nothing can be given to another user here")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state folder as a server leaves it."""
    home = tmp_path / "above" / "state"
    for folder in (home, home / "config" / "prompts", home / "owners"):
        folder.mkdir(mode=0o700, parents=True)
    for file in ("kairos.db", "kairos.toml", "config/prompts/planner.md", "owners/1"):
        (home / file).touch(0o600)
    return home


def refusal(home: Path, **environ: str) -> ConfigError | None:
    try:
        load_settings(Flags(home=str(home)), environ)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize("at", [".", "kairos.toml", "kairos.db", "config", "config/prompts/planner.md", "owners", ".."])
@pytest.mark.parametrize("mode", [0o666, 0o777, 0o602])
def test_what_every_user_may_write_is_refused_with_the_cure(home: Path, at: str, mode: int) -> None:
    assert refusal(home) is None
    path = home / at
    path.chmod(mode | (0o500 if path.is_dir() else 0))
    refused = refusal(home)
    assert refused is not None
    assert "every user" in refused.message
    assert "chmod" in refused.hint
    assert TRUST_VARIABLE in refused.hint
    os.system(refused.hint.split("`")[1])  # the cure as it is written
    assert refusal(home) is None


def test_a_folder_of_everybodys_is_fine_above_where_it_is_sticky_and_never_as_the_state_folder(home: Path) -> None:
    home.parent.chmod(0o1777)
    assert refusal(home) is None
    home.chmod(0o1777)
    assert refusal(home) is not None


def test_what_launchers_leave_open_in_the_caches_of_servers_is_fine_since_nobody_else_can_enter(home: Path) -> None:
    lock = home / SERVER_CACHES / "x@1" / ".cache" / "uv" / ".lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    lock.chmod(0o666)  # as uv makes it
    assert refusal(home) is None
    (home / SERVER_CACHES).chmod(0o777)
    assert refusal(home) is not None


@as_root
@pytest.mark.parametrize("at", [".", "kairos.toml", "kairos.db", "config/prompts/planner.md", ".."])
def test_what_belongs_to_another_user_is_refused(home: Path, at: str) -> None:
    give_to(home / at, user=SOMEBODY)
    refused = refusal(home)
    assert refused is not None
    assert str(SOMEBODY) in refused.message
    assert "chown" in refused.hint


@as_root
@pytest.mark.parametrize("at", [".", "kairos.toml", ".."])
def test_a_group_may_write_only_where_it_is_the_user_s_private_one(home: Path, at: str) -> None:
    (home / at).chmod((home / at).stat().st_mode | stat.S_IWGRP)
    assert refusal(home) is None  # root's own group, in which nobody else is
    give_to(home / at, group=SOMEBODY)
    refused = refusal(home)
    assert refused is not None
    assert "group" in refused.message


def test_a_folder_of_the_system_is_no_state_folder_of_a_user(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("it is root's own")
    assert refusal(Path("/usr")) is not None


@as_root
def test_a_file_in_the_place_of_the_state_folder_is_left_to_whoever_opens_it(home: Path) -> None:
    """Nothing in it is obeyed, and what helps is another place, whoever owns it."""
    file = home.parent / "file"
    file.touch()
    give_to(file, user=SOMEBODY)
    assert refusal(file) is None


@as_root
def test_a_link_to_a_state_folder_is_as_good_as_who_made_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    link = tmp_path / "open" / "state"
    link.symlink_to(home)
    assert refusal(link) is None
    give_to(link, user=SOMEBODY)
    assert refusal(link) is not None


def test_what_another_user_may_replace_is_seen_behind_a_link(home: Path, tmp_path: Path) -> None:
    link = tmp_path / "state"
    link.symlink_to(home)
    home.parent.chmod(0o777)
    assert refusal(link) is not None


def test_a_state_folder_that_is_not_there_yet_is_judged_by_those_above(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    assert refusal(tmp_path / "open" / "new" / "state") is None
    (tmp_path / "open").chmod(0o777)
    assert refusal(tmp_path / "open" / "new" / "state") is not None


def test_one_variable_trusts_a_file_system_without_modes(home: Path) -> None:
    (home / "kairos.toml").chmod(0o666)
    home.chmod(0o777)
    assert refusal(home, **{TRUST_VARIABLE: "0"}) is not None
    assert refusal(home, **{TRUST_VARIABLE: "1"}) is None


def test_a_settings_file_elsewhere_that_others_may_write_is_refused(home: Path, tmp_path: Path) -> None:
    named = tmp_path / "mine.toml"
    named.write_text('commands = "bare"\n')
    named.chmod(0o644)
    assert load_settings(Flags(home=str(home), config=str(named)), {}).commands == "bare"
    named.chmod(0o646)
    with pytest.raises(ConfigError, match="every user"):
        load_settings(Flags(home=str(home), config=str(named)), {})


@pytest.mark.parametrize("words", [["runs"], ["serve"], ["run", "Think."], ["doctor"], ["status"]])
def test_every_command_refuses_what_was_planted_and_doctor_names_it(
    home: Path, tmp_path: Path, words: list[str]
) -> None:
    (home / "kairos.toml").write_text('commands = "bare"\n[[gate]]\ntools = "*"\nverdict = "allow"\n')
    home.chmod(0o777)
    (tmp_path / "project").mkdir()
    before = sorted(home.rglob("*"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
    said = command(*words, folder=tmp_path / "project", environ={**environ, "KAIROS_HOME": str(home)})
    assert said.code == (1 if words == ["doctor"] else 2)
    assert "can be written by every user" in said.out + said.err
    assert "chmod -R go-w" in said.out + said.err
    assert sorted(home.rglob("*")) == before


# -- secrets in a settings file ------------------------------------------------------------------------------------

TOKEN = "Bearer abcdefgh12345678"
SERVER = '[servers.x]\nurl = "https://example.org/mcp"\n[servers.x.headers]\nAuthorization = "{}"\n'


@pytest.mark.parametrize(
    ("value", "mode", "named"),
    [
        (TOKEN, 0o644, True),
        (TOKEN, 0o604, True),
        (TOKEN, 0o600, False),
        ("env:TOKEN", 0o644, False),
        ("Bearer ${env:TOKEN}", 0o644, False),
    ],
)
def test_a_secret_in_a_header_of_a_file_that_others_may_read_is_named(
    home: Path, tmp_path: Path, value: str, mode: int, named: bool
) -> None:
    file = home / "kairos.toml"
    file.write_text(SERVER.format(value))
    file.chmod(mode)
    texts = list_readable_secrets(load_settings(Flags(home=str(home)), {}), {})
    assert [("servers.x.headers.Authorization" in text, "chmod 600" in text) for text in texts] == [
        (True, True)
    ] * named
    environ = {name: text for name, text in os.environ.items() if not name.startswith("KAIROS_")}
    environ |= {"KAIROS_HOME": str(home), "TOKEN": "t"}
    for words in (["serve"], ["doctor"]):
        said = command(*words, folder=tmp_path, environ=environ)
        assert ("servers.x.headers.Authorization" in said.out + said.err) is named
        assert "abcdefgh12345678" not in said.out + said.err
