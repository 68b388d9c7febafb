"""Write the table `task`: calls that were answered with an MCP task, and the result that each of them ended with.

A task is one call about a run, not the run: it may end while its run waits for somebody, and a run may have several.
What it asks its client is in `client_question`, a row for each request, so that one can be answered before the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Literal, NamedTuple

from kairos_mcp.core.already_read import AlreadyRead
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session

TaskEnding = Literal["completed", "failed", "cancelled"]


class TaskRow(NamedTuple):
    """A task. Times in milliseconds since 1970.

    `n`: which task of its run. `client`: whose call it is. `read`: what its caller has read, as the call says.
    `attached`: it found the run of an identical start. `skipped`: the keys about which its client is asked no more;
    `on_page`: of these, what its user went to decide on the page. `fetched_at`: when its status was first asked for.
    `cancelled_at`: when its client asked for its end. `ending`: None while it is open. `result`: what it ended with, as
    JSON: the call's result, or a JSON-RPC error where it `failed`.
    """

    id: int
    run: int
    n: int
    client: str
    read: AlreadyRead
    attached: bool
    skipped: tuple[str, ...]
    on_page: tuple[str, ...]
    created_at: int
    fetched_at: int | None
    cancelled_at: int | None
    ended_at: int | None
    ending: TaskEnding | None
    result: str | None


_SELECT = (
    "select id, run, n, client, read, attached, skipped, on_page, created_at, fetched_at, cancelled_at, ended_at,"
    " ending, result from task where run = ?"
)


def create_task(session: Session, run: RunRow, client: str, read: AlreadyRead, at: int, *, attached: bool) -> TaskRow:
    """Insert a task of a run, with the next number."""
    found = session.row("select coalesce(max(n), 0) + 1 from task where run = ?", (run.n,))
    assert found is not None
    number = int(found[0])
    has_read = json.dumps({name: sorted(keys) for name, keys in read._asdict().items()})
    session.rows(
        "insert into task(run, n, client, read, attached, skipped, created_at) values (?, ?, ?, ?, ?, '[]', ?)",
        (run.n, number, client, has_read, int(attached), at),
    )
    task = find_task(session, run, number)
    assert task is not None
    return task


def find_task(session: Session, run: RunRow, number: int) -> TaskRow | None:
    """Return the task of a run with this number, or None."""
    found = session.row(f"{_SELECT} and n = ?", (run.n, number))
    if found is None:
        return None
    row_id, run_number, n, client, read, attached, skipped, on_page, *rest = found
    keys = tuple(json.loads(skipped)), tuple(json.loads(on_page))
    return TaskRow(row_id, run_number, n, client, AlreadyRead(**json.loads(read)), bool(attached), *keys, *rest)


def mark_fetched(session: Session, task: TaskRow, at: int) -> None:
    """Record that the task's client has asked for its status."""
    session.rows("update task set fetched_at = ? where id = ? and fetched_at is null", (at, task.id))


def mark_cancelled(session: Session, task: TaskRow, at: int) -> bool:
    """Record that the task's client wants its end; False where it has ended already."""
    wanted = "update task set cancelled_at = coalesce(cancelled_at, ?) where id = ? and ended_at is null returning id"
    return bool(session.rows(wanted, (at, task.id)))


def skip_keys(session: Session, task: TaskRow, keys: Collection[str], on_page: Collection[str] = ()) -> None:
    """Ask the task's client about these keys no more; its user decides about those `on_page` there."""
    found = session.row("select skipped, on_page from task where id = ?", (task.id,))
    assert found is not None, "a task stays as long as its run"
    skipped, there = (sorted({*json.loads(old), *new}) for old, new in zip(found, (keys, on_page), strict=True))
    both = json.dumps(skipped), json.dumps(there)
    session.rows("update task set skipped = ?, on_page = ? where id = ?", (*both, task.id))


def end_task(session: Session, run: RunRow, task: TaskRow, ending: TaskEnding, result: str | None, at: int) -> TaskRow:
    """End a task with a result, and return it as it is then: the first result stays."""
    ended = "update task set ending = ?, result = ?, ended_at = ? where id = ? and ended_at is null"
    session.rows(ended, (ending, result, at, task.id))
    found = find_task(session, run, task.n)
    assert found is not None, "a task stays as long as its run"
    return found


def has_state(session: Session, run: RunRow, nonce: str) -> bool:
    """Whether an ask has its state beside it, as those of tasks have."""
    found = session.row(
        "select 1 from client_question where run = ? and nonce = ? and state is not null", (run.n, nonce)
    )
    return found is not None


def keep_state(session: Session, run: RunRow, nonce: str, state: str) -> None:
    """Keep the state of a task's request beside its ask: what other clients carry from call to call."""
    session.rows(
        "update client_question set state = ? where run = ? and nonce = ? and state is null", (state, run.n, nonce)
    )


def list_open_asks(session: Session, run: RunRow, client: str, keys: Collection[str]) -> list[tuple[str, str]]:
    """Return the requests to a client under these keys that its tasks have made, and that have no answer yet: each key
    on the wire, with the state that its request is answered with."""
    found = session.rows(
        "select keys, state from client_question where run = ? and principal = ? and client = ? and consumed is null"
        " and state is not null order by at, nonce",
        (run.n, run.principal, client),
    )
    return [(key, state) for text, state in found for key in json.loads(text) if key in keys]


def newest_step_at(session: Session, run: RunRow) -> int | None:
    """Return when the newest step of a run was written; None where it has none."""
    found = session.row("select at from step where run = ? order by id desc limit 1", (run.n,))
    return None if found is None else int(found[0])
