"""Claude Code without a terminal (`-p`), with a provider on loopback in place of Anthropic's."""

from __future__ import annotations

import json
from typing import Any

from hosts import JOB, serve_job, server_entry, talk
from standin import CLAUDE_READS, Standin


def start(standin: Standin, typed: str) -> tuple[list[str], dict[str, str]]:
    servers = json.dumps({"mcpServers": {"kairos": server_entry(http="http", sse="sse")}})
    claude = f"{JOB['environment']}/node_modules/@anthropic-ai/claude-code-linux-x64/claude"
    words = ["--mcp-config", servers, "--strict-mcp-config", "--allowedTools", "mcp__kairos", CLAUDE_READS]
    return [claude, "-p", typed, *words], {
        "ANTHROPIC_BASE_URL": standin.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def prompt(name: str, arguments: dict[str, str]) -> str:
    """What its model is shown of a prompt, which is a slash command."""
    given = " ".join(f'"{value}"' for value in arguments.values())
    return talk(start, typed=f"/mcp__kairos__{name} {given}").shown


def read(uri: str) -> Any:
    return talk(start, [(CLAUDE_READS, {"server": "kairos", "uri": uri})]).results[-1]["text"]


serve_job(start, prompt=prompt, read=read)
