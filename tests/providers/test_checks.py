"""What doctor says of a provider, without asking it anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from kairos_mcp.cli.doctor_checks import check_environment
from kairos_mcp.settings.folders import packaged_folder
from kairos_mcp.settings.settings import Settings


@pytest.mark.parametrize(
    ("model", "base_url", "environ", "states"),
    [
        (None, None, {}, []),
        ("openai:gpt-5", None, {}, ["note"]),
        ("openai:gpt-5", None, {"OPENAI_API_KEY": "sk-secret-1"}, ["ok"]),
        ("openai:local", "http://10.0.0.1:8080/v1", {}, ["ok", "note"]),
        ("openai:local", "http://127.0.0.1:8080/v1", {}, ["ok"]),  # what runs on this machine costs nothing
        ("anthropic:claude-sonnet-4-5", None, {"OPENAI_API_KEY": "sk-secret-1"}, ["note"]),
    ],
)
def test_key_and_price_are_told_but_never_the_key(
    tmp_path: Path, model: str | None, base_url: str | None, environ: dict[str, str], states: list[str]
) -> None:
    settings = Settings(
        tmp_path,
        (packaged_folder("config"), tmp_path / "config"),
        model=model,
        base_url=base_url,
        origins={"route": "default"},
    )
    findings = [each for each in check_environment(settings, environ) if each.matter == "provider"]
    assert [each.state for each in findings] == states
    assert "sk-secret-1" not in repr(findings)
