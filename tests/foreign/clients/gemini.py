"""Gemini's CLI with one prompt (`-p`), and a provider on loopback in place of Google's."""

from __future__ import annotations

import json
from pathlib import Path

from hosts import JOB, serve_job, server_entry, talk
from standin import Standin


def start(standin: Standin, typed: str) -> tuple[list[str], dict[str, str]]:
    entry = server_entry()
    if JOB["transport"] == "http":
        entry = {"httpUrl": entry["url"]}
    settings = {
        "mcpServers": {"kairos": {**entry, "trust": True}},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    home = Path(JOB["folder"], "host", ".gemini")
    home.mkdir(parents=True, exist_ok=True)
    (home / "settings.json").write_text(json.dumps(settings))
    gemini = f"{JOB['environment']}/node_modules/.bin/gemini"
    environ = {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": standin.url, "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return [gemini, "--yolo", "-m", "gemini-2.5-pro", "-p", typed], environ


def prompt(name: str, arguments: dict[str, str]) -> str:
    """What its model is shown of a prompt, which is a slash command; `/plan` is one of its own, so ours is renamed."""
    given = " ".join(f'--{key}="{value}"' for key, value in arguments.items())
    return talk(start, typed=f"/kairos.{name} {given}").shown


serve_job(start, prompt=prompt)
