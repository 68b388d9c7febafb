"""Start a server: `serve` on stdio, read without typer where it can be, and over HTTP.

Hosts start `serve` often, some only to list the tools, and importing typer takes longer than everything else before the
first answer. So the plain form (`serve` and options written in full) is parsed here. Anything else, be it `--help` or a
typing mistake, goes to typer, whose `serve` ends in the same functions.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Literal

from kairos_mcp.cli.settings import settings_for_server
from kairos_mcp.cli.terminal import print_note
from kairos_mcp.settings.settings import Flags


def plain_serve(words: Sequence[str]) -> Flags | None:
    """Parse `serve` in its plain form; None for everything else, which typer then parses or refuses."""
    if not words or words[0] != "serve":
        return None
    given: dict[str, list[str]] = {"--home": [], "--config": [], "--tools": [], "--workspace": []}
    read_only = "--read-only" in words
    rest = (word for word in words[1:] if word != "--read-only")
    for word in rest:
        name, equals, text = word.partition("=")
        value = text if equals else next(rest, None)
        if name not in given or not value or value.startswith("-"):
            return None
        given[name].append(value)
    return Flags(
        home=_last(given["--home"]),
        workspaces=tuple(given["--workspace"]),
        config=_last(given["--config"]),
        tools=_last(given["--tools"]),
        read_only=read_only,
    )


def serve_stdio(flags: Flags) -> None:
    """Serve MCP on stdin and stdout until stdin ends."""
    settings = settings_for_server(flags)
    if sys.stdin.isatty():
        print_note("kairos-mcp: waiting for an MCP host; try `kairos-mcp demo`")
    from kairos_mcp.server import stdio

    spare_loaded_modules()
    stdio.serve(settings)


def serve_http(
    flags: Flags,
    transport: Literal["http", "sse"],
    host: str,
    port: int,
    allowed_hosts: tuple[str, ...],
    *,
    drives: bool = True,
    no_auth: bool = False,
) -> None:
    """Serve MCP over HTTP until a signal ends it."""
    settings = settings_for_server(flags)
    from kairos_mcp.server import http

    spare_loaded_modules()
    options = http.ListenOptions(transport, host, port, allowed_hosts, drives, no_auth)
    http.serve(settings, options, show_token=_show_token)


def _show_token(token: str) -> None:
    """Show the local owner's token, where nobody but the person at the terminal reads it."""
    if sys.stderr.isatty():
        print_note(f"Your token, shown once: {token}")
        print_note("Clients send it as `Authorization: Bearer TOKEN`; `kairos-mcp install HOST --http` writes it.")


def spare_loaded_modules() -> None:
    """Have the garbage collector pass over everything that is loaded by now. It stays until the process ends, and going
    through it again and again takes a ninth of the time of a long run."""
    gc.freeze()


def _last(values: Sequence[str]) -> str | None:
    return values[-1] if values else None
