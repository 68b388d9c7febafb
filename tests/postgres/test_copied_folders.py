"""A state folder is copied into a database with all that it keeps, and gone on with there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import ME, Place, open_checked_app, place_in, reads, says, start_run
from support.commands import Said, command
from support.http_server import Site

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.tokens import TokenStore, make_tokens
from kairos_mcp.store import schema
from kairos_mcp.store.file_store import LockFile
from kairos_mcp.store.key_file import state_key

pytestmark = pytest.mark.postgres
ASK = {"name": "ask_person", "description": "Asks.", "parameters": {"type": "object"}, "effect": "irreversible"}


def copy(place: Place, database: str) -> Said:
    environ = {**os.environ, "KAIROS_STORE": database, "KAIROS_HOME": str(place.root / "new")}
    return command("store", "copy", "--from", str(place.home), "--json", folder=place.workspace, environ=environ)


def rows_of(database: str, statement: str) -> list[tuple[Any, ...]]:
    with postgres.open_session(database) as session:
        return session.rows(statement)


async def fill(place: Place) -> tuple[str, str]:
    """A run that has ended, and one of another principal that waits."""
    lines = (reads("a.txt"), says("done"))
    async with open_checked_app(place.settings(*lines)) as app:
        ended = await start_run(app)
    async with App.open(place.settings(), via="mcp") as app:
        request = PlannerRequest("think", route="caller")
        waiting = (await app.runs.start(request, Caller("alice"))).run_id
        await app.runs.wait([waiting], until="rest", wait_s=20, caller=Caller("alice"))
    return ended, waiting


async def test_every_row_is_copied_and_runs_go_on_in_the_database(place: Place, database: str) -> None:
    ended, waiting = await fill(place)
    token, key = TokenStore(place.home).add("alice"), state_key(place.home)
    before = {table.name: place.rows(f"select * from {table.name}") for table in schema.list_tables()}
    said = copy(place, database)
    assert said.code == 0, said.err
    assert said.json == {"rows": {name: len(rows) for name, rows in before.items() if name != "owner"}, "tokens": 1}
    for table in schema.list_tables():
        columns = ", ".join(column for column in table.columns if (table.name, column) != ("run", "owner"))
        if table.name != "owner":
            found = rows_of(database, f"select {columns} from {table.name}")
            assert sorted(map(repr, found)) == sorted(map(repr, place.rows(f"select {columns} from {table.name}")))
    settings = place.settings(store=database)
    assert make_tokens(settings).find_principal(token) == "alice"
    async with open_checked_app(settings) as app:
        assert await app.sealing_key() == key
        assert (await app.runs.report(ended, ME)).summary == "done"
        assert (await app.health(thorough=True))["damage"] == []
        (item,) = (await app.runs.report(waiting, Caller("alice"))).waiting
        await app.answers.submit(waiting, {item["key"]: {"content": "thought"}}, Caller("alice"))
        await app.runs.wait([waiting], until="done", wait_s=20, caller=Caller("alice"))
        assert (await app.runs.report(waiting, Caller("alice"))).summary == "thought"
        assert (await app.runs.start(PlannerRequest("new", route="caller"), ME)).run_id  # with a number of its own


async def test_nothing_is_copied_beside_rows_that_are_there_or_while_a_server_lives(
    place: Place, database: str
) -> None:
    await fill(place)
    assert copy(place, database).code == 0
    again = copy(place, database)
    assert again.code != 0
    assert "has rows already" in again.err
    lock = LockFile(place.home)
    with place.session() as session:
        lock.register(session, "mcp", 1)
    refused = copy(place, database)
    lock.close()
    assert refused.code != 0
    assert str(os.getpid()) in refused.err


async def test_nothing_is_copied_while_a_server_has_the_folder_open_that_has_written_nothing(
    tmp_path: Path, database: str
) -> None:
    """What it would write after the copy would stay in the file alone."""
    place = place_in(tmp_path / "served")
    await fill(place)
    site = Site.start(place.root)
    try:
        assert site.still_answers()
        assert place.rows("select count(*) from owner where lock like ?", f"{site.server.pid}-%") == [(0,)]
        refused = copy(place, database)
    finally:
        site.stop()
    assert refused.code != 0
    assert "has" in refused.err
    assert " open." in refused.err
    assert copy(place, database).code == 0
