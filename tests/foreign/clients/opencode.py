"""opencode with a provider of its settings: one prompt (`run`)."""

from __future__ import annotations

import json
from typing import Any

from hosts import JOB, serve_job
from standin import Standin


def start(standin: Standin, typed: str) -> tuple[list[str], dict[str, str]]:
    if JOB["transport"] == "stdio":
        server: dict[str, Any] = {"type": "local", "command": JOB["command"]}
    else:
        server = {"type": "remote", "url": JOB["url"]}
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": "loopback/scripted",
        "permission": "allow",
        "provider": {
            "loopback": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{standin.url}/v1", "apiKey": "none"},
                "models": {"scripted": {"name": "scripted", "limit": {"context": 100_000, "output": 10_000}}},
            }
        },
        "mcp": {"kairos": {**server, "enabled": True, "timeout": 60_000}},
    }
    program = f"{JOB['environment']}/node_modules/.bin/opencode"
    return [program, "run", typed], {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


serve_job(start)
