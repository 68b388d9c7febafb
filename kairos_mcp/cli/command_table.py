"""The table of all commands, as `kairos-mcp --help` lists them; each is a function of commands/."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO, cast

import typer

from kairos_mcp.cli import (
    looking,
    mandates_commands,
    server_commands,
    starting,
    steering,
    tokens_commands,
    tools_commands,
)
from kairos_mcp.cli.options import as_command

Acts = dict[str, Callable[..., int]]

COMMANDS: Acts = {
    "serve": server_commands.serve,
    "run": starting.run,
    "demo": starting.demo,
    "runs": looking.runs,
    "show": looking.show,
    "answer": steering.answer,
    "approve": steering.approve,
    "deny": steering.deny,
    "resume": steering.resume,
    "cancel": steering.cancel,
    "replay": looking.replay,
    "export": looking.export,
    "budget": looking.budget,
    "settle": steering.settle,
    "status": server_commands.status,
    "doctor": server_commands.doctor,
    "install": server_commands.install,
}
TOKEN: Acts = {"add": tokens_commands.add, "list": tokens_commands.listing, "revoke": tokens_commands.revoke}
TOOLS: Acts = {
    "list": tools_commands.listing,
    "show": tools_commands.show,
    "call": tools_commands.call,
    "approve": tools_commands.approve,
    "remove": tools_commands.remove,
    "import": tools_commands.import_servers,
}
MANDATE: Acts = {
    "save": mandates_commands.save,
    "list": mandates_commands.listing,
    "edit": mandates_commands.edit,
    "run": mandates_commands.run,
}
GROUPS = {
    "token": ("Bearer tokens for serving over HTTP; each is a principal with its own runs.", TOKEN),
    "tools": ("The tools that an agent may be given, and who approves them.", TOOLS),
    "mandate": ("Standing orders that an agent works on in cycles.", MANDATE),
}


def build_app() -> typer.Typer:
    # Plain help: rich's boxes cost an import, and differ with the width of the terminal.
    app = typer.Typer(
        name="kairos-mcp",
        help="Kairos: the agent loop for any MCP host. Planned, bounded, crash-safe, replayable.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, act in COMMANDS.items():
        app.command(name)(as_command(act))
    for group_name, (told, acts) in GROUPS.items():
        group = typer.Typer(help=told, no_args_is_help=True)
        for name, act in acts.items():
            group.command(name)(as_command(act))
        app.add_typer(group, name=group_name)
    return app


def run_app(words: list[str]) -> int:
    """The exit code of the command in `words`."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal can't show is shown escaped
        cast("TextIO", stream).reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]  # not of a TextIO, but of both
    try:
        build_app()(words, prog_name="kairos-mcp")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0
    return 0
