"""`run` and `demo`: start planner runs in the terminal, on the folder that it is in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.converse import begin_planner, continue_with, converse, find_conversation
from kairos_mcp.cli.follow import follow_run, print_ending
from kairos_mcp.cli.options import AllFlags, AsJson, RouteOption
from kairos_mcp.cli.output import shell_command
from kairos_mcp.cli.settings import current_workspace, parse_limits, settings_here
from kairos_mcp.cli.terminal import Prose, print_line, print_note
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings, packaged_config

if TYPE_CHECKING:
    from kairos_mcp.views.run_report import RunReport

DEMO_GOAL = "Look around in this folder and say what is there."
SMALL_BYTES = 200_000  # of a file that the demo reads


def run(
    goal: Annotated[str | None, typer.Argument(metavar="GOAL", help="What is to be done; -i asks for it.")] = None,
    *,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="A conversation: each line goes on from the run before."),
    ] = False,
    route: RouteOption = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="As rounds=8; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model to ask, as openai:gpt-5.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Who works on it, as `agents` lists them.")] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            metavar="GLOB",
            help="Tools it may use, as 'edit_*'; repeatable. Default: those that read, or the agent's.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The same key gives the same run.")] = None,
    continues: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="[RUN]",
            help="Go on with a conversation, without RUN with the newest of this workspace.",
        ),
    ] = None,
    from_round: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ROUND",
            help="With --continue RUN: go on from what the model was asked in a round of it, as round-3; of any run.",
        ),
    ] = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Work on a goal in this folder, in the terminal.

    Exit codes: 0 completed, 1 failed, 2 wrong use, 3 waiting for an answer, 130 cancelled.
    """
    if interactive and as_json:
        raise BadArguments("--json is for a single run.", "Leave out --json or -i.")
    if from_round is not None and continues is None:
        raise BadArguments("--from goes with --continue.", '`kairos-mcp run --continue RUN --from round-3 "GOAL"`')
    goal = (goal or "").strip()
    if not goal and not interactive:
        raise BadArguments("There is no goal.", 'Say what is to be done: `kairos-mcp run "GOAL"`.')
    settings = _with_model(settings_here(flags), model, route)
    continued = None
    if continues is not None:
        settings, continued = find_conversation(flags, settings, continues, from_round)
    request = PlannerRequest(
        goal=goal,
        model=model,
        route=route or "auto",
        limits=parse_limits(tuple(limit or ())),
        workspace=str(current_workspace(settings)),
        key=key,
        tools=tuple(tools or ()) or None,
        from_round=from_round,
        agent=agent,
    )
    if continued is not None:
        request = continue_with(request, continued)
    lacks_model = request.route == "auto" and settings.route == "auto" and not (settings.model or settings.script)
    if interactive:
        if lacks_model:
            raise ConfigError("No model is configured, so there is nobody to talk to.", _how_to_give_a_model(settings))
        return converse(flags, settings, request, continued)
    if lacks_model and not as_json:
        print_note(Prose(f"No model is configured, so you are asked in its place. {_how_to_give_a_model(settings)}"))
    return print_ending(_run_planner(settings, request, quiet=as_json), flags, as_json=as_json)


def demo(*, as_json: AsJson = False, flags: AllFlags) -> int:
    """See the loop work on this folder: a script stands in for the model, no key needed."""
    settings = settings_here(flags)
    workspace = current_workspace(settings)
    if not as_json:
        print_note("This is a demo: a script (config/demo.jsonl) stands in for the model and can't think.")
        print_note("The loop, its tools, its limits and its record are the real ones.\n")
        print_note(f"folder {workspace}\ngoal   {DEMO_GOAL}\n")
    with tempfile.TemporaryDirectory(prefix="kairos-demo-") as folder:
        script = Path(folder) / "demo.jsonl"
        script.write_text(_script_for(workspace), encoding="utf-8")
        request = PlannerRequest(
            goal=DEMO_GOAL,
            route="scripted",
            limits=Limits(rounds=6),
            workspace=str(workspace),
            key=os.urandom(8).hex(),
        )
        report = _run_planner(replace(settings, script=script), request, quiet=as_json)
    code = print_ending(report, flags, as_json=as_json)
    if not as_json:
        install = ("install", "claude-code", "--workspace", ".", "--write")
        print_line("\nLook at it:       " + shell_command(flags, "show", report.run_id))
        print_line("Verify it:        " + shell_command(flags, "replay", report.run_id))
        print_line("Give it a model:  " + shell_command(flags, *install))
    return code


def _with_model(settings: Settings, model: str | None, route: str | None) -> Settings:
    """Return the settings with the model of the command as the configured one, where none is configured and a provider
    is to be asked. Raises BadArguments for a name without a provider."""
    asked = route or settings.route
    has_other = settings.model or (asked == "auto" and settings.script)
    if model is None or has_other or asked not in ("auto", "provider"):
        return settings
    if ":" not in model:
        raise BadArguments(f"--model {model[:80]!r} names no provider.", f"As --model openai:{model[:80]}.")
    return replace(settings, model=model)


def _how_to_give_a_model(settings: Settings) -> str:
    """Say how to give one, for a person in a terminal."""
    return (
        "Set its name and its key, as KAIROS_MODEL=openai:gpt-5 and OPENAI_API_KEY, or anthropic:NAME and "
        "ANTHROPIC_API_KEY; for a server of your own also KAIROS_BASE_URL. To keep the name: "
        f'model = "openai:gpt-5" in {settings.home / "kairos.toml"}.'
    )


def _run_planner(settings: Settings, request: PlannerRequest, *, quiet: bool = False) -> RunReport:
    """Start a run and follow it until it rests."""
    return follow_run(settings, partial(begin_planner, request=request), quiet=quiet, from_start=True)


def _script_for(workspace: Path) -> str:
    """The demo's script with the name of a file of this folder; without the line that reads one if there is none."""
    lines = (packaged_config() / "demo.jsonl").read_text(encoding="utf-8").splitlines()
    name = next(_text_files(workspace), None)
    if name is None:
        return "\n".join(line for line in lines if "$file" not in line) + "\n"
    return "\n".join(line.replace("$file", canonical_json(name)[1:-1]) for line in lines) + "\n"


def _text_files(workspace: Path) -> Iterator[str]:
    """Names of small text files right in the folder, a README first."""
    try:
        entries = sorted(workspace.iterdir(), key=lambda entry: (entry.stem.lower() != "readme", entry.name))
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(".") and not entry.is_symlink() and entry.is_file() and _is_small_text(entry):
            yield entry.name


def _is_small_text(file: Path) -> bool:
    try:
        file.name.encode()
        with file.open("rb") as stream:
            head = stream.read(SMALL_BYTES)
        head.decode()
    except (OSError, UnicodeError):
        return False
    return len(head) < SMALL_BYTES and b"\0" not in head and "\\" not in file.name
