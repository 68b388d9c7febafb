"""The commands and their options as typer reads them; each hands over to the file that does it."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, TextIO, cast

import typer

from kairos_mcp.settings import Flags

Home = Annotated[str | None, typer.Option("--home", metavar="DIR", help="State folder (or KAIROS_HOME).")]
Folders = Annotated[
    list[str] | None,
    typer.Option("--workspace", metavar="DIR", help="A folder that file tools may touch; repeatable."),
]
File = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Settings file (or KAIROS_CONFIG).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, as `runs` lists it.")]
View = Literal["report", "events", "calls", "messages", "usage"]
HostName = Literal["claude-desktop", "claude-code", "vscode", "cursor"]
TransportName = Literal["stdio", "http", "sse"]
RouteName = Literal["auto", "provider", "sampling", "caller", "scripted"]

# Plain help: rich's boxes cost an import, and differ with the width of the terminal.
app = typer.Typer(
    name="kairos-mcp",
    help="Kairos: the agent loop for any MCP host. Planned, bounded, crash-safe, replayable.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run_app(words: list[str]) -> int:
    """The exit code of the command in `words`."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal can't show is shown escaped
        cast("TextIO", stream).reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    try:
        app(words, prog_name="kairos-mcp")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0
    return 0


@app.command()
def serve(
    *,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
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
) -> None:
    """MCP server: on stdin and stdout, as hosts start it, or over HTTP at /mcp and /sse."""
    flags = Flags(home, tuple(workspace or ()), config, tools)
    if transport == "stdio":
        from kairos_mcp.cli.serving import serve as serve_on_stdio

        serve_on_stdio(flags)
    else:
        from kairos_mcp.cli.listening import listen

        listen(flags, transport, host, port, tuple(allow_host or ()))


@app.command()
def run(
    goal: Annotated[str | None, typer.Argument(metavar="GOAL", help="What is to be done; -i asks for it.")] = None,
    *,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="A conversation: each line goes on from the run before."),
    ] = False,
    route: Annotated[RouteName | None, typer.Option(help="Who thinks.")] = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="As rounds=8; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model to think with.")] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The same key gives the same run.")] = None,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """One planner run over this folder, in the terminal.

    Exit codes: 0 completed, 1 failed, 2 wrong use, 3 waiting for an answer, 130 cancelled.
    """
    from kairos_mcp.cli.asking import Wish, converse, run_once

    wish = Wish(goal or "", route, tuple(limit or ()), model, key, as_json)
    flags = Flags(home, tuple(workspace or ()), config)
    raise typer.Exit(converse(wish, flags) if interactive else run_once(wish, flags))


@app.command()
def demo(as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None) -> None:
    """The loop at work on this folder: a script thinks, no key needed."""
    from kairos_mcp.cli.demo import show_demo

    raise typer.Exit(show_demo(Flags(home, tuple(workspace or ()), config), as_json=as_json))


@app.command()
def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 10,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """The newest runs."""
    from kairos_mcp.cli.looking import list_runs

    raise typer.Exit(list_runs(Flags(home, tuple(workspace or ()), config), limit, as_json=as_json))


@app.command()
def show(
    run: Run,
    *,
    view: Annotated[View, typer.Option(help="The result, or a part of the record.")] = "report",
    ref: Annotated[str | None, typer.Option(metavar="REF", help="A text that was kept whole.")] = None,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """One run: where it stands, what it did, what it waits for."""
    from kairos_mcp.cli.looking import show_run

    flags = Flags(home, tuple(workspace or ()), config)
    raise typer.Exit(show_run(flags, run, view, ref, as_json=as_json))


@app.command()
def answer(
    run: Run,
    key: Annotated[str, typer.Argument(metavar="KEY", help="What waits, as `show` names it.")],
    text: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The answer; without it or --file, from stdin.")
    ] = None,
    *,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="A file with the answer.")] = None,
    drive: Annotated[bool, typer.Option("--drive/--no-drive", help="Go on with the run here.")] = True,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Answer what a run waits for, and go on with it.

    A completion is {"content": TEXT} or {"tool_calls": [{"id", "name", "arguments"}]}; a tool's result is
    {"content": TEXT}.
    """
    from kairos_mcp.cli.answering import answer_run

    flags = Flags(home, tuple(workspace or ()), config)
    raise typer.Exit(answer_run(flags, run, key, text, file=file, drive=drive, as_json=as_json))


@app.command()
def cancel(
    run: Run, as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None
) -> None:
    """End a run; what it did is kept."""
    from kairos_mcp.cli.answering import cancel_run

    raise typer.Exit(cancel_run(Flags(home, tuple(workspace or ()), config), run, as_json=as_json))


@app.command()
def replay(
    run: Run, as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None
) -> None:
    """Build a run again from its record and compare each step."""
    from kairos_mcp.cli.looking import replay_run

    raise typer.Exit(replay_run(Flags(home, tuple(workspace or ()), config), run, as_json=as_json))


@app.command()
def status(as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None) -> None:
    """What lives: the store, the servers on it, the runs by status."""
    from kairos_mcp.cli.looking import show_status

    raise typer.Exit(show_status(Flags(home, tuple(workspace or ()), config), as_json=as_json))


@app.command()
def doctor(as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None) -> None:
    """What works here, the cure for what does not, the settings."""
    from kairos_mcp.cli.doctor import examine

    raise typer.Exit(examine(Flags(home, tuple(workspace or ()), config), as_json=as_json))


@app.command()
def install(
    host: Annotated[HostName, typer.Argument(metavar="HOST", help="claude-desktop, claude-code, vscode or cursor.")],
    *,
    write: Annotated[bool, typer.Option("--write", help="Edit the host's file; a copy of it is kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an entry that differs.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="The file of the project in this folder, not the user's.")
    ] = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Make a host start this server: the lines, or the edit."""
    from kairos_mcp.cli.install import install_into

    flags = Flags(home, tuple(workspace or ()), config)
    raise typer.Exit(install_into(host, flags, write=write, force=force, project=project))


token = typer.Typer(help="Bearer tokens for serving over HTTP; each is a principal with its own runs.")
app.add_typer(token, name="token", no_args_is_help=True)
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Who it is for; the principal of its runs.")]


@token.command("add")
def token_add(name: TokenName, as_json: AsJson = False, home: Home = None, config: File = None) -> None:
    """Make a token and show it, once."""
    from kairos_mcp.cli.tokens import add_token

    raise typer.Exit(add_token(Flags(home, (), config), name, as_json=as_json))


@token.command("list")
def token_list(as_json: AsJson = False, home: Home = None, config: File = None) -> None:
    """The tokens that let somebody in."""
    from kairos_mcp.cli.tokens import list_tokens

    raise typer.Exit(list_tokens(Flags(home, (), config), as_json=as_json))


@token.command("revoke")
def token_revoke(name: TokenName, home: Home = None, config: File = None) -> None:
    """Let nobody in with it any more, from the next request on."""
    from kairos_mcp.cli.tokens import revoke_token

    raise typer.Exit(revoke_token(Flags(home, (), config), name))
