"""`tools list, show, call, approve, remove`: the tools that an agent may be given, and their approval by a person."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED, FAILED, WAITING
from kairos_mcp.cli.follow import follow_run, print_ending
from kairos_mcp.cli.options import AllFlags, AsJson, StateFlags
from kairos_mcp.cli.output import shell_command
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import read_settings, settings_here
from kairos_mcp.cli.terminal import Line, diff_lines, emit, one_line, print_note
from kairos_mcp.core.errors import BadArguments, NotFound
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.tools import (
        DecidedDefinitions,
        DefinitionDecision,
        PendingDefinition,
        ToolDetails,
        ToolSummary,
    )

ToolName = Annotated[str, typer.Argument(metavar="NAME", help="A tool, or a definition as SOURCE/NAME.")]
Address = Annotated[str, typer.Argument(metavar="SOURCE/NAME", help="A definition, as `tools list` names it.")]
Pin = Annotated[
    str | None, typer.Option("--pin", metavar="PIN", help="Exactly which definition, as `tools show` prints it.")
]


def list_tools(*, as_json: AsJson = False, flags: AllFlags) -> int:
    """List every tool: its name, effect, source, category, and whether it waits for approval."""

    async def read_tools(app: App) -> tuple[tuple[ToolSummary, ...], tuple[str, ...]]:
        return await app.tools.list_all()  # starts a server that was never asked for its tools

    tools, notes = with_app(settings_here(flags), read_tools)
    lines = (f"{tool.name:<32} {tool.effect:<12} {tool.source:<18} {tool.category:<16} {tool.state}" for tool in tools)
    emit({"tools": [tool.as_json() for tool in tools], "notes": list(notes)}, lines, as_json=as_json)
    if as_json:
        return COMPLETED
    for note in notes:
        print_note(f"note: {note}")
    for tool in tools:
        if tool.state in ("new", "changed") and tool.address is not None:
            print_note(f"waits: {shell_command(flags, 'tools', 'show', tool.address)}")
    return COMPLETED


def show(name: ToolName, *, as_json: AsJson = False, flags: AllFlags) -> int:
    """Show one tool: its schema, its pin, and what has changed since it was approved."""
    details = _read_details(flags, name)
    emit(details.as_json(), _details_lines(details, flags), as_json=as_json)
    return COMPLETED


def call(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tool, as `tools list` names it.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments, as one JSON object.")] = "{}",
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Call one tool: through the same gate, budget and record as a call of a run."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise BadArguments("The arguments are not a JSON object.", 'As \'{"path": "README.md"}\'.')

    async def begin(app: App) -> str:
        return await app.runs.start_call(name, parsed, PERSON)

    report = follow_run(settings_here(flags), begin, quiet=as_json)
    code = print_ending(report, flags, as_json=as_json)
    is_error = isinstance(report.output, dict) and report.output.get("is_error")
    return FAILED if code == COMPLETED and is_error else code


def approve(address: Address, *, pin: Pin = None, as_json: AsJson = False, flags: AllFlags) -> int:
    """Approve a definition that is new or has changed. Without --pin: show it, and the command that approves it."""
    if pin is not None:
        return _decide(flags, address, "approved", pin, as_json=as_json)
    # without its pin nothing is approved: the definition may change between the look and the command
    details = _read_details(flags, address)
    if _pending_definition(details) is None:
        raise NotFound("Nothing waits under that name.", "`kairos-mcp tools list` shows what waits.")
    emit(details.as_json(), [*details.remarks, *_pending_lines(details, flags)], as_json=as_json)
    return WAITING


def remove(address: Address, *, pin: Pin = None, as_json: AsJson = False, flags: AllFlags) -> int:
    """Withdraw or reject definitions: all of that name, approved or waiting, or with --pin only that one."""
    return _decide(flags, address, "removed", pin, as_json=as_json)


def import_tools(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help=".mcp.json, claude_desktop_config.json or .vscode/mcp.json; with --openapi a document or its URL.",
        ),
    ],
    *,
    openapi: Annotated[bool, typer.Option("--openapi", help="FILE is an OpenAPI 3 document.")] = False,
    operation: Annotated[
        list[str] | None,
        typer.Option("--operation", metavar="ID", help="An operation to import; repeatable. Without one: list all."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="The only server to call; required with a key."),
    ] = None,
    secret: Annotated[
        str | None, typer.Option("--secret", metavar="REF", help="Where its key is kept, as env:NAME.")
    ] = None,
    reads: Annotated[bool, typer.Option("--reads", help="State that GET and HEAD only read.")] = False,
    effects: Annotated[
        bool,
        typer.Option(
            "--effects",
            help="Show what the servers start, ask, start them, and add what their tools state, as comments.",
        ),
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Append the lines to the settings file.")] = False,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Import servers from another program, or HTTP tools from an OpenAPI document, as lines for kairos.toml."""
    from kairos_mcp.cli.tools_import import OpenApiOptions, import_openapi, import_servers

    if openapi:
        if effects:
            raise typer.BadParameter("--effects is for servers; with --openapi use --reads.")
        options = OpenApiOptions(tuple(operation or ()), server, secret, reads)
        return import_openapi(flags, file, options, write=write, as_json=as_json)
    if operation or server or secret or reads:
        raise typer.BadParameter("--operation, --server, --secret and --reads need --openapi.")
    return import_servers(flags, file, effects=effects, write=write, as_json=as_json)


def _decide(flags: Flags, address: str, decision: DefinitionDecision, pin: str | None, *, as_json: bool) -> int:
    async def decide(app: App) -> DecidedDefinitions:
        return await app.tools.decide(address, decision, pin, PERSON)

    definitions = with_app(read_settings(flags), decide)
    pins = [{"address": definition.address, "pin": definition.pin} for definition in definitions]
    lines = (f"{decision}: {tool.address} ({tool.offered_name}), pin {tool.pin}" for tool in definitions)
    emit({"state": decision, "definitions": pins}, lines, as_json=as_json)
    return COMPLETED


def _read_details(flags: Flags, name: str) -> ToolDetails:
    async def read_tool(app: App) -> ToolDetails:
        return await app.tools.details(name)

    return with_app(settings_here(flags), read_tool)


def _details_lines(details: ToolDetails, flags: Flags) -> Iterator[Line]:
    yield details.name
    offered = details.offered
    if offered is None:
        yield "  not offered now"
    else:
        yield f"  {offered['effect']} · {offered['category']} · {offered['source']}"
        reaches = offered["reaches"] or "outside (not stated)"
        trusted, private = (f"{'' if offered[label] else 'not '}{label}" for label in ("trusted", "private"))
        yield f"  reaches {reaches} · {trusted} · {private}"
        yield f"  {offered['description']}".replace("\n", "\n  ")
        yield "  arguments " + json.dumps(offered["input_schema"], ensure_ascii=True, indent=2).replace("\n", "\n  ")
        for example in offered.get("examples", ()):
            yield f"  as {one_line(json.dumps(example, ensure_ascii=False), 200)}"
    for remark in details.remarks:
        yield f"  {remark}".replace("\n", "\n  ")
    for definition in details.definitions:
        by = f" by {definition.row.by}" if definition.row.by else ""
        yield f"  {definition.row.state:<8}  {definition.address}  pin {definition.pin}{by}"
    yield from _pending_lines(details, flags)


def _pending_lines(details: ToolDetails, flags: Flags) -> Iterator[Line]:
    """The definition that waits, with its difference from the approved one, and the commands that decide about it."""
    pending = _pending_definition(details)
    if pending is None:
        return
    yield ""
    yield from diff_lines(details.diff)
    yield ""
    yield f"  {shell_command(flags, 'tools', 'approve', pending.address, '--pin', pending.pin)}"
    yield f"  {shell_command(flags, 'tools', 'remove', pending.address, '--pin', pending.pin)}"


def _pending_definition(details: ToolDetails) -> PendingDefinition | None:
    return next((definition for definition in details.definitions if definition.row.state == "pending"), None)
