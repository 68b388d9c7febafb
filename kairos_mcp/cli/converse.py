"""`run -i`: a conversation in the terminal. Each line is a run, which goes on from the one before."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED, STOPPED, WAITING, exit_code_of
from kairos_mcp.cli.follow import Follower, LeftByPerson, open_follower, print_ending
from kairos_mcp.cli.options import NEWEST
from kairos_mcp.cli.output import cause_lines, purpose_line, shell_command, usage_line, workspace_name
from kairos_mcp.cli.session import PERSON, find_target, with_app
from kairos_mcp.cli.talk import Talk, is_command
from kairos_mcp.cli.terminal import Prose, Reply, print_line, print_note
from kairos_mcp.core.errors import BadArguments, UnknownRun
from kairos_mcp.core.routes import AUTO, CALLER, PROVIDER, SCRIPT_ROUTES
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.overview import Conversation
    from kairos_mcp.views.run_report import RunReport


async def begin_run(app: App, request: PlannerRequest | TeamRequest) -> str:
    """Start a run, or take up the open one of an identical start; return its id.

    That one's command was killed, or it waits for a model. Where another model is configured by now, it goes on with
    that; where it can't, a new run begins beside it.
    """
    await app.runs.check_model(request)
    started = await app.runs.start(request, PERSON)
    if not started.attached:
        return started.run_id
    run_id = started.run_id
    change = await app.control.compare_model(run_id, request, PERSON)
    action = "none" if change.action == "another" and request.key is not None else change.action
    match action:
        case "reroute":
            print_note(f"continuing open run {run_id} (same goal), now on the route {change.route}")
            await app.control.reroute(run_id, change.route or AUTO, PERSON)
            await app.control.drive(run_id)
        case "again":
            print_note(f"continuing open run {run_id} (same goal): retrying its provider")
            await app.control.resume(run_id, PERSON)
            await app.control.drive(run_id)
        case "another":
            start = "without this script" if change.route in SCRIPT_ROUTES else "with another model"
            text = f"run {run_id} (same goal) is open and was started {start}, so this starts a new run."
            text += f" To end the other: `kairos-mcp cancel {run_id}`"
            print_note(app.complete_commands(text, PERSON))
            run_id = (await app.runs.start(request, PERSON, is_another=True)).run_id
        case _:
            why = "which auto chose" if change.asked_route == AUTO else "as it was asked for"
            other = (PROVIDER if change.run_route == CALLER.name else CALLER).name
            print_note(f"continuing open run {run_id} (same goal) on the route {change.run_route}, {why}.")
            text = f"Another route: `kairos-mcp reroute {run_id} {other}`. To end it: `kairos-mcp cancel {run_id}`"
            print_note(app.complete_commands(text, PERSON))
            await app.control.drive(run_id)
    return run_id


def find_conversation(
    flags: Flags, settings: Settings, name: str, from_round: str | None
) -> tuple[Settings, Conversation]:
    """Find the conversation to go on with, of this run or the newest of this workspace, with settings for its folder.
    `from_round`: where it is cut. Raises UnknownRun."""

    async def find_newest(app: App) -> str | None:
        return await app.overview.newest_conversation(PERSON)

    run_id = with_app(settings, find_newest) if name == NEWEST else find_target(flags, name).run_id
    if run_id is None:
        raise UnknownRun("There is no conversation in this workspace yet.", "Begin one: `kairos-mcp run -i`.")

    async def find_folder(app: App) -> str | None:
        return (await app.runs.find(run_id, PERSON)).workspace

    if (folder := with_app(settings, find_folder)) is not None:
        settings = replace(settings, workspaces=(Path(folder),))

    async def read(app: App) -> Conversation:
        return await app.overview.read_conversation(run_id, PERSON, from_round)

    return settings, with_app(settings, read)


def converse(flags: Flags, settings: Settings, request: PlannerRequest, continued: Conversation | None) -> int:
    """Start a run for each line of stdin, which goes on from the run before, until the lines end or a run waits. A line
    as `/help` is a command of the conversation.

    The conversation can be left at any time, and be gone on with: a run that has not ended stays as it is. Where the
    first line goes on from a round of an earlier run, that run is neither shown nor moved.
    """
    talk = Talk(request)

    async def hold(app: App) -> int:
        code = COMPLETED
        async with open_follower(app, PERSON, keeps_runs=True) as follower:
            if sys.stdout.isatty():
                app.listen(follower.hear)
            if sys.stdin.isatty():
                model = request.model or settings.model or ("a script" if settings.script else request.route)
                print_note(f"{model} in {request.workspace}; /help lists commands, Ctrl-D leaves")
            if request.from_round is not None:
                print_note(f"from {request.from_round} of run {talk.newest}")
            elif continued is not None:
                code = await _take_up(app, follower, continued, flags)
            line = "" if code in (WAITING, CANCELLED) else request.goal or await _read_goal(follower)
            while code not in (WAITING, CANCELLED) and line:
                if is_command(line):
                    if not await talk.do(line, app, settings, flags):
                        break
                else:
                    code = await _take_turn(
                        app, follower, talk, line.removeprefix("/") if line[:2] == "//" else line, flags
                    )
                line = "" if code in (WAITING, CANCELLED) else await _read_goal(follower)
        return code

    try:
        code = with_app(settings, hold)
    except LeftByPerson:
        code = CANCELLED
    if talk.newest is not None and sys.stdin.isatty():
        print_note(f"\nTo go on later:\n  {shell_command(flags, 'run', '-i', '--continue', talk.newest)}")
    return code


async def _take_turn(app: App, follower: Follower, talk: Talk, goal: str, flags: Flags) -> int:
    """Start a run for a line, follow it, and return its exit code."""
    request = talk.request
    try:
        talk.newest = await begin_run(app, replace(request, goal=goal, continues=talk.newest))
    except BadArguments as refused:  # of this line; the next one may be better
        if not sys.stdin.isatty() or request.from_round is not None:
            raise
        print_note(Prose(f"error: {refused}"))
        return COMPLETED
    code = _print_turn(await follower.follow(talk.newest, from_start=True), follower, flags)
    talk.request = replace(request, key=None, from_round=None)
    return code


async def _take_up(app: App, follower: Follower, continued: Conversation, flags: Flags) -> int:
    """Show where the conversation stands; first go on with its newest run, if that has not ended."""
    if not continued.has_ended:
        await app.control.resume(continued.run_id, PERSON)
        await app.control.drive(continued.run_id)
        return _print_turn(await follower.follow(continued.run_id), follower, flags)
    report = await app.runs.report(continued.run_id, PERSON)
    print_note(Prose(f"run {report.run_id} · {purpose_line(report, workspace_name(report.workspace))}"))
    if told := report.summary or report.record:
        print_note(Prose(f"\n{told}"))
    return COMPLETED


def _print_turn(report: RunReport, follower: Follower, flags: Flags) -> int:
    """Print how a run of the conversation came to rest, and return its exit code: briefly, if all is well."""
    code = exit_code_of(report)
    if code not in (COMPLETED, STOPPED):
        return print_ending(report, flags)
    for line in cause_lines(report, flags) if code == STOPPED else ():
        print_note(line)
    answer = report.summary
    if answer and not follower.was_heard(report.run_id, answer):
        print_line("")
        print_line(Reply(answer))
    print_note(Prose(f"\n{usage_line(report)} · {report.run_id}"))
    return code


async def _read_goal(follower: Follower) -> str:
    """The next line of stdin that is not blank; empty at its end, and on Ctrl-C."""
    prompt = "\n> " if sys.stdin.isatty() else ""
    while (line := await follower.keyboard.ask(prompt)) is not None:
        if line:
            return line
    return ""
