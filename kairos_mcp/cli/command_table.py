"""The table of all commands, as `kairos-mcp --help` lists them. The module of a command is imported when it is run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple, TextIO, cast

import typer
from typer.core import TyperGroup

from kairos_mcp import __version__
from kairos_mcp.cli.exit_codes import USAGE
from kairos_mcp.cli.options import NEWEST, as_command
from kairos_mcp.cli.terminal import print_line, print_note
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.text import nearest_names
from kairos_mcp.views.command_text import script_name


class Entry(NamedTuple):
    """Where a command is defined: a module of this package, and its function there."""

    module: str
    function: str

    def load(self) -> Callable[..., int]:
        command: Callable[..., int] = getattr(import_module(f"kairos_mcp.cli.{self.module}"), self.function)
        return command


Commands = Mapping[str, Entry]

COMMANDS: Commands = {
    "serve": Entry("server", "serve"),
    "work": Entry("work", "work"),
    "run": Entry("run", "run"),
    "demo": Entry("demo", "demo"),
    "runs": Entry("runs", "runs"),
    "show": Entry("show", "show"),
    "inbox": Entry("inbox", "inbox"),
    "ui": Entry("ui", "ui"),
    "answer": Entry("respond", "answer"),
    "approve": Entry("respond", "approve"),
    "deny": Entry("respond", "deny"),
    "settle": Entry("respond", "settle"),
    "pause": Entry("control", "pause"),
    "resume": Entry("control", "resume"),
    "cancel": Entry("control", "cancel"),
    "extend": Entry("control", "extend"),
    "reroute": Entry("control", "reroute"),
    "flow": Entry("flow", "flow"),
    "trust": Entry("flow", "trust"),
    "replay": Entry("export", "replay"),
    "export": Entry("export", "export"),
    "audit": Entry("audit", "audit"),
    "agents": Entry("agents", "agents"),
    "budget": Entry("budget", "budget"),
    "status": Entry("server", "status"),
    "doctor": Entry("doctor", "doctor"),
    "init": Entry("init", "init"),
    "install": Entry("install", "install"),
}
TOKEN: Commands = {
    "add": Entry("tokens", "add"),
    "rotate": Entry("tokens", "rotate"),
    "list": Entry("tokens", "list_tokens"),
    "revoke": Entry("tokens", "revoke"),
}
TOOLS: Commands = {
    "list": Entry("tools", "list_tools"),
    "show": Entry("tools", "show"),
    "call": Entry("tools", "call"),
    "approve": Entry("tools", "approve"),
    "remove": Entry("tools", "remove"),
    "import": Entry("tools", "import_tools"),
}
MANDATE: Commands = {
    "save": Entry("mandates", "save"),
    "show": Entry("mandates", "show"),
    "list": Entry("mandates", "list_mandates"),
    "edit": Entry("mandates", "edit"),
    "remove": Entry("mandates", "remove"),
    "run": Entry("mandates", "run"),
}
STORE: Commands = {"migrate": Entry("store", "migrate"), "copy": Entry("store", "copy")}
RULES: Commands = {"list": Entry("rules", "list_rules"), "remove": Entry("rules", "remove")}
GROUPS: Mapping[str, tuple[str, Commands]] = {
    "token": ("Tokens for serving over HTTP: whoever has one sees only their own runs.", TOKEN),
    "tools": ("The tools that an agent may be given, and who approves them.", TOOLS),
    "rules": ("Approvals that Kairos remembers: `approve --always` makes them.", RULES),
    "store": ("A database in place of the state file: make its tables, copy a state folder into it.", STORE),
    "mandate": ("Mandates: standing goals that an agent works on in cycles.", MANDATE),
}

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "First steps": ("demo", "install", "init", "doctor"),
    "Work": ("run", "mandate", "agents", "tools"),
    "Look": ("runs", "show", "ui", "budget", "status"),
    "Decide and answer": ("inbox", "approve", "deny", "rules", "trust", "answer", "settle"),
    "Steer a run": ("pause", "resume", "cancel", "extend", "reroute"),
    "Keep and verify": ("flow", "replay", "export", "audit"),
    "Serve": ("serve", "work", "token", "store"),
}
"""The commands as the help lists them."""

PROGRAM_EXAMPLES = (
    ("demo", "see it work, without a key"),
    ('run "Why does the test of the parser fail?"', "work on a goal in this folder"),
    ("install claude-code --write", "let a host use it"),
)
Examples = tuple[tuple[str, str], ...]
EXAMPLES: Mapping[str, Examples] = {
    "serve": (("serve --workspace .", "as a host starts it"), ("serve --transport http --port 8765", "over HTTP")),
    "work": (("work --slots 8", "drive up to eight runs at once"),),
    "run": (
        ('run "Explain the folder docs"', "read only"),
        ('run --write "Fix the typing errors in docs"', "it may also edit files, each with your approval"),
        ("run -i --model openai:gpt-5", "a conversation"),
        ('run --team --limit usd=0.50 "Review the last change"', "several agents, at most $0.50"),
    ),
    "demo": (("demo", "takes a few seconds"),),
    "runs": (
        ("runs -n 30 --all", "the newest 30 of every folder"),
        ("runs --everyone --status paused --since 2d", "of every principal, those that are paused"),
        ("runs --prune --older-than 30d", "remove old ones"),
    ),
    "show": (("show last", "the newest run here"), ("show last --view messages", "its whole conversation")),
    "inbox": (("inbox", "decide one after another"), ("inbox --json", "a list for a script")),
    "answer": (('answer last \'{"content": "Yes."}\'', "in place of the model"),),
    "approve": (
        ("approve last", "shows what it is and asks"),
        ("approve last --always project", "and such calls later"),
    ),
    "deny": (("deny last --feedback 'Use the other file'", "the model reads why"),),
    "settle": (("settle last already_done", "it was done before the crash"),),
    "extend": (("extend last --limit rounds=10", "ten more rounds"),),
    "reroute": (("reroute last provider", "ask the configured provider from now on"),),
    "flow": (("flow last", "which calls carried words of your files or of others, and where to"),),
    "trust": (("trust", "the files that runs wrote from texts of others"), ("trust notes.md", "after a look at it")),
    "replay": (("replay last", "compare each step with the record"),),
    "export": (("export last run.jsonl", "a file that `replay` reads anywhere"),),
    "budget": (
        ("budget", "today"),
        ("budget last", "of the newest run"),
        ("budget --days", "earlier days"),
        ("budget --everyone --since 7d", "each principal's week"),
    ),
    "audit": (
        ("audit --since 30d", "the last month"),
        ("audit --follow", "as it happens, a JSON object a line"),
        ("audit --follow --otlp", "the same, to a collector of logs"),
    ),
    "doctor": (("doctor", "what doesn't work, and the cure"), ("doctor --all", "also what works, and every setting")),
    "init": (("init", "then uncomment what you need"),),
    "install": (
        ("install claude-code", "print what would be written"),
        ("install cursor --write --workspace .", "write it, for this project"),
    ),
}


GROUP_EXAMPLES: Mapping[str, Examples] = {
    "token": (("token add anna", "for a person or a program; shown once"), ("token revoke anna", "it stops working")),
    "tools": (
        ("tools list", "all of them, and what waits for approval"),
        ('tools call read_file \'{"path": "README.md"}\'', "try one without a model"),
    ),
    "rules": (("rules list", "what runs unasked by now"), ("rules remove 3", "be asked again")),
    "store": (("store migrate", "once, for a new database or a new version"),),
    "mandate": (
        ("mandate save links.toml", "keep it"),
        ("mandate run links", "work on it now"),
        ("mandate run links --resume", "begin the next cycle, after a checkpoint"),
    ),
}

MEANT: Mapping[str, str] = {
    "config": "init",
    "continue": "run --continue",
    "history": "runs",
    "list": "runs",
    "log": "show last --view events",
    "logs": "show last --view events",
    "ls": "runs",
    "mcp": "serve",
    "settings": "doctor --all",
    "start": "run",
    "stop": "cancel RUN",
    "uninstall": "install HOST --uninstall",
    "version": "--version",
    "mandate add": "mandate save FILE",
    "mandate create": "mandate save FILE",
    "mandate new": "mandate save FILE",
    "mandate pause": "pause RUN",
    "mandate resume": "mandate run ID --resume",
    "mandate start": "mandate run ID",
    "token create": "token add NAME",
    "token new": "token add NAME",
    "token remove": "token revoke NAME",
    "tools search": "tools list",
}
"""What people mean by a name that no command has, as other programs have it."""


class _Commands(TyperGroup):
    """A group of commands, which lists whole summaries and knows what people mean by names of other programs."""

    sections: Mapping[str, tuple[str, ...]] | None = None

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # typer's own context has no public name
        for title, names in (self.sections or {"Commands": tuple(self.commands)}).items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(_UNCUT)) for name in names])

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]  # as above
        name = " ".join([*ctx.command_path.split()[1:], *args[:1]])
        if name in MEANT and args[0] not in self.commands:
            raise BadArguments(f"No such command {args[0]!r}.", f"Did you mean `kairos-mcp {MEANT[name]}`?")
        return super().resolve_command(ctx, args)


class _Program(_Commands):
    """The commands in sections, in whose errors a wrong choice reads like any other wrong use."""

    sections = SECTIONS

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # as above
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            wrong = _wrong_choice(error)
            if wrong is None:
                raise
            raise wrong from error


_NO_CHOICE = re.compile(r"Value error, (?P<given>.*) is not one of (?P<choices>'.*')\.", re.DOTALL)


def _wrong_choice(error: typer.BadParameter) -> BadArguments | None:
    """Return the error for a value that is not one of an option's choices; None if that was not what was wrong."""
    found = _NO_CHOICE.fullmatch(error.message)
    if found is None or error.param is None:
        return None
    given, choices = found["given"].strip("'\""), re.findall(r"'([^']*)'", found["choices"])
    near = nearest_names(given, choices)[0]
    message = f"{error.param.opts[0]} can't be {given[:40]!r}. Did you mean {near}?"
    return BadArguments(message, f"Choices: {', '.join(choices)}.")


def _plain_message(message: str) -> str:
    """Return a message of typer's without pydantic's words, which it quotes after what they are about."""
    from kairos_mcp.core.input_checks import plain_problem  # an error alone needs it

    about, colon, problem = message.partition(": ")
    return f"{about}{colon}{plain_problem(problem)}"


_UNCUT = 1_000  # characters that a summary may have: its lines are folded, and none is cut


def _format_examples(examples: Iterable[tuple[str, str]]) -> str:
    """Return the end of a help text; `\\b` keeps its lines as they are."""
    lines = [f"  kairos-mcp {words}\n      {why}" for words, why in examples]
    return "\n".join(["\b", "Examples:", *lines]) if lines else ""


def build_app(only: str | None = None) -> typer.Typer:
    """The typer app of all commands, or of the one that is run: the others are then not imported."""
    # Plain help: rich's boxes cost an import, and differ with the width of the terminal.
    app = typer.Typer(
        name="kairos-mcp",
        cls=_Program,
        help="Kairos: the agent loop for any MCP host. Planned, bounded, crash-safe, replayable.",
        epilog=_format_examples(PROGRAM_EXAMPLES),
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options_of_the_program)
    for name, entry in COMMANDS.items():
        if only in (None, name):
            app.command(name, epilog=_format_examples(EXAMPLES.get(name, ())))(as_command(entry.load()))
    for group_name, (summary, commands) in GROUPS.items():
        if only in (None, group_name):
            epilog = _format_examples(GROUP_EXAMPLES[group_name])
            group = typer.Typer(cls=_Commands, help=summary, epilog=epilog, no_args_is_help=True)
            for name, entry in commands.items():
                group.command(name)(as_command(entry.load()))
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
    """Run the command in `words`, and return its exit code. Raises BadArguments for words that don't fit."""
    for stream in (sys.stdout, sys.stderr):  # what the terminal can't encode is escaped
        cast("TextIO", stream).reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]  # not of a TextIO, but of both
    completed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""  # by a shell
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    only = next(iter(words or completed.split()[1:]), None)
    app = build_app(only if only in (*COMMANDS, *GROUPS) else None)
    try:
        code = app(_with_optional_value(words), prog_name=script_name(), standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        if context is not None and error.message == context.get_help():  # a group of commands without one
            print_note(error.message)
            return USAGE
        command = "" if context is None else context.command_path.partition(" ")[2]
        message = _plain_message(error.format_message()).rstrip(".")
        cure = f"See `kairos-mcp {command} --help`." if command else "See `kairos-mcp --help`."
        if command == "run" and "extra argument" in message:
            cure = """Put the goal and each pattern in quotes: `kairos-mcp run "Explain the build" --tools 'read_*'`."""
        raise BadArguments(f"{message}." if not message.endswith("?") else message, cure) from error
    except SystemExit as exit_:  # whoever reads our output has closed it
        return exit_.code if isinstance(exit_.code, int) else 0
    return code if isinstance(code, int) else 0


def _with_optional_value(words: list[str]) -> list[str]:
    """The words with a value for `--continue` where it has none: typer knows no option whose value may be left out."""
    if words[:1] != ["run"] or "--continue" not in words:
        return words
    after = words.index("--continue") + 1
    has_value = after < len(words) and not words[after].startswith("-")
    return words if has_value else [*words[:after], NEWEST, *words[after:]]
