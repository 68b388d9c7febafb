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


def migrate(*, as_json: AsJson = False, flags: StateFlags) -> int:
    """Make the tables of the database that `store` names, or bring them to this version."""
    before, after = _open_database(flags).migrate()
    text = f"The database has version {after}"
    came = " already" if before == after else f"; it had {before or 'no tables'}"
    emit({"before": before, "version": after}, [f"{text}{came}."], as_json=as_json)
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
