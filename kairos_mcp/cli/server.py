"""`serve` on stdio, and its short way in.

A host starts it often, some only to probe, and typer costs more than all else that it does before its first
answer. So the plain form (`serve` and whole options) is read here in a few lines; whatever is not exactly that,
be it `--help` or a slip, goes to typer, which knows `serve` too. Both ways end in the same function.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kairos_mcp.settings.file_ownership import readable_secrets
from kairos_mcp.settings.settings import Flags


def plain_serve(words: Sequence[str]) -> Flags | None:
    """The flags of a `serve` in its plain form; None for all else, which typer then reads or refuses."""
    if not words or words[0] != "serve":
        return None
    given: dict[str, list[str]] = {"--home": [], "--config": [], "--tools": [], "--workspace": []}
    rest = iter(words[1:])
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
    )


def serve(flags: Flags) -> None:
    """The MCP server on stdio, until its input ends."""
    from kairos_mcp.settings.load import load_settings

    settings = load_settings(flags, os.environ)
    for text in readable_secrets(settings, os.environ):
        print(f"kairos-mcp: {text}", file=sys.stderr)  # noqa: T201 - to a person
    if not settings.workspaces:
        print("kairos-mcp: no --workspace is given, so there are no file tools", file=sys.stderr)  # noqa: T201 - to a person
    if sys.stdin.isatty():
        print("kairos-mcp: waiting for an MCP host; try `kairos-mcp demo`", file=sys.stderr)  # noqa: T201 - as above
    from kairos_mcp.server import stdio

    stdio.serve(settings)


def _last(values: Sequence[str]) -> str | None:
    return values[-1] if values else None
