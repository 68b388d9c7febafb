"""The commands `tools …` and their options as typer reads them; each hands over to the file that does it."""

from __future__ import annotations

from typing import Annotated

import typer

from kairos_mcp.cli.options import AsJson, File, Folders, Home
from kairos_mcp.configuration.settings import Flags

tools_app = typer.Typer(help="The tools that an agent may be given, and who approves them.")
ToolName = Annotated[str, typer.Argument(metavar="NAME", help="A tool, or a definition as SOURCE/NAME.")]
Address = Annotated[str, typer.Argument(metavar="SOURCE/NAME", help="A definition, as `tools list` names it.")]
Pin = Annotated[str | None, typer.Option("--pin", metavar="PIN", help="The very definition, as `tools show` says it.")]


@tools_app.command("list")
def tools_list(as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None) -> None:
    """Every tool: its name, effect, source, category, and whether it waits for approval."""
    from kairos_mcp.cli.tools import list_tools

    raise typer.Exit(list_tools(Flags(home, tuple(workspace or ()), config), as_json=as_json))


@tools_app.command("show")
def tools_show(
    name: ToolName, as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None
) -> None:
    """One tool: its schema, its pin, and what has changed since it was approved."""
    from kairos_mcp.cli.tools import show_tool

    raise typer.Exit(show_tool(Flags(home, tuple(workspace or ()), config), name, as_json=as_json))


@tools_app.command("call")
def tools_call(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tool, as `tools list` names it.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments, as one JSON object.")] = "{}",
    *,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Call one tool: through the same gate, budget and record as a call of a run."""
    from kairos_mcp.cli.tools import call_tool

    raise typer.Exit(call_tool(Flags(home, tuple(workspace or ()), config), name, arguments, as_json=as_json))


@tools_app.command("approve")
def tools_approve(
    address: Address,
    pin: Pin = None,
    *,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Let a definition count that is new or has changed. Without --pin: show it, and the command that approves it."""
    from kairos_mcp.cli.tools import approve_tool

    raise typer.Exit(approve_tool(Flags(home, tuple(workspace or ()), config), address, pin, as_json=as_json))


@tools_app.command("remove")
def tools_remove(
    address: Address,
    pin: Pin = None,
    *,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Let a definition count no more, or never: whatever waits or counts under that name."""
    from kairos_mcp.cli.tools import remove_tool

    raise typer.Exit(remove_tool(Flags(home, tuple(workspace or ()), config), address, pin, as_json=as_json))


@tools_app.command("import")
def tools_import(
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
    home: Home = None,
    config: File = None,
) -> None:
    """Take over servers from another program, or HTTP tools from an OpenAPI document: the lines for kairos.toml."""
    from kairos_mcp.cli.importing import Wanted, import_tools

    wanted = Wanted(tuple(operation or ()), server, secret, reads) if openapi else None
    if wanted is None and (operation or server or secret or reads):
        raise typer.BadParameter("--operation, --server, --secret and --reads go with --openapi.")
    raise typer.Exit(import_tools(Flags(home, (), config), file, wanted, write=write, as_json=as_json))
