"""`serve` and `status`: start a server; look at those of a state folder, and release the runs of a stopped one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kairos_mcp import __version__
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AsJson, Check
from kairos_mcp.cli.serve import serve_http, serve_stdio
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import read_settings, settings_for_server
from kairos_mcp.cli.terminal import emit, print_line
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

TransportName = Literal["stdio", "http", "sse"]


def serve(
    *,
    flags: AllFlags,
    tools: Annotated[
        str | None, typer.Option(metavar="SET", help="Tools shown to the host: lean, core, all, or names.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only look: runs change nothing, and nothing is approved.")
    ] = False,
    transport: Annotated[
        TransportName, typer.Option(help="stdin and stdout; Streamable HTTP and SSE; or SSE alone.")
    ] = "stdio",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; beyond this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8765,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name that clients use for this server; repeatable."),
    ] = None,
    drive: Annotated[
        bool, typer.Option("--drive/--no-drive", help="Over HTTP: drive runs here, or leave them to `kairos-mcp work`.")
    ] = True,
    no_auth: Annotated[
        bool,
        typer.Option(
            "--no-auth",
            help="Over HTTP on this machine: serve clients without a token as you; they can't decide anything.",
        ),
    ] = False,
    check: Check = False,
) -> int:
    """Serve MCP: on stdin and stdout, as hosts start it, or over HTTP at /mcp and /sse."""
    flags = replace(flags, tools=tools, read_only=read_only)
    if check:
        settings_for_server(flags)
        print_line("The settings are right; `kairos-mcp doctor` also tries what they name.")
        return COMPLETED
    if transport == "stdio":
        if not drive:
            raise typer.BadParameter(
                "--no-drive needs --transport http: a server that a host starts drives its own runs."
            )
        if no_auth:
            raise typer.BadParameter("--no-auth needs --transport http: stdio needs no token.")
        serve_stdio(flags)
    else:
        serve_http(flags, transport, host, port, tuple(allow_host or ()), drives=drive, no_auth=no_auth)
    return COMPLETED


def status(
    *,
    release: Annotated[
        int | None,
        typer.Option("--release", metavar="OWNER", min=1, help="Release the runs of a stopped server."),
    ] = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Show the state file, the servers that have it open, and the runs by status."""
    if release is not None:
        return _release(flags, release, as_json=as_json)

    async def look(app: App) -> JsonObject:
        return await app.health()

    health = with_app(read_settings(flags), look)
    emit(health, _health_lines(health), as_json=as_json)
    return COMPLETED


def _release(flags: Flags, owner: int, *, as_json: bool) -> int:
    """Release the runs of a server. What it still tries to commit of them is refused, so nothing is done twice."""

    async def release(app: App) -> int:
        return await app.control.release(owner, PERSON)

    count = with_app(read_settings(flags), release)
    line = f"Released {count_of(count, 'run')} of owner {owner}; the next server that is asked about it continues."
    emit({"owner": owner, "released": count}, [line], as_json=as_json)
    return COMPLETED


def _health_lines(health: JsonObject, indent: str = "") -> Iterator[str]:
    for name, value in health.items():
        label = f"{indent}{name.replace('_', ' ')}"
        match value:
            case dict():
                yield label
                yield from _health_lines(value, indent + "  ")
            case [{"pid": _}, *_]:
                yield label
                yield from (f"{indent}  {_describe_server(server)}" for server in value)
            case None:
                pass  # what this store does not know
            case list():
                yield f"{label}: {', '.join(map(str, value)) or 'none'}"
            case bool():
                yield f"{label}: {'yes' if value else 'no'}"
            case int():
                yield f"{label}: {value:,}"
            case _:
                yield f"{label}: {value}"


def _describe_server(server: JsonObject) -> str:
    """A living server: its number, by which `--release` takes its runs away, its process, and what it has."""
    what = {"command": "command", "work": "worker"}.get(server["via"], "server")
    stopped = ", stopped" if server["stopped"] else ""
    idle = "" if server["drives"] is not False else ", drives none"
    place = "" if server["place"] is None else f", place {server['place']}"
    version = "" if server["version"] in (None, __version__) else f", version {server['version']}"
    machine = "" if server["machine"] is None else f" on {server['machine']}"
    has = f"process {server['pid']}{machine}, {count_of(server['runs'], 'open run')}"
    return f"{server['number']}: {what}, {has}{idle}{stopped}{place}{version}"
