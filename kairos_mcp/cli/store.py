"""`store migrate, copy`: make the tables of a database, and copy a state folder into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AsJson, StateFlags
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.store.postgres.database import PostgresStore


def migrate(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the statements that it would run, and change nothing.")
    ] = False,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Make the tables of the database that `store` names, or bring them and their functions to this version."""
    database = _open_database(flags)
    before, planned = database.plan_migration()
    if dry_run:
        head = f"The database has {f'version {before}' if before else 'no tables'}; it would take"
        lines = [f"{head} {count_of(len(planned), 'statement')}.", *(f"{' '.join(each.split())};" for each in planned)]
        emit({"before": before, "dry_run": True, "statements": planned}, lines, as_json=as_json)
        return COMPLETED
    before, after = database.migrate()
    text = f"The database has version {after}"
    if before == after:
        came = f"; {count_of(len(planned), 'part')} of it renewed" if planned else " already"
    else:
        came = f"; it had {before or 'no tables'}"
    emit({"before": before, "version": after, "statements": len(planned)}, [f"{text}{came}."], as_json=as_json)
    return COMPLETED


def copy(
    folder: Annotated[
        Path, typer.Option("--from", metavar="DIR", help="The state folder; its servers have to be ended first.")
    ],
    *,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Copy a state folder into the empty database that `store` names."""
    if not (folder / "kairos.db").exists():
        raise BadArguments(f"There is no state file in {folder}.", "`kairos-mcp doctor` names the state folder.")
    rows, tokens = _open_database(flags).copy_folder(folder)
    whole = count_of(sum(rows.values()), "row")
    text = f"{count_of(rows['run'], 'run')} with {whole}, {count_of(tokens, 'token')}."
    later = "The folder is unchanged; while `store` is set, only its settings are read."
    emit({"rows": rows, "tokens": tokens}, [f"Copied: {text}", later], as_json=as_json)
    return COMPLETED


def _open_database(flags: Flags) -> PostgresStore:
    from kairos_mcp.app.app import make_database

    return make_database(read_settings(flags), "command")
