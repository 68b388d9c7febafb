"""The table of all commands, as `kairos-mcp --help` lists them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from kairos_mcp import __version__
from kairos_mcp.cli import (
    agents,
    budget,
    control,
    doctor,
    export,
    inbox,
    init,
    install,
    mandates,
    respond,
    rules,
    run,
    runs,
    server,
    store,
    tokens,
    tools,
    ui,
    work,
)
from kairos_mcp.cli.converse import NEWEST
from kairos_mcp.cli.options import as_command
from kairos_mcp.cli.terminal import print_line
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.text import nearest_names

Commands = dict[str, Callable[..., int]]

COMMANDS: Commands = {
    "serve": server.serve,
    "work": work.work,
    "run": run.run,
    "demo": run.demo,
    "runs": runs.runs,
    "show": runs.show,
    "inbox": inbox.inbox,
    "ui": ui.ui,
    "answer": respond.answer,
    "approve": respond.approve,
    "deny": respond.deny,
    "settle": respond.settle,
    **control.COMMANDS,
    "replay": export.replay,
    "export": export.export,
    "agents": agents.agents,
    "budget": budget.budget,
    "status": server.status,
    "doctor": doctor.doctor,
    "init": init.init,
    "install": install.install,
}
TOKEN: Commands = {"add": tokens.add, "list": tokens.list_tokens, "revoke": tokens.revoke}
TOOLS: Commands = {
    "list": tools.list_tools,
    "show": tools.show,
    "call": tools.call,
    "approve": tools.approve,
    "remove": tools.remove,
    "import": tools.import_tools,
}
MANDATE: Commands = {
    "save": mandates.save,
    "show": mandates.show,
    "list": mandates.list_mandates,
    "edit": mandates.edit,
    "remove": mandates.remove,
    "run": mandates.run,
}
STORE: Commands = {"migrate": store.migrate, "copy": store.copy}
RULES: Commands = {"list": rules.list_rules, "remove": rules.remove}
GROUPS = {
    "token": ("Bearer tokens for serving over HTTP; each is a principal with its own runs.", TOKEN),
    "tools": ("The tools that an agent may be given, and who approves them.", TOOLS),
    "rules": ("Remembered approvals, which `approve --always` makes.", RULES),
    "store": ("The database in place of a state file: its tables, and what is copied into it.", STORE),
    "mandate": ("Mandates: standing goals that an agent works on in cycles.", MANDATE),
}


class _Program(TyperGroup):
    """The commands, in whose errors a wrong choice reads like any other wrong use."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # typer's own context has no public name
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            wrong = _wrong_choice(error)
            if wrong is None:
                raise
            raise wrong from error


_NO_CHOICE = re.compile(r"Value error, (?P<given>.*) is not one of (?P<choices>'.*')\.", re.DOTALL)


def _wrong_choice(error: typer.BadParameter) -> BadArguments | None:
    """Return the error for a value that is none of an option's choices; None if that was not what was wrong."""
    found = _NO_CHOICE.fullmatch(error.message)
    if found is None or error.param is None:
        return None
    given, choices = found["given"].strip("'\""), re.findall(r"'([^']*)'", found["choices"])
    near = nearest_names(given, choices)[0]
    message = f"{error.param.opts[0]} can't be {given[:40]!r}. Did you mean {near}?"
    return BadArguments(message, f"Choices: {', '.join(choices)}.")


def build_app() -> typer.Typer:
    """The typer app of all commands."""
    # Plain help: rich's boxes cost an import, and differ with the width of the terminal.
    app = typer.Typer(
        name="kairos-mcp",
        cls=_Program,
        help="Kairos: the agent loop for any MCP host. Planned, bounded, crash-safe, replayable.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options_of_the_program)
    for name, command in COMMANDS.items():
        app.command(name)(as_command(command))
    for group_name, (summary, commands) in GROUPS.items():
        group = typer.Typer(help=summary, no_args_is_help=True)
        for name, command in commands.items():
            group.command(name)(as_command(command))
        app.add_typer(group, name=group_name)
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print_line(f"kairos-mcp {__version__}")
        raise typer.Exit


def _options_of_the_program(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass  # each option is carried out by its own callback


def run_app(words: list[str]) -> int:
    """Run the command in `words`, and return its exit code."""
    for stream in (sys.stdout, sys.stderr):  # what the terminal can't encode is escaped
        cast("TextIO", stream).reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]  # not of a TextIO, but of both
    try:
        build_app()(_with_optional_value(words), prog_name="kairos-mcp")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0
    return 0


def _with_optional_value(words: list[str]) -> list[str]:
    """The words with a value for `--continue` where it has none: typer knows no option whose value may be left out."""
    if words[:1] != ["run"] or "--continue" not in words:
        return words
    after = words.index("--continue") + 1
    has_value = after < len(words) and not words[after].startswith("-")
    return words if has_value else [*words[:after], NEWEST, *words[after:]]
