"""Queries that only reports need: sums over a run's steps, the newest calls, the turn before an act, notes.

Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from kairos_mcp.budget.units import Units
from kairos_mcp.core.messages import Completion
from kairos_mcp.store.accounts import unit_index
from kairos_mcp.store.codec import decode_answer, decode_units
from kairos_mcp.store.notes import unpriced_models
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.schema import OF_PROVIDER, UNPRICED
from kairos_mcp.store.session import Session, json_or_null, placeholders


@dataclass(frozen=True, slots=True)
class CallRow:
    """An answered call. `rule`: the remembered approval that let it through, as the record names it."""

    path: str
    body: str
    spent: Units
    rule: str | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Figures of a run that no account holds.

    `lost`: attempts whose outcome is unknown. `withdrawn`: requests to a client's model that ended without an answer.
    `unpriced`: models without a known price, whose cost is missing from the run's dollars. `has_private_content`: an
    answer holds content that may be sent back to its provider alone.
    """

    lost: int
    withdrawn: int
    exactness: tuple[str, ...]
    unpriced: tuple[str, ...] = ()
    has_private_content: bool = False


def newest_completion(session: Session, n: int) -> tuple[int, str]:
    """Return the number in the file and the path of the newest completion of a run; (0, "") where it has none."""
    statement = "select id, path from mark where run = ? and kind not in ('call', 'pause') order by id desc limit 1"
    return session.row(statement, (n,)) or (0, "")


def oldest_step(session: Session, n: int, paths: Collection[str]) -> int:
    """Return the number in the file of the oldest of the steps at these paths, all of which exist; 0 without any."""
    statement = f"select coalesce(min(id), 0) from mark where run = ? and path in ({placeholders(paths)})"
    found = session.row(statement, (n, *paths))
    assert found is not None
    return int(found[0])


def first_answered_at(session: Session, n: int, keys: Collection[str]) -> int | None:
    """Return when the first of these keys was answered, a step or an approval, in milliseconds since 1970; None where
    none was."""
    among = placeholders(keys)
    found = session.row(
        "select min(at) from (select answer.at from mark join answer on answer.mark = mark.id where run = ?"
        f" and path in ({among}) union all"
        f" select decided_at from approval where run = ? and key in ({among})) as found",
        (n, *keys, n, *keys),
    )
    assert found is not None
    at: int | None = found[0]
    return at


_RULE = "(select client from approval where approval.mark = answer.mark and through = 'rule')"


def newest_calls(session: Session, n: int, limit: int, since: int = 0) -> list[CallRow]:
    """Return the newest answered calls, newest first, of the steps that came after the step `since`."""
    found = session.rows(
        f"select path, body, spent, {_RULE} from mark join answer on answer.mark = mark.id"
        " where run = ? and kind = 'call' and mark.id > ? order by mark.id desc limit ?",
        (n, since, limit),
    )
    return [CallRow(path, body, decode_units(spent), rule) for path, body, spent, rule in found]


class DoneStep(NamedTuple):
    """An answered call or round: its row's id, its path and kind."""

    step_id: int
    path: str
    kind: str


def newest_done(session: Session, n: int, limit: int) -> list[DoneStep]:
    """Return the newest answered calls and rounds of a run, newest first."""
    found = session.rows(
        "select mark.id, path, kind from mark join answer on answer.mark = mark.id"
        " where run = ? and kind in ('call', 'round') order by mark.id desc limit ?",
        (n, limit),
    )
    return [DoneStep(*columns) for columns in found]


def read_done(session: Session, step: DoneStep) -> CallRow:
    """Return the answer of an answered step, and what it cost."""
    found = session.row(f"select body, spent, {_RULE} from answer where mark = ?", (step.step_id,))
    assert found is not None
    body, spent, rule = found
    return CallRow(step.path, body, decode_units(spent), rule)


def find_turn_before(session: Session, n: int, path: str, path_pattern: str) -> Completion | None:
    """Return the model's newest turn before the step at `path`, at a path that matches a SQL `like` pattern."""
    found = session.row(
        "select body from mark join answer on answer.mark = mark.id where run = :run"
        " and path like :pattern and kind in ('phase', 'repair')"
        " and mark.id < (select id from mark where run = :run and path = :path)"
        " order by mark.id desc limit 1",
        {"run": n, "pattern": path_pattern, "path": path},
    )
    answer = decode_answer(found[0]) if found is not None else None
    return answer if isinstance(answer, Completion) else None


def newest_model(session: Session, n: int, route: str) -> str | None:
    """Return the model of the newest completion on this route, as its answer names it, else as it was asked for.

    Only the newest two are read: one that waits, and one that was answered before it.
    """
    statement = (
        "with newest as (select id, sent from mark where run = ? and kind not in ('call', 'pause')"
        " order by id desc limit 2), asked as (select newest.id, coalesce((select attempt.sent from attempt"
        " where attempt.mark = newest.id order by attempt.id desc limit 1), newest.sent) as sent, body"
        " from newest left join answer on answer.mark = newest.id), named as (select id,"
        f" json_extract({json_or_null('sent')}, '$.route') as route, coalesce(json_extract({json_or_null('body')},"
        f" '$.model'), json_extract({json_or_null('sent')}, '$.model')) as model from asked)"
        " select model from named where route = ? and model is not null order by id desc limit 1"
    )
    found = session.row(statement, (n, route))
    model: str | None = None if found is None else found[0]
    return model


_TALLY = f"""
    select (select count(*) from attempt where run = :run and ended = 'unknown' and mark >= :since),
        (select count(*) from request where run = :run and charged is not null and mark >= :since),
        exists(select 1 from attempt where run = :run
            and {json_or_null("lost")} ->> {unit_index("output_tokens")} > 0),
        exists(select 1 from mark where run = :run and {UNPRICED})
            or exists(select 1 from attempt where run = :run and {UNPRICED}),
        exists(select 1 from mark where run = :run and {OF_PROVIDER})
            or exists(select 1 from attempt where run = :run)
"""


def read_tally(session: Session, run: RunRow, since: int = 0) -> Tally:
    """Return the figures of a run that no account holds; `lost` and `withdrawn` of the step `since` and later ones."""
    found = session.row(_TALLY, {"run": run.n, "since": since})
    assert found is not None
    lost, withdrawn, charged, is_unpriced, has_asked_provider = found
    return Tally(
        lost,
        withdrawn,
        (*filter(None, run.exactness.split(",")), *(("bounded",) if charged else ())),
        unpriced_models(session, run.n) if is_unpriced else (),
        bool(has_asked_provider) and has_private_content(session, run.n),
    )


def has_private_content(session: Session, n: int) -> bool:
    """Whether an answer of the run holds content that may be sent back to its provider alone.

    Only those are read whose step was begun on that route, or begun again on whatever route.
    """
    statement = (
        f"select 1 from (select id from mark where run = ?1 and {OF_PROVIDER}"
        " union all select mark from attempt where run = ?1) as asked join answer on answer.mark = asked.id"
        f" where by_route = 'provider' and json_extract({json_or_null('body')}, '$.private') is not null limit 1"
    )
    return session.row(statement, (n,)) is not None


class DecisionRow(NamedTuple):
    """A decision about a step, in the words in which a trace shows it: its fields are the trace's keys.

    `kind`: approval or settlement. `said`: the decision. `by`: the principal, empty where nobody decided in time.
    `through`: what it came through. `at`: milliseconds since 1970. `note`: the reviewer's comment.
    """

    kind: str
    said: str
    by: str
    through: str
    client: str
    at: int
    note: str | None


_LIST_DECISIONS = f"""
    select path, 'approval', verdict, by, through, approval.client, decided_at, feedback
    from approval join mark on mark.id = approval.mark where approval.run = ?1 and verdict is not null
    union all
    select json_extract({json_or_null("body")}, '$.path'), 'settlement',
        json_extract({json_or_null("body")}, '$.settlement'), principal, via, client, at,
        json_extract({json_or_null("body")}, '$.note')
    from deposit where run = ?1 and kind = 'settle' order by 7
"""


def list_decisions(session: Session, n: int) -> dict[str, list[DecisionRow]]:
    """Return the decisions about a run's steps by path, oldest first."""
    found: dict[str, list[DecisionRow]] = {}
    for path, *rest in session.rows(_LIST_DECISIONS, (n,)):
        found.setdefault(path, []).append(DecisionRow(*rest))
    return found


def list_notes(session: Session, n: int, since: int = 0) -> list[str]:
    """List the notes of a run, oldest first: those that came while the step `since` was its newest, or later."""
    statement = "select text from note where run = ? and step >= ? order by rowid"
    return [text for (text,) in session.rows(statement, (n, since))]
