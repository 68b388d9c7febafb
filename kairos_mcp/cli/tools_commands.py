"""`tools …`: the tools that an agent may be given, and who approves them."""

from __future__ import annotations

from typing import Annotated

import typer

from kairos_mcp.cli.options import AllFlags, AsJson, StateFlags

ToolName = Annotated[str, typer.Argument(metavar="NAME", help="A tool, or a definition as SOURCE/NAME.")]
Address = Annotated[str, typer.Argument(metavar="SOURCE/NAME", help="A definition, as `tools list` names it.")]
Pin = Annotated[str | None, typer.Option("--pin", metavar="PIN", help="The very definition, as `tools show` says it.")]


def listing(*, as_json: AsJson = False, flags: AllFlags) -> int:
    """Every tool: its name, effect, source, category, and whether it waits for approval."""
    from kairos_mcp.cli.tools import list_tools

    return list_tools(flags, as_json=as_json)


def show(name: ToolName, *, as_json: AsJson = False, flags: AllFlags) -> int:
    """One tool: its schema, its pin, and what has changed since it was approved."""
    from kairos_mcp.cli.tools import show_tool

    return show_tool(flags, name, as_json=as_json)


def call(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tool, as `tools list` names it.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments, as one JSON object.")] = "{}",
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Call one tool: through the same gate, budget and record as a call of a run."""
    from kairos_mcp.cli.tools import call_tool

    return call_tool(flags, name, arguments, as_json=as_json)


def approve(address: Address, *, pin: Pin = None, as_json: AsJson = False, flags: AllFlags) -> int:
    """Let a definition count that is new or has changed. Without --pin: show it, and the command that approves it."""
    from kairos_mcp.cli.tools import approve_tool

    return approve_tool(flags, address, pin, as_json=as_json)


def remove(address: Address, *, pin: Pin = None, as_json: AsJson = False, flags: AllFlags) -> int:
    """Let a definition count no more, or never: whatever waits or counts under that name."""
    from kairos_mcp.cli.tools import remove_tool

    return remove_tool(flags, address, pin, as_json=as_json)


def import_servers(
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
        typer.Option("--operation", metavar="ID", help="An operation of it; repeatable. Without one: all are listed."),
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Where it is served, if the document does not say.")
    ] = None,
    secret: Annotated[
        str | None, typer.Option("--secret", metavar="REF", help="Where the key lies that it wants, as env:NAME.")
    ] = None,
    reads: Annotated[bool, typer.Option("--reads", help="State that GET and HEAD only read.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Append the lines to the file of settings.")] = False,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Take over servers from another program, or HTTP tools from an OpenAPI document: the lines for kairos.toml."""
    from kairos_mcp.cli.tools_import import ImportOptions, import_tools

    wanted = ImportOptions(tuple(operation or ()), server, secret, reads) if openapi else None
    if wanted is None and (operation or server or secret or reads):
        raise typer.BadParameter("--operation, --server, --secret and --reads go with --openapi.")
    return import_tools(flags, file, wanted, write=write, as_json=as_json)
