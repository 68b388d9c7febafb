"""Commands that steer a run, each made of its operation: `pause`, `resume`, `cancel`, `extend`, `reroute`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kairos_mcp.app.operations.control import CONTROL_OPERATIONS, Extend
from kairos_mcp.app.operations.operation import Command, OperationField, RunOperation, describe, fields_of
from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.follow import follow_and_print
from kairos_mcp.cli.options import AllFlags, AsJson, Principal, Run
from kairos_mcp.cli.output import shell_command
from kairos_mcp.cli.session import find_target, find_target_to_drive, with_app
from kairos_mcp.cli.settings import parse_limits
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.limits_table import set_limits_to_json
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.views.run_report import RunReport

EXIT_CODES = "Exit codes are those of `run`."


def make_command(form: type[RunOperation], how: Command) -> Callable[..., int]:
    """Return the command of an operation: its fields are required arguments, or options; limits are options."""
    options = {field.name: field for field in fields_of(form)}

    def command(run: str, *, principal: str | None = None, as_json: bool = False, flags: Flags, **typed: Any) -> int:
        values = {name: _read_value(options[name], value) for name, value in typed.items()}
        target = (find_target_to_drive if how.follows else find_target)(flags, run, principal)
        operation, run_id, caller = form(run=target.run_id, **values), target.run_id, target.caller

        async def act(app: App) -> str:
            await operation.do(app, caller)
            await app.control.drive(run_id)
            return run_id

        async def act_and_look(app: App) -> RunReport:
            await operation.do(app, caller)
            if how.until is not None:
                await app.runs.wait([run_id], until=how.until, wait_s=how.wait_s, caller=caller)
            return await app.runs.report(run_id, caller, full=False)

        if how.follows:
            return follow_and_print(target.settings, act, flags, as_json=as_json, caller=caller)
        report = with_app(target.settings, act_and_look)
        emit(report.as_json(), _lines(report, operation, flags), as_json=as_json)
        return COMPLETED if how.ends_as in (None, report.status) else FAILED

    own = (inspect.Parameter(name, _BY_NAME, **_typer_option(field)) for name, field in options.items())
    shared = inspect.signature(_shared_options, eval_str=True).parameters
    command.__signature__ = inspect.Signature([shared["run"], *own, *list(shared.values())[1:]])  # type: ignore[attr-defined]  # typer reads it
    command.__doc__ = "\n\n".join([describe(form), *([EXIT_CODES] if how.follows else [])])
    return command


def _shared_options(run: Run, *, principal: Principal = None, as_json: AsJson = False, flags: AllFlags) -> None:
    """The options that all of these commands have, before and after those of their own."""


_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def _typer_option(field: OperationField) -> Mapping[str, Any]:
    """Return the annotation of a field's option, and its default if it has one."""
    help_ = field.argument.help
    if field.type is Limits:
        repeated = typer.Option("--limit", metavar="KEY=VALUE", help=help_)
        return {"annotation": Annotated[list[str] | None, repeated], "default": None}
    if field.is_required:
        return {"annotation": Annotated[field.type, typer.Argument(metavar=field.name.upper(), help=help_)]}
    return {"annotation": Annotated[field.type, typer.Option(help=help_)], "default": field.default}


def _read_value(field: OperationField, typed: Any) -> Any:
    """Return the value of a field as it was typed. Raises BadArguments."""
    if field.type is not Limits:
        return typed
    if not typed:
        raise BadArguments("Which limit, and how much more?", "As --limit rounds=5.")
    return parse_limits(tuple(typed))


def _lines(report: RunReport, operation: RunOperation, flags: Flags) -> Iterator[str]:
    is_paused = report.status == "paused"
    match operation.kind.name:
        case "pause" if is_paused:
            yield f"run {report.run_id} is paused; it goes on with"
            yield f"  {shell_command(flags, 'resume', report.run_id)}"
        case "pause":
            yield f"run {report.run_id} is {report.status}; it pauses as soon as what is under way has ended"
        case "extend" if is_paused:
            yield f"stored for run {report.run_id}, which is paused; it counts once the run goes on"
        case "extend":
            assert isinstance(operation, Extend)
            names = [name for name in set_limits_to_json(operation.limits) if report.remaining[name] is not None]
            left = ", ".join(f"{report.remaining[name]:,g} {name}" for name in names)
            yield f"run {report.run_id} is {report.status}, with {left} left"
        case _:
            yield f"run {report.run_id} is {report.status}"


COMMANDS = {
    form.kind.name: make_command(form, form.kind.command)
    for form in CONTROL_OPERATIONS
    if isinstance(form.kind.command, Command)
}
globals().update(COMMANDS)  # each under its name, by which the table of all commands finds it
