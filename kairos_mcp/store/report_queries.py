"""Rows that only reports need: sums over a run's steps, the newest calls, and notes.

What a model without a known price costs is in no sum, so a note names the model beside each sum. The row of each
completion says it (`Sent.unpriced`), since a price may be configured, or become known, later.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from kairos_mcp.core.limits import Units
from kairos_mcp.core.messages import JsonObject, ToolCall
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.accounts import CHARGES_SQL, unit_index
from kairos_mcp.store.approvals import DialogView
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import LISTED_ID, Session, decode, decode_call, decode_units, json_or_null, placeholders

UNPRICED = """instr(sent, '"unpriced":true')"""
"""SQL for whether a model without a known price was asked: the words of the index of such rows."""

OF_PROVIDER = """instr(sent, '"route":"provider"')"""
"""SQL for whether a provider was asked: the words of the index of such rows."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """An answered call. `call`: what was called; None if a model's turn contains it. `rule`: the remembered approval
    that let it through, as the record names it."""

    path: str
    call: ToolCall | None
    body: str
    spent: Units
    rule: str | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Figures of a run that no account holds.

    `lost`: model calls of unknown outcome. `withdrawn`: requests to a client's model that ended without an answer.
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
    statement = "select id, path from step where run = ? and kind not in ('call', 'pause') order by id desc limit 1"
    return session.row(statement, (n,)) or (0, "")


def number_steps(session: Session, n: int, paths: Collection[str]) -> dict[str, int]:
    """Return the numbers in the file of the steps at these paths, by path, of those that exist and are answered."""
    statement = (
        "select path, step.id from step join answer on answer.step = step.id"
        f" where run = ? and path in ({placeholders(paths)})"
    )
    return dict(session.rows(statement, (n, *paths)))


def first_answered_at(session: Session, n: int, keys: Collection[str]) -> int | None:
    """Return when the first of these keys was answered, a step or an approval, in milliseconds since 1970; None where
    none was."""
    among = placeholders(keys)
    found = session.row(
        "select min(at) from (select answer.at from step join answer on answer.step = step.id where run = ?"
        f" and path in ({among}) union all"
        f" select decided_at from approval where run = ? and key in ({among})) as found",
        (n, *keys, n, *keys),
    )
    assert found is not None
    at: int | None = found[0]
    return at


_RULE = "(select client from approval where approval.step = answer.step and through = 'rule')"


def newest_calls(session: Session, n: int, limit: int, since: int = 0) -> list[CallRow]:
    """Return the newest answered calls, newest first, of the steps that came after the step `since`."""
    found = session.rows(
        f"select path, call, body, spent, {_RULE} from step join answer on answer.step = step.id"
        " where run = ? and kind = 'call' and step.id > ? order by step.id desc limit ?",
        (n, since, limit),
    )
    return [
        CallRow(path, decode_call(path, call), body, decode_units(spent), rule)
        for path, call, body, spent, rule in found
    ]


class DoneStep(NamedTuple):
    """An answered call or round: its row's id, its path and kind."""

    step_id: int
    path: str
    kind: str


def newest_done(session: Session, n: int, limit: int) -> list[DoneStep]:
    """Return the newest answered calls and rounds of a run, newest first."""
    found = session.rows(
        "select step.id, path, kind from step join answer on answer.step = step.id"
        " where run = ? and kind in ('call', 'round') order by step.id desc limit ?",
        (n, limit),
    )
    return [DoneStep(*columns) for columns in found]


def read_done(session: Session, step: DoneStep) -> CallRow:
    """Return the answer of an answered step, and what it cost."""
    found = session.row(
        f"select call, body, spent, {_RULE} from step join answer on answer.step = step.id where step.id = ?",
        (step.step_id,),
    )
    assert found is not None
    call, body, spent, rule = found
    return CallRow(step.path, decode_call(step.path, call), body, decode_units(spent), rule)


def newest_model(session: Session, n: int, route: str) -> str | None:
    """Return the model of the newest completion on this route, as its answer names it, else as it was asked for.

    Only the newest two are read: one that waits, and one that was answered before it.
    """
    statement = (
        "with newest as (select id, sent from step where run = ? and kind not in ('call', 'pause')"
        " order by id desc limit 2), asked as (select newest.id, coalesce((select attempt.sent from attempt"
        " where attempt.step = newest.id order by attempt.id desc limit 1), newest.sent) as sent, body"
        " from newest left join answer on answer.step = newest.id), named as (select id,"
        f" json_extract({json_or_null('sent')}, '$.route') as route, coalesce(json_extract({json_or_null('body')},"
        f" '$.model'), json_extract({json_or_null('sent')}, '$.model')) as model from asked)"
        " select model from named where route = ? and model is not null order by id desc limit 1"
    )
    found = session.row(statement, (n, route))
    model: str | None = None if found is None else found[0]
    return model


_TALLY = f"""
    select (select count(*) from attempt join step on step.id = attempt.step where attempt.run = :run
            and ended = 'unknown' and step.kind <> 'call' and step.id >= :since),
        (select count(*) from client_completion where run = :run and charged is not null and step >= :since),
        exists(select 1 from attempt where run = :run
            and {json_or_null("lost")} ->> {unit_index("output_tokens")} > 0),
        exists(select 1 from step where run = :run and {UNPRICED})
            or exists(select 1 from attempt where run = :run and {UNPRICED}),
        exists(select 1 from step where run = :run and {OF_PROVIDER})
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
        f"select 1 from (select id from step where run = ?1 and {OF_PROVIDER}"
        " union all select step from attempt where run = ?1) as asked join answer on answer.step = asked.id"
        f" where by_route = 'provider' and json_extract({json_or_null('body')}, '$.private') is not null limit 1"
    )
    return session.row(statement, (n,)) is not None


class DecisionRow(NamedTuple):
    """A decision about a step, in the words in which a trace shows it: its fields are the trace's keys.

    `kind`: approval or settlement. `said`: the decision. `by`: the principal, empty where nobody decided in time.
    `through`: what it came through. `at`: milliseconds since 1970. `note`: the reviewer's comment. `shown`: of one made
    in a client's dialog, how much was shown there. `files`: those that alone were approved.
    """

    kind: str
    said: str
    by: str
    through: str
    client: str
    at: int
    note: str | None
    shown: str | None
    files: Any = None

    def as_json(self) -> JsonObject:
        """Return it as it is shown, without `shown` where no dialog was, and `files` where all were decided about."""
        optional = ("shown", "files")
        return {name: value for name, value in self._asdict().items() if name not in optional or value is not None}


_LIST_DECISIONS = f"""
    select path, 'approval', verdict, by, through, approval.client, decided_at, feedback, shown, files
    from approval join step on step.id = approval.step where approval.run = ?1 and verdict <> 'withdrawn'
    union all
    select json_extract({json_or_null("body")}, '$.path'), 'settlement',
        json_extract({json_or_null("body")}, '$.settlement'), principal, via, client, at,
        json_extract({json_or_null("body")}, '$.note'), null, null
    from inbox where run = ?1 and kind = 'settle' order by 7
"""


def list_decisions(session: Session, n: int) -> dict[str, list[DecisionRow]]:
    """Return the decisions about a run's steps by path, oldest first."""
    found: dict[str, list[DecisionRow]] = {}
    for path, *rest in session.rows(_LIST_DECISIONS, (n,)):
        decision = DecisionRow(*rest)
        if decision.shown is not None:
            decision = decision._replace(shown=decode(DialogView, decision.shown).describe())
        if decision.files is not None:
            decision = decision._replace(files=decode(list[str], decision.files))
        found.setdefault(path, []).append(decision)
    return found


def list_notes(session: Session, n: int, since: int = 0) -> list[str]:
    """List the notes of a run, oldest first: those that came while the step `since` was its newest, or later."""
    statement = "select text from note where run = ? and step >= ? order by rowid"
    return [text for (text,) in session.rows(statement, (n, since))]


def insert_note(session: Session, run: int, text: str) -> None:
    """Insert a note of the run with this number. The same text is stored once."""
    statement = (
        "insert into note(run, text, step) values (:run, :text,"
        " (select coalesce(max(id), 0) from step where run = :run)) on conflict do nothing"
    )
    session.rows(statement, {"run": run, "text": text})


_UNPRICED_OF_RUN = f"""
    select distinct json_extract(sent, '$.model') from (
        select {json_or_null("sent")} as sent from (select sent from step where run = ?1 and {UNPRICED} union all
            select sent from attempt where run = ?1 and {UNPRICED}))
    where json_type(sent, '$.unpriced') = 'true' order by 1
"""
# `run > 0`, which each is, names the column of the index of such rows, so that no other row is looked at.
_UNPRICED_STEPS = f"""
    select id from step where run > 0 and {UNPRICED} union all select step from attempt where run > 0 and {UNPRICED}
"""
_UNPRICED_BY_ACCOUNT = f"""
    select distinct {LISTED_ID}, json_extract(sent, '$.model') from ({CHARGES_SQL.format(steps=_UNPRICED_STEPS)}),
        json_each(shared) as item
    where json_type(sent, '$.unpriced') = 'true' order by 1, 2
"""


def unpriced_models(session: Session, n: int) -> tuple[str, ...]:
    """Return the models without a known price that a run has asked, by name."""
    return tuple(model for (model,) in session.rows(_UNPRICED_OF_RUN, (n,)))


def unpriced_models_by_account(session: Session) -> dict[int, list[str]]:
    """Return the models without a known price that were charged to each shared account, by the account's id."""
    found: dict[int, list[str]] = {}
    for account, model in session.rows(_UNPRICED_BY_ACCOUNT):
        found.setdefault(account, []).append(model)
    return found
