"""What befalls the commits of one server, whichever store it has: a call before each, which may refuse it, or after."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kairos_mcp.app.app import App
from kairos_mcp.store.file_store import FileStore

Call = Callable[[], object]


def call_before_commits(app: App, call: Call) -> None:
    """Call it in the thread that commits; where it raises an error, nothing was committed."""

    def call_first(connection: Any, commit: Call) -> object:
        try:
            call()
        except BaseException:
            connection.cursor().execute("rollback")
            raise
        return commit()

    if isinstance(app._store, FileStore):
        app._store.writer._connection.set_commit_hook(lambda: bool(call() and False))
    else:
        _wrap_commits(app, call_first)


def call_after_commits(app: App, call: Call) -> None:
    """Call it in the thread that commits, before whoever asked for the commit is told."""
    writer: Any = app._store.writer
    commit, commit_at_once = writer._commit, writer.commit_at_once

    def commit_and_call(group: Any) -> None:
        commit(group)
        call()

    def commit_at_once_and_call(job: Any) -> Any:
        done = commit_at_once(job)
        if done is not None:
            call()
        return done

    writer._commit, writer.commit_at_once = commit_and_call, commit_at_once_and_call


def leave_commits(app: App) -> None:
    """Call nothing more."""
    if isinstance(app._store, FileStore):
        app._store.writer._connection.set_commit_hook(None)
    else:
        _wrap_commits(app, lambda _connection, commit: commit())


def refuse_commits(app: App, after: int) -> None:
    """Refuse all commits but the next ones, so many."""
    left = after

    def refuse() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise make_full_disk_error(app)

    call_before_commits(app, refuse)


def make_full_disk_error(app: App) -> Exception:
    """What the driver raises where the disk is full."""
    if isinstance(app._store, FileStore):
        import apsw

        return apsw.FullError("the disk is full")
    import psycopg

    return psycopg.errors.DiskFull("the disk is full")


def _wrap_commits(app: App, around: Callable[[Any, Call], object]) -> None:
    writer: Any = app._store.writer
    open_session = type(writer)._open_session.__get__(writer)

    def open_wrapped() -> Any:
        session = open_session()
        connection = session.connection
        execute = type(connection).execute.__get__(connection)

        def execute_wrapped(statement: Any, *arguments: Any, **options: Any) -> Any:
            made = partial(execute, statement, *arguments, **options)
            return around(connection, made) if statement == "commit" else made()

        connection.execute = execute_wrapped
        return session

    writer._open_session = open_wrapped
