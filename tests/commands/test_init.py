"""`init`: the settings file to begin with."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from kairos_mcp.cli.settings import settings_for_server
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags


def test_it_changes_nothing_until_a_line_is_uncommented(kairos, tmp_path: Path) -> None:
    assert kairos("init", KAIROS_MODEL="wrong").code == 0  # as its error says
    file = kairos.state / "kairos.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tomllib.loads(file.read_text(encoding="utf-8")) == {}
    settings = load_settings(Flags(home=str(kairos.state)), {})
    assert (settings.config_file, set(settings.origins.values())) == (file, {"flag", "default"})


def test_workspaces_that_are_named_stand_in_it(kairos) -> None:
    odd = kairos.home / 'my "project"'
    odd.mkdir()
    assert kairos("init", "--workspace", ".", "--workspace", str(odd)).code == 0
    text = (kairos.state / "kairos.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text) == {"workspaces": [str(kairos.folder), str(odd)]}


def test_a_file_that_is_there_stays(kairos) -> None:
    file = kairos.folder / "mine.toml"
    assert kairos("init", "--config", str(file)).code == 0
    file.write_text("route = 'caller'\n", encoding="utf-8")
    assert kairos("init", "--config", str(file)).code == 2
    assert file.read_text(encoding="utf-8") == "route = 'caller'\n"
    assert kairos("init", "--config", "mine.json").code == 2


@pytest.mark.parametrize("below", ["", "project"])
def test_a_host_s_folder_is_a_workspace_unless_it_is_too_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    folder = tmp_path / "me" / below
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(folder)
    settings = settings_for_server(Flags(str(tmp_path / "state"), (".",)))
    assert settings.workspaces == ((folder.resolve(),) if below else ())
