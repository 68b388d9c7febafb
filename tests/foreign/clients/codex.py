"""Codex's CLI, without a terminal of its own (`exec`), with a provider of its settings."""

from __future__ import annotations

import json

from hosts import JOB, serve_job
from standin import Standin


def start(standin: Standin, typed: str) -> tuple[list[str], dict[str, str]]:
    if JOB["transport"] == "stdio":
        command, *words = JOB["command"]
        server = {"command": command, "args": words}
    else:
        server = {"url": JOB["url"]}
    provider = {"name": "loopback", "base_url": f"{standin.url}/v1", "wire_api": "responses", "env_key": "LOOPBACK"}
    settings = {
        "model": "scripted",
        "model_provider": "loopback",
        "approval_policy": "never",
        **{f"model_providers.loopback.{name}": value for name, value in provider.items()},
        **{f"mcp_servers.kairos.{name}": value for name, value in server.items()},
        "mcp_servers.kairos.required": True,
        "mcp_servers.kairos.tool_timeout_sec": 90,
        "mcp_servers.kairos.startup_timeout_sec": 60,
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    codex = f"{JOB['environment']}/node_modules/.bin/codex"
    return [codex, "exec", "--skip-git-repo-check", "-s", "danger-full-access", *words, typed], {"LOOPBACK": "none"}


serve_job(start)
