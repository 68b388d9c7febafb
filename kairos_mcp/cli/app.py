"""The commands and their options as typer reads them; each hands over to the file that does it."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, TextIO, cast

import typer

from kairos_mcp.cli.mandate_app import mandate_app
from kairos_mcp.cli.options import AsJson, File, Folders, Home
from kairos_mcp.cli.tools_app import tools_app
from kairos_mcp.configuration.settings import Flags

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, as `runs` lists it.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="What waits, as `show` names it.")]
Drive = Annotated[bool, typer.Option("--drive/--no-drive", help="Go on with the run here.")]
LOCAL = "local"
Whose = Annotated[str, typer.Option("--principal", metavar="NAME", help="Whose run: the name of a token.")]
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
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove runs that ended long ago and that no kept run goes on from.")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --prune: as 30d, 12h or 2w; else keep_days says it.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """The newest runs; or, with --prune, the end of the oldest."""
    flags = Flags(home, tuple(workspace or ()), config)
    if prune or older_than is not None:
        from kairos_mcp.cli.pruning import prune_runs

        raise typer.Exit(prune_runs(flags, older_than, asked=prune, as_json=as_json))
    from kairos_mcp.cli.looking import list_runs

    raise typer.Exit(list_runs(flags, limit, as_json=as_json))


@app.command()
def show(
    run: Run,
    *,
    view: Annotated[View, typer.Option(help="The result, or a part of the record.")] = "report",
    ref: Annotated[str | None, typer.Option(metavar="REF", help="A text that was kept whole.")] = None,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """One run: where it stands, what it did, what it waits for."""
    from kairos_mcp.cli.looking import show_run

    flags = Flags(home, tuple(workspace or ()), config)
    raise typer.Exit(show_run(flags, run, view, ref, principal=principal, as_json=as_json))


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
def approve(
    run: Run,
    key: Key,
    *,
    drive: Drive = True,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Give leave for what a run asks for, and go on with it; `show` has what that is."""
    from kairos_mcp.cli.approving import decide_run

    flags = Flags(home, tuple(workspace or ()), config)
    code = decide_run(flags, run, key, "approve", principal=principal, drive=drive, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def deny(
    run: Run,
    key: Key,
    *,
    feedback: Annotated[
        str | None, typer.Option("--feedback", metavar="TEXT", help="What the model should know or do instead.")
    ] = None,
    drive: Drive = True,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Refuse what a run asks leave for, and go on with it."""
    from kairos_mcp.cli.approving import decide_run

    flags = Flags(home, tuple(workspace or ()), config)
    code = decide_run(flags, run, key, "deny", feedback, principal=principal, drive=drive, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def cancel(
    run: Run, as_json: AsJson = False, home: Home = None, workspace: Folders = None, config: File = None
) -> None:
    """End a run; what it did is kept."""
    from kairos_mcp.cli.answering import cancel_run

    raise typer.Exit(cancel_run(Flags(home, tuple(workspace or ()), config), run, as_json=as_json))


@app.command()
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or a file that `export` wrote; - is stdin.")],
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Build a run again from its record and compare each step; one in a file needs no store."""
    from kairos_mcp.cli.carrying import names_file, verify_file
    from kairos_mcp.cli.looking import replay_run

    if names_file(run):
        raise typer.Exit(verify_file(run, as_json=as_json))
    raise typer.Exit(replay_run(Flags(home, tuple(workspace or ()), config), run, as_json=as_json))


@app.command()
def export(
    run: Run,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Where to; without it to stdout.")] = None,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """A run as JSON Lines, to keep or to verify elsewhere with `replay FILE`."""
    from kairos_mcp.cli.carrying import export_run

    raise typer.Exit(export_run(Flags(home, tuple(workspace or ()), config), run, file))


@app.command()
def budget(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run; without one: today.")] = None,
    *,
    days: Annotated[bool, typer.Option("--days", help="The newest days in place of today.")] = False,
    as_json: AsJson = False,
    home: Home = None,
    config: File = None,
) -> None:
    """What is spent and left: today and on whom, on the days before, or of a run."""
    from kairos_mcp.cli.spending import show_budget

    raise typer.Exit(show_budget(Flags(home, (), config), run, days=days, as_json=as_json))


@app.command()
def settle(
    run: Run,
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `show` prints it.")],
    settlement: Annotated[
        Literal["reattempt", "already_done"], typer.Argument(metavar="SETTLEMENT", help="reattempt or already_done.")
    ],
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="What you saw; the model reads it.")] = None,
    as_json: AsJson = False,
    home: Home = None,
    config: File = None,
) -> None:
    """Say of a call whose end nobody knows whether it is to be made again, or was done."""
    from kairos_mcp.cli.settling import settle_call

    raise typer.Exit(settle_call(Flags(home, (), config), run, key, settlement, note, as_json=as_json))


@app.command()
def status(
    *,
    owner: Annotated[
        int | None,
        typer.Option("--release", metavar="OWNER", min=1, help="Take the runs of a server that was stopped."),
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """What lives: the store, the servers on it, the runs by status."""
    from kairos_mcp.cli.looking import show_status
    from kairos_mcp.cli.releasing import release

    flags = Flags(home, tuple(workspace or ()), config)
    if owner is not None:
        raise typer.Exit(release(flags, owner, as_json=as_json))
    raise typer.Exit(show_status(flags, as_json=as_json))


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


app.add_typer(tools_app, name="tools", no_args_is_help=True)
app.add_typer(mandate_app, name="mandate", no_args_is_help=True)
