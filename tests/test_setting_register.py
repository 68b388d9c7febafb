"""Each setting is declared once, as a field of `Settings`; all that reads or explains settings is made of that."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.explained import Explained, commented_settings, list_sections
from kairos_mcp.settings.names import CAP_NAMES, KEYS, SETTINGS, VARIABLES, default_value, variable_name
from kairos_mcp.settings.schema import CHECKS, TABLES, read_environment, read_settings_file
from kairos_mcp.settings.settings import Settings

NOT_SET = ["home", "config_dirs", "config_file", "config_hash", "origins"]  # found, so no file can hold them
PLAIN = [name for name in KEYS if name not in ("limits", "day", *TABLES)]
EXPLAINED = [
    pytest.param(section.heading, key, id=section.prefix + key.name)
    for section in list_sections()
    for key in section.keys
]


def _file(folder: Path, text: str) -> Path:
    file = folder / "kairos.toml"
    file.write_text(text, encoding="utf-8")
    return file


def _uncommented() -> str:
    return re.sub(r"^# (?=[a-z_]+ = |\[)", "", commented_settings("", {}), flags=re.M)


def test_every_field_is_a_setting_or_is_found() -> None:
    assert [each.name for each in fields(Settings) if each.name not in KEYS] == NOT_SET
    assert set(SETTINGS) == set(KEYS) - {"limits", "day"} | set(CAP_NAMES)


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_explained_and_what_it_names_exists(name: str) -> None:
    key = KEYS[name]
    assert key.about[-1] in ".)"
    assert key.check in {"", *CHECKS}
    assert bool(key.form) == ("pattern" in key.bounds), "an error shows the form in place of the pattern"
    assert key.example is None or default_value(name) in (None, ()), "the default is the example"


@pytest.mark.parametrize(("heading", "key"), EXPLAINED)
def test_each_line_of_the_file_of_init_is_valid(tmp_path: Path, heading: str, key: Explained) -> None:
    assert key.about[-1] in ".)"
    assert key.default or key.example, "nothing shows how it is written"
    if heading in ("", "[limits]", "[day]"):
        name = heading.strip("[]") + "." * bool(heading) + key.name
        given = read_settings_file(_file(tmp_path, f"{heading}\n{key.line}\n"))
        assert set(given) == {name}
        if key.default:
            assert given[name] == default_value(name)


def test_all_lines_of_the_file_of_init_together_set_everything(tmp_path: Path) -> None:
    assert set(read_settings_file(_file(tmp_path, _uncommented()))) == set(SETTINGS)


@pytest.mark.parametrize("name", PLAIN)
def test_a_variable_holds_what_is_one_text_or_a_list_of_folders(name: str) -> None:
    """A list of texts would need a separator that none of them has."""
    written = default_value(name) if default_value(name) not in (None, ()) else KEYS[name].example
    is_list = isinstance(written, list | tuple)
    assert KEYS[name].in_variable == (not is_list or name in ("workspaces", "command_reads", "skills"))
    if KEYS[name].in_variable:
        text = ":".join(written) if is_list else str(written).lower() if isinstance(written, bool) else str(written)
        assert set(read_environment({variable_name(name): text})) == {name}
        assert VARIABLES[variable_name(name)] == name


OUTSIDE = {"ge": lambda bound: bound - 1, "gt": lambda bound: bound, "le": lambda bound: bound + 1}


@pytest.mark.parametrize("name", [name for name in PLAIN if set(KEYS[name].bounds) & set(OUTSIDE)])
def test_what_is_out_of_bounds_is_refused(tmp_path: Path, name: str) -> None:
    key = KEYS[name]
    for bound, outside in OUTSIDE.items():
        if bound in key.bounds:
            with pytest.raises(ConfigError, match=name):
                read_settings_file(_file(tmp_path, f"{name} = {outside(key.bounds[bound]):.0f}"))
