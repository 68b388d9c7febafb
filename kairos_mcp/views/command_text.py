"""Complete a command of this program so that it works where it is pasted: with the program's path and state folder.

A text names a command as `kairos-mcp VERB …`, in backticks and without options that depend on a machine; before a
person is shown the text, `CommandLine.complete_all` completes it. A text in a row, or for a model inside a loop, stays
as it is, so that no record depends on where it was made.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from kairos_mcp.core.quick_dataclass import dataclass

PROGRAM_NAME = "kairos-mcp"
_SCRIPTS = (PROGRAM_NAME, "kairos", "kairos-loop")  # as pyproject.toml has them; the last is named as the distribution
COMMAND_GROUPS = (
    "mandate",
    "rules",
    "store",
    "token",
    "tools",
)  # their commands have two words, and options stand behind both
WITHOUT_STATE = ("--help", "--version", "serve")  # what needs no state folder, or is given its own
_COMMANDS_OF_TOOLS = (
    (r"run_status without run_ids", "runs"),
    (r"run_status(?: with its run_id)?", "show RUN"),
    (r"run_trace view=calls", "show RUN --view calls"),
    (r"run_trace(?: view=events)?", "show RUN --view events"),
    (r"run_continue", "answer RUN"),
    (r'run_control action="resume"', "resume RUN"),
    (r'planner_run continues(?:="[^"]*")?', "run -i --continue RUN"),
    (r"mandate_save", "mandate save FILE"),
    (r"mandate_list", "mandate list"),
    (r"registry_search names=\[[^]]*\]", "tools show NAME"),
    (r"registry_search", "tools list"),
    (r"budget_status(?: without a scope)?", "budget"),
)
"""How a person does what a hint tells a model to do with a tool of ours: the first pattern that fits counts."""
_TOOL = re.compile("|".join(rf"\b({pattern})(?!\w)" for pattern, _ in _COMMANDS_OF_TOOLS))
_COMMAND = re.compile(rf"`{PROGRAM_NAME} ([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """How a person calls this program from a shell: its words, and the options that select this state folder."""

    program: tuple[str, ...]
    options: tuple[str, ...] = ()

    def format_command(self, *words: str) -> str:
        """Return the command of these words, ready to paste."""
        named = 2 if words[0] in COMMAND_GROUPS else 1
        options = () if words[0] in WITHOUT_STATE else self.options
        return shlex.join([*self.program, *words[:named], *options, *words[named:]])

    def complete(self, command: str) -> str:
        """Make a command of a text, `kairos-mcp VERB …`, ready to paste."""
        try:
            _, *words = shlex.split(command)
        except ValueError:
            return command  # it has a quote that is not closed, so it is a sentence and no command
        return self.format_command(*words) if words else command

    def complete_all(self, text: str) -> str:
        """Make each command in backticks in a text ready to paste."""
        return _COMMAND.sub(lambda found: f"`{self.complete(found[0][1:-1])}`", text)


def name_commands(text: str, run_id: str | None = None) -> str:
    """Put commands in the place of the tools that a hint names, for a person in a terminal. `run_id`: of the run that
    the hint is about."""

    def command(found: re.Match[str]) -> str:
        _, words = _COMMANDS_OF_TOOLS[(found.lastindex or 1) - 1]
        return f"`{PROGRAM_NAME} {words.replace('RUN', run_id or 'RUN')}`"

    return _TOOL.sub(command, text)


def terminal_command_line(options: Iterable[str] = ()) -> CommandLine:
    """Return the command line for the terminal that called this program: just its name where PATH finds it."""
    called, name = program_words(), script_name()
    return CommandLine((name,) if (shutil.which(name),) == called else called, tuple(options))


def state_options(words: Sequence[str]) -> list[str]:
    """Return those of a command's words that select its state folder, to be repeated in a command that is shown."""
    found: list[str] = []
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--home", "--config") and (equals or at + 1 < len(words)):
            found += [name, value if equals else words[at + 1]]
    return found


def script_name() -> str:
    """Return the name of the script that started this program; `kairos-mcp` where none did."""
    name = Path(sys.argv[0]).name.removesuffix(".exe")
    return name if name in _SCRIPTS else PROGRAM_NAME


def program_words() -> tuple[str, ...]:
    """Return the words that start this program from any folder and any shell. `-P`: without it the folder that such a
    command is pasted in could bring modules of its own."""
    started = Path(sys.argv[0])
    if started.name.removesuffix(".exe") in _SCRIPTS:
        return (str(started.absolute()),)
    return (sys.executable, "-P", "-m", "kairos_mcp")
