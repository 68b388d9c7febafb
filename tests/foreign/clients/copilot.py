"""GitHub Copilot's CLI with a provider that stands in for GitHub's: a terminal, an agent, sampling.

In a terminal, where sampling is asked for; its `-p` mode declares it and never answers a request, and looks no
different, so that `auto` takes the caller route with it.
"""

from __future__ import annotations

import json

from hosts import JOB, serve_job, server_entry
from standin import Standin

MODE = "-i" if JOB["way"] == "text" else "-p"


def start(standin: Standin, typed: str) -> tuple[list[str], dict[str, str]]:
    servers = {"mcpServers": {"kairos": {**server_entry(stdio="local", http="http", sse="sse"), "tools": ["*"]}}}
    copilot = f"{JOB['environment']}/node_modules/.bin/copilot"
    return [copilot, MODE, typed, "--additional-mcp-config", json.dumps(servers)], {
        "COPILOT_ALLOW_ALL": "true",
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_BASE_URL": f"{standin.url}/v1",
        "COPILOT_MODEL": "scripted",
    }


serve_job(start)
