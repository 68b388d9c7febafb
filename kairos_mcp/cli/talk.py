"""A conversation's commands: `/help`, `/model` and such, typed at the prompt of `run -i`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kairos_mcp.cli.budget import spending_lines
from kairos_mcp.cli.output import report_lines
from kairos_mcp.cli.session import PERSON
from kairos_mcp.cli.terminal import Line, Prose, print_line, print_note
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.text import nearest_names
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

_COMMAND = re.compile(r"/[a-z]+(?=\s|$)|/\?(?=\s|$)|/$")  # and not a path, as /etc/hosts


def is_command(line: str) -> bool:
    """Whether a line is a command of the conversation, and nothing for the model."""
    return _COMMAND.match(line) is not None


@dataclass
class Talk:
    """A conversation: what its next run is started with, and its newest run."""

    request: PlannerRequest
    newest: str | None = None

    def __post_init__(self) -> None:
        self.newest = self.request.continues

    async def do(self, line: str, app: App, settings: Settings, flags: Flags) -> bool:
        """Carry out a command; False: the conversation ends."""
        name, _, rest = line[1:].partition(" ")
        command = _COMMANDS.get("help" if name in ("", "?") else name)
        if command is None:
            print_note(f"There is no /{name}. Did you mean /{nearest_names(name, [*_COMMANDS])[0]}? /help lists all.")
            return True
        try:
            lines = await command.act(self, rest.split(), Place(app, settings, flags))
        except KairosError as error:
            print_note(Prose(f"error: {error}"))
            return True
        for each in lines or ():
            print_line(each)
        return lines is not None


class Place(NamedTuple):
    """Where a command is carried out."""

    app: App
    settings: Settings
    flags: Flags


class TalkCommand(NamedTuple):
    """A command: what stands after it, what it does, and the function, which returns lines; None to end."""

    arguments: str
    summary: str
    act: Callable[[Talk, list[str], Place], Awaitable[list[Line] | None]]


async def _help(_: Talk, words: list[str], place: Place) -> list[Line]:
    width = max(len(f"{name} {command.arguments}") for name, command in _COMMANDS.items())
    rows = [(f"{name} {command.arguments}".ljust(width), command.summary) for name, command in _COMMANDS.items()]
    return [*(f"  /{row}  {summary}" for row, summary in rows), "  A message that begins with / is typed with //."]


async def _show(talk: Talk, words: list[str], place: Place) -> list[Line]:
    if talk.newest is None:
        return ["Nothing was asked yet."]
    return [*report_lines(await place.app.runs.report(talk.newest, PERSON), place.flags)]


async def _budget(talk: Talk, words: list[str], place: Place) -> list[Line]:
    scopes = ["day", *([] if talk.newest is None else [talk.newest])]
    return [
        line for scope in scopes for line in spending_lines(scope, await place.app.records.read_spending(scope, PERSON))
    ]


async def _model(talk: Talk, words: list[str], place: Place) -> list[Line]:
    if words:
        request = replace(talk.request, model=words[0])
        await place.app.runs.check_model(request)
        talk.request = request
    return [f"model {talk.request.model or place.settings.model or 'as configured'}"]


async def _tools(talk: Talk, words: list[str], place: Place) -> list[Line]:
    if words:
        talk.request = replace(talk.request, tools=tuple(words))
    return [f"tools {' '.join(talk.request.tools or ()) or 'those that read, or those of the agent'}"]


async def _new(talk: Talk, words: list[str], place: Place) -> list[Line]:
    talk.newest = None
    return ["The next message begins a new conversation."]


async def _quit(_: Talk, words: list[str], place: Place) -> None:
    return None


_COMMANDS: Mapping[str, TalkCommand] = {
    "help": TalkCommand("", "list these commands", _help),
    "show": TalkCommand("", "show the newest run: its calls, limits and notes", _show),
    "budget": TalkCommand("", "show what today and this conversation's newest run have used", _budget),
    "model": TalkCommand("[NAME]", "show the model, or change it from the next message on", _model),
    "tools": TalkCommand("[GLOB ...]", "show which tools may be used, or change that", _tools),
    "new": TalkCommand("", "begin a new conversation", _new),
    "quit": TalkCommand("", "leave; Ctrl-D does too", _quit),
}
