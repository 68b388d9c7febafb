"""`run`: a goal in a person's words, over the folder that they stand in; with -i a conversation."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from kairos_mcp.app.app import App
from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED, WAITING
from kairos_mcp.cli.session import PERSON, speak, stay
from kairos_mcp.cli.speech import tell
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.limits import Limits, limits_from_json
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.file_ownership import readable_secrets
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags, Route, Settings, standing_in, users_home
from kairos_mcp.views.run_report import RunReport


@dataclass(frozen=True, slots=True)
class RunCommandOptions:
    """What a person asks of `run`, in their words."""

    goal: str
    route: Route | None = None
    limits: tuple[str, ...] = ()
    model: str | None = None
    key: str | None = None
    as_json: bool = False
    tools: tuple[str, ...] = ()


def run_once(wish: RunCommandOptions, flags: Flags) -> int:
    """One run, until it ends or waits."""
    if not wish.goal.strip():
        raise BadArguments("There is no goal.", 'Say what is to be done: `kairos-mcp run "GOAL"`.')
    settings = settings_here(flags)
    return speak(start(settings, _request(wish, settings), quiet=wish.as_json), flags, as_json=wish.as_json)


def converse(wish: RunCommandOptions, flags: Flags) -> int:
    """Each line is the goal of a run that goes on from the one before, until the lines end."""
    if wish.as_json:
        raise BadArguments("--json is for a single run.", "Leave out --json or -i.")
    settings = settings_here(flags)
    before: str | None = None
    code = COMPLETED
    goal: str | None = wish.goal.strip() or _next_line()
    while goal is not None:
        report = start(settings, _request(replace(wish, goal=goal), settings, before))
        code = speak(report, flags)
        if code in (WAITING, CANCELLED):
            return code
        before, wish = report.run_id, replace(wish, key=None)
        goal = _next_line()
    return code


def start(settings: Settings, request: PlannerRequest, *, quiet: bool = False) -> RunReport:
    """Start a run and stay with it until it rests."""

    async def begin(host: App) -> str:
        started = await host.start_planner(request, PERSON)
        if started.attached:  # of the same words a moment ago; whoever drove it may have been killed
            tell(f"run {started.run_id} of the same words is open")
            await host.drive_here(started.run_id)
        return started.run_id

    return stay(settings, begin, quiet=quiet)


def settings_here(flags: Flags) -> Settings:
    """The settings, with the folder that this stands in as the workspace where none is set."""
    settings = load_settings(flags, os.environ)
    for text in readable_secrets(settings, os.environ):
        tell(f"kairos-mcp: {text}")
    return settings if settings.workspaces else replace(settings, workspaces=(_folder_here(),))


def settings_at_hand(flags: Flags) -> Settings:
    """The settings for a list, with the folder that this stands in as the workspace where none is set; without any
    where that folder is too wide to be one: then the list is of all."""
    try:
        return settings_here(flags)
    except ConfigError:
        return load_settings(flags, os.environ)


def workspace_here(settings: Settings) -> Path:
    """Of the configured folders the one that this stands in, else the first."""
    here = standing_in()
    around = [folder for folder in settings.workspaces if here.is_relative_to(folder)]
    return around[0] if around else settings.workspaces[0]


def _folder_here() -> Path:
    """This folder; never `/`, the home folder or one above it: too much would lie open by accident."""
    here, home = standing_in(), users_home()
    if here == Path(here.anchor) or here == home or here in home.parents:
        cure = "Go into the folder of a project, or name one by --workspace DIR."
        raise ConfigError(f"{here} is too wide to be a workspace.", cure)
    return here


def _request(wish: RunCommandOptions, settings: Settings, before: str | None = None) -> PlannerRequest:
    return PlannerRequest(
        goal=wish.goal,
        continues=before,
        model=wish.model,
        route=wish.route or "auto",
        limits=limits_of(wish.limits),
        workspace=str(workspace_here(settings)),
        key=wish.key,
        tools=wish.tools or None,
    )


def limits_of(texts: tuple[str, ...]) -> Limits:
    """Limits as a person types them, KEY=VALUE. Raises BadArguments."""
    from kairos_mcp.settings.schema import caps_from_texts

    given: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not value or name in given:
            raise BadArguments(f"--limit {text[:80]!r} is not KEY=VALUE, each key once.", "As --limit rounds=8.")
        given[name] = value
    return Limits(**limits_from_json(caps_from_texts(given)))


def _next_line() -> str | None:
    """The next line that says something; None at the end of the input or on Ctrl-C."""
    try:
        while True:
            if sys.stdin.isatty():
                sys.stderr.write("\n> ")
                sys.stderr.flush()
            line = sys.stdin.readline()
            if not line or line.strip():
                return line.strip() or None
    except KeyboardInterrupt:
        return None
