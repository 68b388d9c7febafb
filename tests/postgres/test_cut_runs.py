"""A run whose connections to the database are cut, at any statement and at any commit: it ends as if nothing had
happened, and nothing of it is asked or charged twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgres.interrupted_runs import CASES, EDITS, Case
from support import postgres
from support.app import ME, WITHIN_S, Place, assert_all_lawful, place_in

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreBusy, StoreUnavailable
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.settings.settings import Settings

pytestmark = pytest.mark.postgres
CALLS = 20  # until whoever asks for the run gives up


@pytest.fixture
def chosen(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(postgres.CHOICE, server)
    return server


async def end_run(case: Case, settings: Settings) -> int:
    """Ask for the run until it has ended; return how often a call was refused."""
    refused = 0
    async with App.open(settings, via="mcp") as app:
        for _ in range(CALLS):
            try:
                run_id = await case.start(app)
                await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
                report = await app.runs.report(run_id, ME)
            except (StoreBusy, StoreUnavailable):
                refused += 1
                continue
            if report.status == "completed":
                break
    assert (report.status, report.summary) == ("completed", "done"), report
    assert (report.usage["model_calls"], report.usage["attempts"], report.usage["tool_calls"]) == (3, 3, 2), report
    return refused


async def assert_lawful(case: Case, place: Place) -> None:
    assert (place.workspace / "a.txt").read_text() == case.text
    assert place.rows("select count(*) from run") == [(1,)]
    assert place.store().find_damage(Outcome) == []
    async with App.open(place.settings(), via="mcp") as again:
        await assert_all_lawful(again)


class Cutting:
    """Counts the statements of all connections but those of the test's own thread, and ends the session of one."""

    def __init__(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import psycopg

        self._server, self._lock = server, threading.Lock()
        self.count, self.at, self.cut = 0, 0, ""
        execute = psycopg.Connection.execute

        def execute_counted(connection: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                with self._lock:
                    self.count += 1
                    is_due = self.count == self.at
                if is_due:
                    self.cut = f"{threading.current_thread().name}: {statement}"
                    self._end_session(connection.info.backend_pid)
            return execute(connection, statement, *arguments, **options)

        monkeypatch.setattr(psycopg.Connection, "execute", execute_counted)

    def begin(self, at: int) -> None:
        self.count, self.at, self.cut = 0, at, ""

    def _end_session(self, pid: int) -> None:
        import psycopg

        with psycopg.connect(self._server, autocommit=True) as other, other.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(%s, 5000)", (pid,))


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["planner", "editor"])
async def test_a_run_ends_once_whichever_statement_its_session_is_ended_at(
    chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, every: int
) -> None:
    cutting, refused, case = Cutting(chosen, monkeypatch), 0, CASES[kind]
    await end_run(case, place_in(tmp_path / "0").settings(*case.lines, gate=(EDITS,)))
    statements = cutting.count
    assert statements > 30
    for at in range(1, statements + 1, every):
        place = place_in(tmp_path / str(at))
        settings = place.settings(*case.lines, gate=(EDITS,))
        cutting.begin(at)
        try:
            refused += await end_run(case, settings)
            cutting.begin(0)
            await assert_lawful(case, place)
        except BaseException as error:
            error.add_note(f"statement {at} of {statements}, by {cutting.cut}")
            raise
    print(f"{statements} statements: {refused} calls were refused meanwhile")


@pytest.fixture
def cut_socket(server: str, tmp_path: Path) -> Iterator[Any]:
    from postgres.cut_socket import CutSocket
    from psycopg.conninfo import conninfo_to_dict

    with closing(CutSocket(tmp_path / "cut", Path(str(conninfo_to_dict(server)["host"])))) as cut:
        yield cut


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("kind", ["planner", "editor"])
async def test_a_run_ends_once_whichever_commit_loses_its_reply(
    chosen: str, tmp_path: Path, cut_socket: Any, kind: str, cut: str
) -> None:
    """Before: the database is not sent the commit. After: it is, and its reply is lost."""
    from psycopg.conninfo import make_conninfo

    assert chosen
    case = CASES[kind]
    for at in range(100):
        place = place_in(tmp_path / str(at))
        where = make_conninfo(str(place.settings().store), host=str(cut_socket.folder))
        cut_socket.cut_at_commit, cut_socket.pass_by, cuts = cut, at, cut_socket.cuts
        await end_run(case, place.settings(*case.lines, gate=(EDITS,), store=where))
        await assert_lawful(case, place)
        if cut_socket.cuts == cuts:
            break
    assert at > 5  # so many commits, and each was cut once
