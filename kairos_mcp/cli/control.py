"""Commands that steer a run: `resume`, `pause`, `extend`, `reroute`, `cancel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.follow import follow_run, print_ending
from kairos_mcp.cli.options import AllFlags, AsJson, Principal, Run
from kairos_mcp.cli.output import shell_command
from kairos_mcp.cli.session import find_target, find_target_to_drive, with_app
from kairos_mcp.cli.settings import parse_limits
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.routes import RouteName
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.views.run_report import RunReport

PAUSE_WAIT_S = 5  # what is under way ends first


def resume(run: Run, *, principal: Principal = None, as_json: AsJson = False, flags: AllFlags) -> int:
    """Go on with a run that was paused, or whose process died.

    Exit codes are those of `run`.
    """
    target = find_target_to_drive(flags, run, principal)

    async def begin(app: App) -> str:
        await app.control.resume(target.run_id, target.caller)
        return target.run_id

    report = follow_run(target.settings, begin, quiet=as_json, caller=target.caller)
    return print_ending(report, flags, as_json=as_json)


def pause(run: Run, *, principal: Principal = None, as_json: AsJson = False, flags: AllFlags) -> int:
    """Pause a run: what is under way ends, and nothing new begins until it is resumed."""
    target = find_target(flags, run, principal)

    async def pause_and_look(app: App) -> RunReport:
        await app.control.pause(target.run_id, target.caller)
        await app.runs.wait([target.run_id], until="attention", wait_s=PAUSE_WAIT_S, caller=target.caller)
        return await app.runs.report(target.run_id, target.caller, full=False)

    report = with_app(target.settings, pause_and_look)
    emit(report.as_json(), _paused_lines(report, flags), as_json=as_json)
    return COMPLETED


def extend(
    run: Run,
    *,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="How much more, as rounds=5; repeatable.")
    ] = None,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Add to the limits of a run that has not ended."""
    more = parse_limits(tuple(limit or ()))
    if not limit:
        raise BadArguments("Which limit, and how much more?", "As --limit rounds=5.")
    target = find_target(flags, run, principal)

    async def extend_and_look(app: App) -> RunReport:
        await app.control.extend(target.run_id, more, target.caller)
        return await app.runs.report(target.run_id, target.caller, full=False)

    report = with_app(target.settings, extend_and_look)
    names = [text.partition("=")[0] for text in limit]
    emit(report.as_json(), _extended_lines(report, names), as_json=as_json)
    return COMPLETED


def reroute(
    run: Run,
    route: Annotated[RouteName, typer.Argument(metavar="ROUTE", help="Where its completions come from, from now on.")],
    *,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Change where a run's completions come from, and go on with it.

    Exit codes are those of `run`.
    """
    target = find_target_to_drive(flags, run, principal)

    async def begin(app: App) -> str:
        await app.control.reroute(target.run_id, route, target.caller)
        await app.control.drive(target.run_id)
        return target.run_id

    report = follow_run(target.settings, begin, quiet=as_json, caller=target.caller)
    return print_ending(report, flags, as_json=as_json)


def cancel(run: Run, *, principal: Principal = None, as_json: AsJson = False, flags: AllFlags) -> int:
    """Cancel a run; what it did is kept."""
    target = find_target(flags, run, principal)
    run_id, caller = target.run_id, target.caller

    async def cancel_and_wait(app: App) -> RunReport:
        await app.control.cancel(run_id, caller)
        await app.runs.wait([run_id], until="done", wait_s=30, caller=caller)
        return await app.runs.report(run_id, caller)

    report = with_app(target.settings, cancel_and_wait)
    emit(report.as_json(), [f"run {run_id} is {report.status}"], as_json=as_json)
    return COMPLETED if report.status == "cancelled" else FAILED


def _paused_lines(report: RunReport, flags: Flags) -> Iterator[str]:
    if report.status == "paused":
        yield f"run {report.run_id} is paused; it goes on with"
        yield f"  {shell_command(flags, 'resume', report.run_id)}"
    else:
        yield f"run {report.run_id} is {report.status}; it pauses as soon as what is under way has ended"


def _extended_lines(report: RunReport, names: list[str]) -> Iterator[str]:
    if report.status == "paused":
        yield f"stored for run {report.run_id}, which is paused; it counts once the run goes on"
        return
    left = ", ".join(f"{report.remaining[name]:,g} {name}" for name in names if report.remaining[name] is not None)
    yield f"run {report.run_id} is {report.status}, with {left} left"
