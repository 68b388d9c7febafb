"""The options that several commands have, and the flags that all of them have, each defined once.

A command is a function that takes its flags as one value and returns its exit code; `as_command` turns it into what
typer reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kairos_mcp.core.errors import ConfigError, KairosError
from kairos_mcp.core.routes import RouteName
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.views.run_report import RunReport

NEWEST = "last"  # what --continue means without a run

_COMPLETED_RUNS = 30


def complete_run(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the newest runs here whose ids begin with what was typed, each with its goal, for a shell that completes
    it; none if the store can't be read, since a shell has no place for an error."""
    from kairos_mcp.cli.session import PERSON, with_app
    from kairos_mcp.cli.settings import read_settings, with_current_folder
    from kairos_mcp.cli.terminal import one_line

    async def list_newest(app: App) -> list[RunReport]:
        newest = await app.runs.newest_ids(PERSON, _COMPLETED_RUNS, everywhere=not settings.workspaces)
        found = [run_id for run_id in newest if run_id.startswith(incomplete)]
        return await app.runs.list_reports(found, PERSON)

    try:
        settings = read_settings(Flags(home=ctx.params.get("home"), config=ctx.params.get("config")))
        with suppress(ConfigError):  # this folder is too wide to be a workspace: then of every folder
            settings = settings if settings.workspaces else with_current_folder(settings)
        return [(report.run_id, one_line(report.goal or "", 60)) for report in with_app(settings, list_newest)]
    except KairosError:
        return []


Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its id, a unique beginning of its id, or `last` (the newest here).",
        autocompletion=complete_run,
    ),
]
WaitingRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its id, a unique beginning of its id, or `last` (the newest here that waits for this).",
        autocompletion=complete_run,
    ),
]
Key = Annotated[
    str | None,
    typer.Argument(metavar="KEY", help="Which waiting item, as `show` lists it; not needed if only one waits."),
]
Digest = Annotated[
    str | None,
    typer.Option("--digest", metavar="DIGEST", help="Decide only if the waiting item still has this digest, as shown."),
]
Always = Annotated[
    Literal["run", "project"] | None,
    typer.Option(help="Allow such calls from now on: in this run, or in all runs in its workspace."),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="With --always, which commands: a glob for each argument, as 'pytest tests/*'; a last ... matches any "
        "further ones.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="PATH", help="Of a stage's changes, approve this file alone; may be repeated."),
]
Drive = Annotated[bool, typer.Option("--drive/--no-drive", help="Continue the run in this process.")]
Principal = Annotated[
    str | None,
    typer.Option("--principal", metavar="NAME", help="Whose run: the name of a token; not needed with a whole id."),
]
Whose = Annotated[
    str | None, typer.Option("--principal", metavar="NAME", help="Of this principal: the name of a token.")
]
Everyone = Annotated[bool, typer.Option("--everyone", help="Of every principal.")]
Since = Annotated[
    str | None, typer.Option(metavar="AGE", help="Since then: an age, as 12h, 30d or 2w, or a day, as 2026-11-27.")
]
RouteOption = Annotated[
    RouteName | None,
    typer.Option(help="Where completions come from."),
]
AtLimitOption = Annotated[
    Literal["end", "ask"],
    typer.Option("--at-limit", help="At a limit of the run's own: end, or ask whether it may have as much again."),
]
AllWorkspaces = Annotated[bool, typer.Option("--all", help="Include every workspace.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Also list passed checks and default settings.")]
Offline = Annotated[bool, typer.Option("--offline", help="Start no servers and send no requests.")]
Check = Annotated[bool, typer.Option("--check", help="Only read the settings, and say whether they are right.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]

_HOME = Annotated[str | None, typer.Option("--home", metavar="DIR", help="State folder (or KAIROS_HOME).")]
_WORKSPACES = Annotated[
    list[str] | None,
    typer.Option("--workspace", metavar="DIR", help="A folder that file tools may touch; repeatable."),
]
_CONFIG = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Settings file (or KAIROS_CONFIG).")]

AllFlags = Annotated[Flags, {"home": _HOME, "workspace": _WORKSPACES, "config": _CONFIG}]
StateFlags = Annotated[Flags, {"home": _HOME, "config": _CONFIG}]
"""The flags of a command that touches no workspace."""


def as_command(act: Callable[..., int]) -> Callable[..., None]:
    """Turn a command into what typer reads: its `flags`, of one of the types above, become options of their own, and
    what it returns becomes the exit code."""
    signature = inspect.signature(act, eval_str=True)

    @wraps(act)
    def command(*, home: str | None, workspace: list[str] | None = None, config: str | None, **rest: Any) -> None:
        raise typer.Exit(act(**rest, flags=Flags(home, tuple(workspace or ()), config)))

    parameters = [typed for parameter in signature.parameters.values() for typed in _typer_parameters(parameter)]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it first
    return command


def _typer_parameters(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """A parameter as typer sees it; typer passes all by keyword, so the order is free."""
    by_name = inspect.Parameter.KEYWORD_ONLY
    if parameter.name != "flags":
        return [parameter.replace(kind=by_name)]
    (options,) = parameter.annotation.__metadata__
    return [inspect.Parameter(name, by_name, default=None, annotation=option) for name, option in options.items()]
