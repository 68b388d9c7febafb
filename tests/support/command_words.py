"""The words of a command, as the command itself takes them."""

from __future__ import annotations

from functools import cache
from typing import Any

import typer

from kairos_mcp.cli.command_table import build_app


@cache  # to build it takes as long as to parse a hundred commands
def all_commands() -> Any:
    """Return our commands, by which words are parsed and nothing is run."""
    return typer.main.get_command(build_app())


def parse_words(words: list[str]) -> dict[str, Any]:
    """Return the options of one of our commands, by the words after `kairos-mcp`; raises for words that it refuses."""
    command = all_commands()
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    context = command.make_context("kairos-mcp", list(words))
    return dict(context.params)
