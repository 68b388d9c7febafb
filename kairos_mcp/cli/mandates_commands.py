"""`mandate …`: standing orders that an agent works on in cycles."""

from __future__ import annotations

from typing import Annotated

import typer

from kairos_mcp.cli.options import AllFlags, AsJson, Everywhere, Route


def save(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A mandate as JSON, or as TOML by its name; - is stdin.")],
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Save a mandate under its id."""
    from kairos_mcp.cli.mandates import save_mandate

    return save_mandate(flags, file, as_json=as_json)


def listing(*, everywhere: Everywhere = False, as_json: AsJson = False, flags: AllFlags) -> int:
    """The mandates of this workspace, their status and newest run."""
    from kairos_mcp.cli.mandates import list_mandates

    return list_mandates(flags, everywhere=everywhere, as_json=as_json)


def edit(
    mandate_id: Annotated[str, typer.Argument(metavar="ID", help="A mandate, as `mandate list` names it.")],
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Put a mandate into another workspace, the one named by --workspace."""
    from kairos_mcp.cli.mandates import edit_mandate

    return edit_mandate(flags, mandate_id, as_json=as_json)


def run(
    mandate_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A mandate, as `mandate list` names it; with --due: only this.")
    ] = None,
    *,
    due: Annotated[
        bool, typer.Option("--due", help="Those that are due by their schedules, once for each time.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with its open run where that is paused.")] = False,
    cycles: Annotated[int | None, typer.Option(min=1, max=10, metavar="N", help="Fewer than its max_cycles.")] = None,
    route: Route = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="As model_calls=8; repeatable.")
    ] = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Run cycles of a mandate, or stay with its open run, until it has ended or somebody has to look.

    Exit codes: 0 completed, 1 failed, 2 wrong use, 3 paused or waiting for an answer, 130 cancelled.
    """
    from kairos_mcp.cli.mandates import MandateRunOptions, run_due, run_mandate

    wish = MandateRunOptions(cycles, route, tuple(limit or ()), as_json, resume)
    if due:
        return run_due(flags, mandate_id, wish)
    if mandate_id is None:
        raise typer.BadParameter("which mandate? `mandate list` names them; or --due.")
    return run_mandate(flags, mandate_id, wish)
