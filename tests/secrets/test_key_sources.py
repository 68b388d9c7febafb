"""Where a key may lie, and what is said where it does not: never the key itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.secret_refs import is_reference, read_secret
from kairos_mcp.settings.settings import Flags

KEY = "kq-4711-c0ffee-4711"


def test_a_key_in_a_variable_and_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    (tmp_path / "link").symlink_to(file)
    assert read_secret("env:MY_KEY", {"MY_KEY": f" {KEY} "}) == KEY
    assert read_secret(f"file:{file}") == KEY
    assert read_secret(f"file:{tmp_path / 'link'}") == KEY
    file.write_text("changed-4711")
    assert read_secret(f"file:{file}") == "changed-4711"


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "large", "binary", "empty"])
def test_a_file_without_a_key_is_refused_in_plain_words(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "key"
    match kind:
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "large":
            file.write_text(KEY * 10_000)
        case "binary":
            file.write_bytes(b"\xff\xfe\x00" + KEY.encode())
        case "empty":
            file.write_text("\n")
        case _:
            pass
    with pytest.raises(ConfigError) as refused:
        read_secret(f"file:{file}")
    assert refused.value.hint
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("text", [KEY, "env:", "env:A B", "file:", "keyring:service", "keyring:/x", "http://x", ""])
def test_what_is_no_reference_is_refused_and_not_repeated(text: str) -> None:
    assert not is_reference(text)
    with pytest.raises(ConfigError) as refused:
        read_secret(text)
    assert KEY not in str(refused.value)


def test_a_missing_variable_says_which() -> None:
    with pytest.raises(ConfigError, match="Set MY_KEY"):
        read_secret("env:MY_KEY", {})


def test_a_keyring_is_asked_or_its_package_named() -> None:
    try:
        import keyring  # noqa: F401 - is it there?
    except ImportError:
        with pytest.raises(ConfigError, match=r"kairos-loop\[keyring\]"):
            read_secret("keyring:kairos/openai")
        return
    with pytest.raises(ConfigError, match="keyring"):
        read_secret("keyring:kairos-has-no-such-service/nobody")


def test_a_setting_holds_a_reference_and_never_a_key(tmp_path: Path) -> None:
    file = tmp_path / "kairos.toml"
    file.write_text('model = "openai:gpt-5"\nmodel_key = "env:MY_KEY"\n')
    assert load_settings(Flags(home=str(tmp_path)), {}).model_key == "env:MY_KEY"
    for given in (lambda: file.write_text(f'model_key = "{KEY}"\n'), lambda: file.write_text("")):
        given()
        environ = {} if KEY in file.read_text() else {"KAIROS_MODEL_KEY": KEY}
        with pytest.raises(ConfigError, match="env:NAME") as refused:
            load_settings(Flags(home=str(tmp_path)), environ)
        assert KEY not in str(refused.value)
