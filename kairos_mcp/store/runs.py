"""The jobs that make a run, take it, answer its open steps and carry wishes to it: what anybody entitled may commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import apsw

from kairos_mcp.budget.amounts import NOTHING, Units, counts_of
from kairos_mcp.errors import AlreadyAnswered, BadArguments, FenceLost, NotWaiting, Stale
from kairos_mcp.messages import Exactness
from kairos_mcp.steps import Answer, DialectName, Limits
from kairos_mcp.store import branches, mandates, stretching
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.codec import decode, encode_answer
from kairos_mcp.store.connection import row, rows
from kairos_mcp.store.flagged import flagged
from kairos_mcp.store.purse import Purse
from kairos_mcp.store.reading import MarkRow, RunRow, Wish, is_due, run_by_number, step_at, wishes
from kairos_mcp.store.turn import Settled
from kairos_mcp.store.turns import insert_answer

Action = Literal["pause", "resume", "extend", "reroute", "cancel"]

ATTACH_MS = 10 * 60 * 1000  # hosts repeat calls they gave up on; an identical start joins an open run this young


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be made: its frozen spec, the texts the spec refers to by hash, and who asked for it.

    `mandate`: the id of the one whose cycles it runs; `due`: for which time of its schedule (milliseconds since 1970).
    """

    id: str
    flow: str
    version: int
    spec: str
    texts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    limits: Limits
    route: str
    principal: str
    via: str
    client: str
    key: str | None
    start_digest: bytes
    workspace: str | None
    at: int
    mandate: str | None = None
    due: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """The run of a start: a new one, or the one that the same start made before."""

    run: RunRow
    attached: bool


def create(connection: apsw.Connection, new: NewRun, owner: int) -> Made:
    """Make the run, owned; or find the one with this key, the open one of its mandate, or the identical start that is
    still open. Raises Stale where the time it is due for was run before."""
    if (same := _made_before(connection, new)) is not None:
        return Made(same, True)
    for text in new.texts:
        rows(connection, "insert or ignore into text(hash, body) values (?, ?)", text)
    caps = {f"cap_{unit}": cap for unit, cap in asdict(new.limits).items()}
    account = _insert(connection, "account", {"scope": "run", **caps})
    if new.mandate is not None and new.due is not None:
        mandates.started(connection, new.principal, new.mandate, new.due)
    n = _insert(connection, "run", {**_columns(new), "account": account, "owner": owner, "fence": 1})
    made = run_by_number(connection, n)
    for said in new.notes:
        note(connection, made, said)
    return Made(made, False)


def _columns(new: NewRun) -> dict[str, Any]:
    return {
        "id": new.id,
        "flow": new.flow,
        "version": new.version,
        "spec": new.spec,
        "principal": new.principal,
        "via": new.via,
        "client": new.client,
        "key": new.key,
        "start_digest": new.start_digest,
        "workspace": new.workspace,
        "created_at": new.at,
        "route": new.route,
        "mandate": new.mandate,
    }


def _insert(connection: apsw.Connection, table: str, columns: dict[str, Any]) -> int:
    """A row of ours, by its columns' names; gives its number."""
    places = ", ".join("?" * len(columns))
    rows(connection, f"insert into {table}({', '.join(columns)}) values ({places})", list(columns.values()))
    return connection.last_insert_rowid()


def _made_before(connection: apsw.Connection, new: NewRun) -> RunRow | None:
    if new.key is not None:
        by_key = "select n, id, start_digest from run where principal = ? and key = ?"
        found = row(connection, by_key, (new.principal, new.key))
        if found is None:
            return None
        if found[2] != new.start_digest:
            raise BadArguments(
                f"The key belongs to run {found[1]}, which was started with other arguments.",
                "Use another key, or call run_status for that run.",
                run_id=found[1],
            )
        return run_by_number(connection, found[0])
    if new.mandate is not None:
        return mandates.open_run(connection, new.principal, new.mandate)
    found = row(
        connection,
        "select n from run where start_digest = ? and principal = ? and key is null and outcome is null"
        " and created_at > ? order by n desc limit 1",
        (new.start_digest, new.principal, new.at - ATTACH_MS),
    )
    return run_by_number(connection, found[0]) if found else None


def take(connection: apsw.Connection, n: int, owner: int, dead: Sequence[int]) -> int | None:
    """Own the run if nobody living does: the new fencing number, or None."""
    places = ", ".join("?" * len(dead))
    statement = (
        "update run set owner = ?, fence = fence + 1"
        f" where n = ? and outcome is null and (owner is null or owner in ({places})) returning fence"
    )
    found = row(connection, statement, (owner, n, *dead))
    return found[0] if found else None


_GO_ON = "update run set paused = null, resume_at = null where n = ?"


def take_due(connection: apsw.Connection, n: int, owner: int, at: int, dead: Sequence[int] = ()) -> int | None:
    """Own a run whose pause is over, if nobody was quicker: the new fencing number, or None."""
    run = run_by_number(connection, n)
    if run.resume_at is None or not is_due(run.resume_at, at):
        return None
    fence = take(connection, n, owner, dead)
    if fence is not None:
        rows(connection, _GO_ON, (n,))
    return fence


@dataclass(frozen=True, slots=True)
class Deposit:
    """An answer that somebody brings for an open step: the step's path, what it costs, and in which dialect it was
    asked."""

    path: str
    answer: Answer
    tokens: Units = NOTHING
    cached: int = 0
    exactness: Exactness | None = None
    text: tuple[str, str] | None = None
    dialect: DialectName | None = None


def deposit(
    connection: apsw.Connection,
    run: RunRow,
    deposits: Sequence[Deposit],
    by: str,
    owner: int,
    at: int,
    *,
    dead: Sequence[int] = (),
) -> int | None:
    """Record answers of open steps, all or none, with their charge; own the run if nobody living does.

    The same answer again is no error. Raises NotWaiting, AlreadyAnswered. Gives the fence if the run was taken.
    """
    run = run_by_number(connection, run.n)
    fresh = [(found, each) for each in deposits if (found := _open_step(connection, run, each)) is not None]
    purse = Purse(connection, read_account(connection, run.account), branches.of_run(connection, run.account))
    for step, each in fresh:
        spent = each.tokens.plus(counts_of(step.kind))
        settled = Settled(step.id, step.path, each.answer, step.held, spent, by, each.cached, each.exactness)
        insert_answer(connection, settled, at)
        purse.settle(step.path, step.held, spent, step.shared)
        _say_dialect(connection, step, each.dialect)
        if each.text is not None:
            rows(connection, "insert or ignore into text(hash, body) values (?, ?)", each.text)
    if not fresh:
        return None
    purse.write()
    for said in flagged(purse.passed()):
        note(connection, run, said)
    return take(connection, run.n, owner, dead)


def _say_dialect(connection: apsw.Connection, step: MarkRow, dialect: DialectName | None) -> None:
    """Only with its answer is it known how a client was asked: each may be asked otherwise."""
    if dialect is None or step.sent.dialect == dialect:
        return
    table = "mark" if step.newest is None else "attempt"
    newest = "id = ?" if step.newest is None else "id = (select max(id) from attempt where mark = ?)"
    said = f"update {table} set sent = json_set(coalesce(sent, '{{}}'), '$.dialect', ?) where {newest}"
    rows(connection, said, (dialect, step.id))


def _open_step(connection: apsw.Connection, run: RunRow, each: Deposit) -> MarkRow | None:
    """The step that this answers; None where the same answer is there already."""
    found = step_at(connection, run.n, each.path)
    if found is None or (found.body is None and (not found.open or run.outcome is not None)):
        raise NotWaiting(f"Nothing waits under {each.path!r}.", "run_status shows what waits now.", run_id=run.id)
    if found.body is None:
        return found
    if found.body == encode_answer(each.answer):
        return None
    raise AlreadyAnswered(
        f"{each.path!r} was answered before, otherwise.",
        "Call run_status to see where the run stands.",
        run_id=run.id,
    )


def note(connection: apsw.Connection, run: RunRow, text: str) -> None:
    """Say of a run what was done otherwise than asked; the same text once."""
    rows(connection, "insert or ignore into note(run, text) values (?, ?)", (run.n, text))


def wish(
    connection: apsw.Connection,
    run: RunRow,
    action: Action,
    body: str,
    who: tuple[str, str, str],
    owner: int,
    at: int,
    *,
    because: str | None = None,
    dead: Sequence[int] = (),
) -> int | None:
    """Leave a control wish for the owner; own the run if nobody living does, and give the fence then.

    `because` is noted with it. Raises Stale.
    """
    go_on = f'Go on from it with planner_run continues="{run.id}".'
    if run_by_number(connection, run.n).outcome is not None:
        raise Stale("The run has ended.", go_on, run_id=run.id)
    if action == "extend" and _was_refused(connection, run.n):
        closing = f"Let its closing end: answer what waits, or wait for it. {go_on}"
        raise Stale("A limit has ended the run already; it is closing.", closing, run_id=run.id)
    rows(
        connection,
        "insert into deposit(run, kind, body, principal, via, client, at) values (?, ?, ?, ?, ?, ?, ?)",
        (run.n, action, body, *who, at),
    )
    if because is not None:
        note(connection, run, because)
    return take(connection, run.n, owner, dead)


@dataclass(frozen=True, slots=True)
class TakenUp:
    """The run after its owner took up the wishes, and which of them ask for more than a changed row."""

    run: RunRow
    cancelled: bool
    resumed: bool
    settled: Sequence[Wish] = ()


def take_up(connection: apsw.Connection, run: RunRow, owner: int, fence: int, at: int) -> TakenUp:
    """Carry out every wish that came: pause, route, limits. Raises FenceLost."""
    now = run_by_number(connection, run.n)
    if (now.owner, now.fence) != (owner, fence) or now.outcome is not None:
        raise FenceLost(run.id)
    came = wishes(connection, run.n)
    for each in came:
        match each.kind:
            case "pause":
                rows(connection, "update run set paused = ?, resume_at = null where n = ?", (each.body, run.n))
            case "resume":
                rows(connection, _GO_ON, (run.n,))
            case "reroute":
                rows(connection, "update run set route = ? where n = ?", (each.body, run.n))
            case "extend":
                _extend(connection, run, each.body)
            case "verdict":
                pass  # it stands in its approval's row, where the owner looks next
            case _:
                continue  # taken up by the turn that acts on it; a cancel by the outcome that the driver writes next
        rows(connection, "update deposit set taken = ? where id = ?", (at, each.id))
    stretching.renew(connection, run, came)
    kinds = {each.kind for each in came}
    settled = [each for each in came if each.kind == "settle"]
    return TakenUp(run_by_number(connection, run.n), "cancel" in kinds, "resume" in kinds, settled)


def _was_refused(connection: apsw.Connection, n: int) -> bool:
    """Whether a limit of the run has refused a step; one of a branch ends that branch alone."""
    found = "select 1 from mark join answer on answer.mark = mark.id where run = ? and body like ? and body not like ?"
    return row(connection, f"{found} limit 1", (n, '%"kind":"refused"}', '%"scope":"branch %')) is not None


def _extend(connection: apsw.Connection, run: RunRow, body: str) -> None:
    """Raise the caps to those of the wish; a limit that is not set stays unset."""
    caps: Limits = decode(Limits, body)
    now = read_account(connection, run.account).caps
    for unit in Units._fields:
        new, old = getattr(caps, unit), getattr(now, unit)
        if new is not None and old is not None and new > old:
            rows(connection, f"update account set cap_{unit} = ? where id = ?", (new, run.account))
