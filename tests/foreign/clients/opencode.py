"""opencode with a provider of its settings: one message, or one command (`run`)."""

from __future__ import annotations

import json
from typing import Any

from hosts import JOB, serve_job, talk
from standin import Standin


def start(standin: Standin, *typed: str) -> tuple[list[str], dict[str, str]]:
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
    return [program, "run", *typed], {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def prompt(name: str, arguments: dict[str, str]) -> str:
    """What its model is shown of a prompt, which is a command: it asks for the text with `$1` and so on as arguments,
    and puts what was typed in their place."""
    return talk(lambda standin, _: start(standin, "--command", f"kairos:{name}", *arguments.values())).shown


serve_job(start, prompt=prompt)
