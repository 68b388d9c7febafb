"""`run`: start a run in the terminal, on the folder that it is in."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.converse import begin_run, converse, find_conversation
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.follow import follow_and_print, follow_run, print_ending
from kairos_mcp.cli.options import AllFlags, AsJson, AtLimitOption, RouteOption
from kairos_mcp.cli.output import usage_line
from kairos_mcp.cli.settings import current_workspace, parse_limits, settings_here
from kairos_mcp.cli.terminal import Prose, print_json, print_note
from kairos_mcp.core.builtin_tools import BUILTIN, names_where
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.plan import goal_of
from kairos_mcp.core.routes import AUTO, PAID_ROUTES
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    pass


def run(
    goal: Annotated[
        str | None, typer.Argument(metavar="GOAL", help="What to do; - reads it from stdin, -i asks for it.")
    ] = None,
    *,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="A conversation: each line continues the previous run."),
    ] = False,
    route: RouteOption = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="A limit, as rounds=8; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model to ask, as openai:gpt-5.")] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="The agent that works on it; `agents` lists them.")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            metavar="GLOB",
            help="Tools it may use, as 'edit_*'; repeatable. Default: those that read, or the agent's.",
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Also the tools that edit files. Each edit asks you first.")
    ] = False,
    shell: Annotated[
        bool, typer.Option("--shell", help="Also the tool that runs commands. Each command asks you first.")
    ] = False,
    stage: Annotated[
        bool | None,
        typer.Option("--stage/--no-stage", help="Edit and run programs unasked, then ask once about one diff."),
    ] = None,
    at_limit: AtLimitOption = "end",
    team: Annotated[bool, typer.Option("--team", help="Several agents: plan, tasks side by side, one answer.")] = False,
    agents: Annotated[
        list[str] | None,
        typer.Option("--agents", metavar="NAME", help="With --team: who may get tasks; repeatable. Default: all."),
    ] = None,
    max_parallel: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=16, help="With --team: how many tasks at once. Default: 4.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="With --team: carry out this plan, as JSON.")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Print a team's plan as JSON, and don't carry it out.")
    ] = False,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The same key returns the same run.")] = None,
    continues: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="[RUN]",
            help="Continue a conversation: that of RUN, or the newest of this workspace.",
        ),
    ] = None,
    from_round: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ROUND",
            help="With --continue RUN: continue from before a round, as round-3, or before a step of a plan, a team "
            "or cycles, as synthesis or cycle-2/decide. Without GOAL the model is asked there again.",
        ),
    ] = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Work on a goal in this folder, in the terminal.

    Exit codes: 0 completed, 1 failed, 2 wrong use, 3 waiting for an answer, 4 stopped by a limit or a guard, 130
    cancelled.
    """
    is_team = team or plan is not None or plan_only
    contradictions = (
        (interactive and as_json, "--json is for a single run.", "Leave out --json or -i."),
        (
            from_round is not None and continues is None,
            "--from goes with --continue.",
            '`kairos-mcp run --continue RUN --from round-3 "GOAL"`',
        ),
        (is_team and (interactive or continues is not None), "A team has no single conversation.", "Leave out -i."),
        (is_team and agent is not None, "--agent is for a single run.", "--agents says who may be given a task."),
        (
            is_team and at_limit == "ask",
            "Each task of a team has a share of its limits, so nobody can be asked about one.",
            "Leave out --at-limit; `kairos-mcp extend` gives a team more while it runs.",
        ),
        (plan is not None and plan_only, "--plan carries out a plan, --plan-only makes one.", "Leave out one of them."),
        (
            not is_team and bool(agents or max_parallel),
            "--agents and --max-parallel are for a team.",
            '`kairos-mcp run --team "GOAL"`',
        ),
    )
    for holds, message, hint in contradictions:
        if holds:
            raise BadArguments(message, hint)
    given = None if plan is None else _read_plan(plan)
    if goal == "-" or (goal is None and not (interactive or from_round or given) and not sys.stdin.isatty()):
        goal = _read_goal()
    goal = (goal or "").strip() or ("" if given is None else goal_of(given))
    if not goal and not interactive and from_round is None:
        raise BadArguments("There is no goal.", 'Say what to do: `kairos-mcp run "GOAL"`.')
    settings = _with_model(settings_here(flags), model, route)
    chosen = (*(tools or ()), *_preset(write=write, shell=shell)) or None
    if is_team:
        team_request = TeamRequest(
            goal,
            given,
            agents=tuple(agents or ()) or None,
            tools=chosen,
            max_parallel=max_parallel,
            model=model,
            route=route or "auto",
            limits=parse_limits(tuple(limit or ())),
            workspace=str(current_workspace(settings)),
            key=key,
            plans_only=plan_only,
            stage=stage,
        )
        return _run_team(settings, team_request, flags, as_json=as_json)
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
        tools=chosen,
        from_round=from_round,
        agent=agent,
        stage=stage,
        at_limit=at_limit,
    )
    if continued is not None:
        agent = request.agent or continued.agent
        kept = continued.tools if agent == continued.agent else None  # another agent has its own
        run_id, folder = continued.run_id, continued.workspace
        request = replace(request, continues=run_id, workspace=folder, agent=agent, tools=request.tools or kept)
    if interactive:
        if _lacks_model(settings, request):
            raise ConfigError("No model is configured, so there is nobody to talk to.", _how_to_give_a_model(settings))
        return converse(flags, settings, request, continued)
    if not as_json:
        _note_missing_model(settings, request)
    begin = partial(begin_run, request=request)
    return follow_and_print(settings, begin, flags, as_json=as_json, from_start=True)


def _with_model(settings: Settings, model: str | None, route: str | None) -> Settings:
    """Return the settings with the model of the command as the configured one, where none is configured and a provider
    is to be asked. Raises BadArguments for a name without a provider."""
    asked = route or settings.route
    has_other = settings.model or (asked == AUTO and settings.script)
    if model is None or has_other or asked not in (AUTO, *PAID_ROUTES):
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


def _preset(*, write: bool, shell: bool) -> tuple[str, ...]:
    """Return the built-in tools that read, with those that edit and run commands as far as they are wanted; none, and
    so the default, where neither is."""
    if not (write or shell):
        return ()
    wanted = {"workspace", "commands"} if shell else {"workspace"}
    known = names_where(lambda tool: tool.claude_name is not None and tool.needs in wanted)  # not those of cycles
    return tuple(name for name in known if write or BUILTIN[name].edits == "none")


def _read_goal() -> str:
    """Read the goal from stdin. Raises BadArguments."""
    from kairos_mcp.settings.bounded_files import read_stdin_bounded

    try:
        return read_stdin_bounded()
    except (OSError, UnicodeDecodeError) as error:
        raise BadArguments(f"The goal can't be read from stdin: {error}.", "Give it as UTF-8.") from error


def _read_plan(file: Path) -> JsonObject:
    """Read a plan from a file; what is wrong in it is found when the team is started. Raises BadArguments."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise BadArguments(f"--plan {file}: {what}.", '`kairos-mcp run --plan-only "GOAL"` prints one.') from error
    if not isinstance(found, dict):
        raise BadArguments(
            f"--plan {file}: it is not a JSON object.", '`kairos-mcp run --plan-only "GOAL"` prints one.'
        )
    return found


def _run_team(settings: Settings, request: TeamRequest, flags: Flags, *, as_json: bool) -> int:
    """Run a team, or print its plan: on stdout nothing else, so that it can be piped into a file."""
    if not as_json:
        _note_missing_model(settings, request)
    report = follow_run(settings, partial(begin_run, request=request), quiet=as_json, from_start=True)
    if not request.plans_only or as_json or report.status != "completed":
        return print_ending(report, flags, as_json=as_json)
    print_json(report.output, is_to_be_edited=True)
    for note in report.degraded:
        print_note(Prose(f"note: {note}"))
    print_note(Prose(usage_line(report)))
    return COMPLETED


def _lacks_model(settings: Settings, request: PlannerRequest | TeamRequest) -> bool:
    return request.route == "auto" and settings.route == "auto" and not (settings.model or settings.script)


def _note_missing_model(settings: Settings, request: PlannerRequest | TeamRequest) -> None:
    if _lacks_model(settings, request):
        print_note(Prose(f"No model is configured, so you are asked in its place. {_how_to_give_a_model(settings)}"))
