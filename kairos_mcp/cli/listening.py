"""`serve` over HTTP: from flags to a listening server."""

from __future__ import annotations

import os
from typing import Literal

from kairos_mcp.cli.speech import tell
from kairos_mcp.settings.file_ownership import readable_secrets
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags


def listen(flags: Flags, transport: Literal["http", "sse"], host: str, port: int, names: tuple[str, ...]) -> None:
    """The MCP server over HTTP, until it is told to end."""
    settings = load_settings(flags, os.environ)
    for text in readable_secrets(settings, os.environ):
        tell(f"kairos-mcp: {text}")
    if not settings.workspaces:
        tell("kairos-mcp: no --workspace is given, so there are no file tools")
    from kairos_mcp.server import http

    http.serve(settings, http.ListenOptions(transport, host, port, names))
