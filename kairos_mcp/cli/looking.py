"""Runs as they are recorded: listed and pruned, shown, carried away, built again; and what they spent."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kairos_mcp.cli.options import AllFlags, AsJson, Everywhere, Run, StateFlags, Whose
from kairos_mcp.core.identity import LOCAL

View = Literal["report", "events", "calls", "messages", "usage"]


def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 10,
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove runs that ended long ago and that no kept run goes on from.")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="With --prune: as 30d, 12h or 2w; else keep_days says it.")
    ] = None,
    everywhere: Everywhere = False,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """The newest runs of this workspace; or, with --prune, the end of the oldest."""
    if prune or older_than is not None:
        from kairos_mcp.cli.pruning import prune_runs

        return prune_runs(flags, older_than, asked=prune, as_json=as_json)
    from kairos_mcp.cli.runs import list_runs

    return list_runs(flags, limit, everywhere=everywhere, as_json=as_json)


def show(
    run: Run,
    *,
    view: Annotated[View, typer.Option(help="The result, or a part of the record.")] = "report",
    ref: Annotated[str | None, typer.Option(metavar="REF", help="A text that was kept whole.")] = None,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """One run: where it stands, what it did, what it waits for."""
    from kairos_mcp.cli.runs import show_run

    return show_run(flags, run, view, ref, principal=principal, as_json=as_json)


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or a file that `export` wrote; - is stdin.")],
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Build a run again from its record and compare each step; one in a file needs no store."""
    from kairos_mcp.cli.carrying import names_file, verify_file
    from kairos_mcp.cli.runs import replay_run

    if names_file(run):
        return verify_file(run, as_json=as_json)
    return replay_run(flags, run, as_json=as_json)


def export(
    run: Run,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Where to; without it to stdout.")] = None,
    *,
    flags: AllFlags,
) -> int:
    """A run as JSON Lines, to keep or to verify elsewhere with `replay FILE`."""
    from kairos_mcp.cli.carrying import export_run

    return export_run(flags, run, file)


def budget(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run, or mandate:ID; without one: today.")] = None,
    *,
    days: Annotated[bool, typer.Option("--days", help="The newest days in place of today.")] = False,
    trust_clock: Annotated[
        bool, typer.Option("--trust-clock", help="Say that the clock is right: later days were begun by mistake.")
    ] = False,
    principal: Annotated[str, typer.Option("--principal", metavar="NAME", help="With --trust-clock: whose.")] = LOCAL,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """What is spent and left: today and on whom, on the days before, of a mandate today, or of a run."""
    from kairos_mcp.cli.spending import correct_days, show_budget

    if trust_clock:
        return correct_days(flags, principal, as_json=as_json)
    return show_budget(flags, run, days=days, as_json=as_json)
