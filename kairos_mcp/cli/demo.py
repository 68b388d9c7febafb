"""`demo`: show in a folder of its own what Kairos promises, while a script stands in for the model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kairos_mcp.cli.ask import approval_lines
from kairos_mcp.cli.follow import open_follower, print_ending
from kairos_mcp.cli.keyboard import is_person_there
from kairos_mcp.cli.options import AllFlags, AsJson
from kairos_mcp.cli.output import shell_command
from kairos_mcp.cli.own_start import installed_words
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import settings_here
from kairos_mcp.cli.terminal import print_line, print_note
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.routes import SCRIPTED
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.folders import packaged_folder
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.views.run_report import RunReport

SLOW_S = 3.0  # that each turn takes with `--slow`
KILLED_AFTER = "round 2"  # the last turn that the killed process shows
FILES = {
    "docs/guide.md": "# Guide\n\nStart with [the installation](instal.md).\n",
    "docs/install.md": "# Installation\n\nRun the installer.\n",
}


class Story(NamedTuple):
    """A run of the demo. `script`: a file in `config`."""

    goal: str
    script: str
    rounds: int

    @property
    def turns(self) -> list[JsonObject]:
        """What the script says, line by line."""
        lines = (packaged_folder("config") / self.script).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that the script calls, which are those that the run may use."""
        calls = [call for turn in self.turns for call in turn.get("tool_calls", ())]
        return tuple(dict.fromkeys(call["name"] for call in calls))


MENDS = Story("Mend the broken link in docs/guide.md.", "demo.jsonl", 6)
IS_LIMITED = Story("Read every page twice.", "demo-limit.jsonl", 2)


def demo(
    *,
    slow: Annotated[
        bool,
        typer.Option("--slow", help="One run whose turns take seconds, to be watched and approved on the page."),
    ] = False,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """See it work: a run is killed and goes on, asks before it changes a file, and another one meets its limit.

    A script stands in for the model: no key, no network. It works in a folder of its own.
    """
    given = flags
    folder = Path(tempfile.mkdtemp(prefix="kairos-demo-")).resolve()
    workspace = folder / "project"
    for name, text in FILES.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text, encoding="utf-8")
    if flags.home is None and not slow:  # the page shows the runs of the usual state folder
        flags = replace(flags, home=str(folder / "state"))
    settings = settings_here(replace(flags, workspaces=(str(workspace),)))
    say = _say_nothing if as_json else print_note
    say("This is a demo: a script stands in for the model and can't think. The loop, its tools, its")
    say(f"limits and its record are the real ones. It works in a folder of its own:\n{folder}\n")
    if slow:
        say(f"Watch it in another terminal: {shell_command(flags, 'ui')}\n")
        report = _follow(settings, MENDS, quiet=as_json, turn_s=SLOW_S)
        return print_ending(report, flags, as_json=as_json)

    key = os.urandom(8).hex()
    say(f"1. Another process works on a goal, and is killed in the middle.\n\ngoal  {MENDS.goal}")
    _run_and_kill(settings, MENDS, key, flags, quiet=as_json)
    say("\n2. This process goes on with it. What was answered comes from the record; only the turn that")
    say("   was under way is asked for again. The run asks before it changes a file.\n")
    report = _follow(settings, MENDS, key=key, quiet=as_json)
    code = print_ending(report, flags, as_json=as_json)
    if as_json:
        return code
    say(f"\n3. A run that may take {IS_LIMITED.rounds} rounds, and wants more.\n\ngoal  {IS_LIMITED.goal}")
    print_ending(_follow(settings, IS_LIMITED), flags)
    print_line("\nLook at the first run:  " + shell_command(flags, "show", report.run_id))
    print_line("Verify it:              " + shell_command(flags, "replay", report.run_id))
    print_line("Add it to your host:    " + shell_command(given, "install", "claude-code", "--write"))
    return code


def _say_nothing(_text: str) -> None:
    """In place of notes, where stdout has one JSON document alone."""


def _follow(
    settings: Settings, story: Story, *, key: str | None = None, quiet: bool = False, turn_s: float | None = None
) -> RunReport:
    """Start a run, or go on with the one of this key, and follow it until it rests. What it asks for is approved where
    no person is at the terminal; with `turn_s` it is left to somebody elsewhere."""
    script, request = _write_script(settings, story, turn_s), _request(settings, story, key)

    async def start_and_follow(app: App) -> RunReport:
        run_id = (await app.runs.start(request, PERSON)).run_id
        await app.control.drive(run_id)
        async with open_follower(app, PERSON, quiet=quiet, asks=turn_s is None) as follower:
            report = await follower.follow(run_id, from_start=True)
            if turn_s is not None or (is_person_there() and not quiet):
                return report
            for item in report.waiting:
                await _approve(app, report, item, quiet=quiet)
            return await follower.follow(run_id)

    return with_app(replace(settings, script=script), start_and_follow)


async def _approve(app: App, report: RunReport, item: JsonObject, *, quiet: bool) -> None:
    """Show what a run asks for, and approve it in the place of a person."""
    for line in () if quiet else approval_lines(report, item):
        print_note(line)
    if not quiet:
        print_note("Nobody is at this terminal, so the demo approves it itself.\n")
    await app.answers.decide(report.run_id, item["key"], "approve", None, PERSON, digest=item["digest"])


def _request(settings: Settings, story: Story, key: str | None) -> PlannerRequest:
    """The same as `run` makes of the words in `_run_and_kill`."""
    return PlannerRequest(
        goal=story.goal,
        tools=story.tools,
        route=SCRIPTED.name,
        limits=Limits(rounds=story.rounds),
        workspace=str(settings.workspaces[0]),
        key=key or os.urandom(8).hex(),
    )


def _write_script(settings: Settings, story: Story, turn_s: float | None) -> Path:
    """Write the run's script into the folder. `turn_s`: how long each turn takes, if not as the script says."""
    turns = story.turns if turn_s is None else [{**turn, "delay_s": turn_s} for turn in story.turns]
    file = settings.workspaces[0] / story.script
    file.write_text("".join(canonical_json(turn) + "\n" for turn in turns), encoding="utf-8")
    return file


def _run_and_kill(settings: Settings, story: Story, key: str, flags: Flags, *, quiet: bool) -> None:
    """Start the run in another process, show what it prints, and kill it while its model thinks."""
    words = [*installed_words(), "run", story.goal, "--route", SCRIPTED.name, "--key", key]
    words += ["--limit", f"rounds={story.rounds}", *(word for name in story.tools for word in ("--tools", name))]
    words += ["--workspace", str(settings.workspaces[0]), "--home", str(settings.home)]
    words += ["--config", flags.config] if flags.config else []
    environ = {**os.environ, "KAIROS_SCRIPT": str(_write_script(settings, story, None)), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        words,
        cwd=settings.workspaces[0],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stderr is not None
        for line in other.stderr:
            if not quiet:
                print_note(line.rstrip("\n"))
            if re.match(rf" *\+ {KILLED_AFTER} ", line):
                other.kill()
                if not quiet:
                    print_note(f"  kill -9 {other.pid}")
                break
