"""Runs that are started in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from kairos_mcp.cli.options import AllFlags, AsJson, Route


def run(
    goal: Annotated[str | None, typer.Argument(metavar="GOAL", help="What is to be done; -i asks for it.")] = None,
    *,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="A conversation: each line goes on from the run before."),
    ] = False,
    route: Route = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="As rounds=8; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model to think with.")] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools", metavar="GLOB", help="Tools it may use, as 'edit_*'; repeatable. Default: those that read."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The same key gives the same run.")] = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """One planner run over this folder, in the terminal.

    Exit codes: 0 completed, 1 failed, 2 wrong use, 3 waiting for an answer, 130 cancelled.
    """
    from kairos_mcp.cli.run import RunCommandOptions, converse, run_once

    wish = RunCommandOptions(goal or "", route, tuple(limit or ()), model, key, as_json, tuple(tools or ()))
    return converse(wish, flags) if interactive else run_once(wish, flags)


def demo(*, as_json: AsJson = False, flags: AllFlags) -> int:
    """The loop at work on this folder: a script thinks, no key needed."""
    from kairos_mcp.cli.demo import show_demo

    return show_demo(flags, as_json=as_json)
