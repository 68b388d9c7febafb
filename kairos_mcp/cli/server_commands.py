"""A server as a whole: started, looked at, examined, put into a host."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AsJson

HostName = Literal["claude-desktop", "claude-code", "vscode", "cursor"]
TransportName = Literal["stdio", "http", "sse"]


def serve(
    *,
    flags: AllFlags,
    tools: Annotated[
        str | None, typer.Option(metavar="SET", help="Tools shown to the host: lean, core, all, or names.")
    ] = None,
    transport: Annotated[
        TransportName, typer.Option(help="stdin and stdout; Streamable HTTP and SSE; or SSE alone.")
    ] = "stdio",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further host name that clients ask for; repeatable."),
    ] = None,
) -> int:
    """MCP server: on stdin and stdout, as hosts start it, or over HTTP at /mcp and /sse."""
    flags = replace(flags, tools=tools)
    if transport == "stdio":
        from kairos_mcp.cli.server import serve as serve_on_stdio

        serve_on_stdio(flags)
    else:
        from kairos_mcp.cli.listening import listen

        listen(flags, transport, host, port, tuple(allow_host or ()))
    return COMPLETED


def status(
    *,
    owner: Annotated[
        int | None,
        typer.Option("--release", metavar="OWNER", min=1, help="Take the runs of a server that was stopped."),
    ] = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """What lives: the store, the servers on it, the runs by status."""
    from kairos_mcp.cli.releasing import release
    from kairos_mcp.cli.runs import show_status

    if owner is not None:
        return release(flags, owner, as_json=as_json)
    return show_status(flags, as_json=as_json)


def doctor(*, as_json: AsJson = False, flags: AllFlags) -> int:
    """What works here, the cure for what does not, the settings."""
    from kairos_mcp.cli.doctor import examine

    return examine(flags, as_json=as_json)


def install(
    host: Annotated[HostName, typer.Argument(metavar="HOST", help="claude-desktop, claude-code, vscode or cursor.")],
    *,
    write: Annotated[bool, typer.Option("--write", help="Edit the host's file; a copy of it is kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an entry that differs.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="The file of the project in this folder, not the user's.")
    ] = False,
    flags: AllFlags,
) -> int:
    """Make a host start this server: the lines, or the edit."""
    from kairos_mcp.cli.install import install_into

    return install_into(host, flags, write=write, force=force, project=project)
