"""The commands `mandate …` and their options as typer reads them; each hands over to the file that does it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kairos_mcp.cli.options import AsJson, File, Folders, Home
from kairos_mcp.configuration.settings import Flags

mandate_app = typer.Typer(help="Standing orders that an agent works on in cycles.")
RouteName = Literal["auto", "provider", "sampling", "caller", "scripted"]


@mandate_app.command("save")
def mandate_save(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A mandate as JSON, or as TOML by its name; - is stdin.")],
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Save a mandate under its id."""
    from kairos_mcp.cli.mandates import save_mandate

    raise typer.Exit(save_mandate(Flags(home, tuple(workspace or ()), config), file, as_json=as_json))


@mandate_app.command("list")
def mandate_list(as_json: AsJson = False, home: Home = None, config: File = None) -> None:
    """The mandates, their status and newest run."""
    from kairos_mcp.cli.mandates import list_mandates

    raise typer.Exit(list_mandates(Flags(home, (), config), as_json=as_json))


@mandate_app.command("run")
def mandate_run(
    mandate_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A mandate, as `mandate list` names it; with --due: only this.")
    ] = None,
    *,
    due: Annotated[
        bool, typer.Option("--due", help="Those that are due by their schedules, once for each time.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with its open run where that is paused.")] = False,
    cycles: Annotated[int | None, typer.Option(min=1, max=10, metavar="N", help="Fewer than its max_cycles.")] = None,
    route: Annotated[RouteName | None, typer.Option(help="Who thinks.")] = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="As model_calls=8; repeatable.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
    workspace: Folders = None,
    config: File = None,
) -> None:
    """Run cycles of a mandate, or stay with its open run, until it has ended or somebody has to look.

    Exit codes: 0 completed, 1 failed, 2 wrong use, 3 paused or waiting for an answer, 130 cancelled.
    """
    from kairos_mcp.cli.mandates import Wish, run_due, run_mandate

    flags = Flags(home, tuple(workspace or ()), config)
    wish = Wish(cycles, route, tuple(limit or ()), as_json, resume)
    if due:
        raise typer.Exit(run_due(flags, mandate_id, wish))
    if mandate_id is None:
        raise typer.BadParameter("which mandate? `mandate list` names them; or --due.")
    raise typer.Exit(run_mandate(flags, mandate_id, wish))
