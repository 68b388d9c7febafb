"""Find damage in the state file: accounts that are not the sum of their rows, rows and texts that can't be read.

An account could be computed from the rows of its steps; it is stored as well, since a reservation needs one row to
update. So damage on either side shows. Of encoded columns those are decoded that a reader of the run would decode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from kairos_mcp.core.errors import StoreCorrupt, Unreadable
from kairos_mcp.core.limits import NOTHING, Limits, Units, counts_of
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import StoredCall
from kairos_mcp.core.text import count_of
from kairos_mcp.store import accounts, rules, schema, settlements
from kairos_mcp.store.accounts import read_account, read_branch_accounts
from kairos_mcp.store.queries import IS_OPEN, run_by_number
from kairos_mcp.store.rows import (
    LISTED_ID,
    Session,
    decode,
    decode_answer,
    decode_sent,
    decode_shared,
    decode_texts,
    decode_units,
    json_or_null,
)

MAX_LISTED = 5  # runs named in one sentence
STORE_DAMAGE = "The store is damaged"  # how a text begins that concerns more than some rows


def find_damage(session: Session, outcome: Any = dict[str, Any]) -> list[str]:
    """List all damage of a state file, a sentence each. `outcome`: the type of a run's outcome, which flows define."""
    found = [text for (text,) in session.rows(f"pragma integrity_check({MAX_LISTED})") if text != "ok"]
    if found:
        return [f"{STORE_DAMAGE}: {'; '.join(found)}"]  # its rows can't be trusted then
    if unlike := schema.schema_differences(session):
        return [f"{STORE_DAMAGE}: {'; '.join(unlike[:MAX_LISTED])}"]  # statements may name what is missing
    return find_wrong_rows(session, outcome)


def find_wrong_rows(session: Session, outcome: Any = dict[str, Any]) -> list[str]:
    """List what is damaged in the rows of any store, a sentence each."""
    loose = [
        *_dangling_rows(session),
        *_missing_texts(session),
        *_damaged_texts(session),
        *_missing_accounts(session),
        *_wrong_figures(session),
    ]
    return [*loose, *_unreadable_rows(session, outcome), *_wrong_sums(session)]


def check_run_account(session: Session, n: int, account: int) -> None:
    """Raise StoreCorrupt where the account of a run, or of a branch of it, is not the sum of its rows.

    Nothing more may be spent of such an account.
    """
    if (wrong := _find_difference(session, n, account)) is not None:
        raise StoreCorrupt(
            f"The run's account is not the sum of its rows: {wrong}.",
            "Run `kairos-mcp doctor`; cancel the run, or go on from it with planner_run continues.",
            run_id=run_by_number(session, n).id,
        )


def _dangling_rows(session: Session) -> Iterator[str]:
    """Find rows that refer to a row that is not there. A reference to 0 is to nobody, and has no row."""
    found: Counter[tuple[str, str]] = Counter()
    for parent, references in schema.list_references().items():
        known = f"select {schema.integer_key(parent)} from {parent}"
        for table, column in references:
            row = session.row(f"select count(*) from {table} where {column} <> 0 and {column} not in ({known})")
            found[table, parent] += row[0] if row is not None else 0
    for (table, parent), count in sorted(found.items()):
        if count:
            yield f"{count} rows of {table} refer to a {parent} that is not there"


def _missing_texts(session: Session) -> Iterator[str]:
    """Find runs whose spec refers to a text that is not there."""
    found = session.rows(
        f"select distinct run.id from run, json_each({json_or_null('run.spec')}) part"
        " where part.key like '%\\_text' escape '\\'"
        " and part.type = 'text' and not exists (select 1 from text where hash = part.value) order by 1",
    )
    if found:
        yield f"texts are missing of {_format_first([run_id for (run_id,) in found])}"


_OPEN_STEPS = f"""
    select run, step.id from step left join answer on answer.step = step.id where answer.step is null and {IS_OPEN}
"""
_WRONG_FIGURES = """
    select id from run where cached <> (select coalesce(sum(answer.cached), 0) from step join answer
            on answer.step = step.id where run = n and kind <> 'call')
        or exists (select 1 from step join answer on answer.step = step.id
            where run = n and kind <> 'call'
                and replace(run.exactness, answer.exactness || ',', '') = run.exactness)
"""


def _wrong_figures(session: Session) -> Iterator[str]:
    """Find what is stored beside the steps of a run, so that a look at it is quick, and differs from the steps."""
    unlike = session.row(
        f"select count(*) from (select * from (select run, step from waiting except {_OPEN_STEPS})"
        f" union all select * from ({_OPEN_STEPS} except select run, step from waiting))"
    )
    if unlike is not None and unlike[0]:
        yield f"{unlike[0]} rows of waiting do not fit the steps"
    strays = session.row(
        "select count(*) from attempt join step on step.id = attempt.step where attempt.run is distinct from step.run"
    )
    if strays is not None and strays[0]:
        yield f"{strays[0]} rows of attempt name another run than their step"
    if found := session.rows(_WRONG_FIGURES):
        yield f"the figures do not fit the answers of {_format_first([run_id for (run_id,) in found])}"


def _wrong_sums(session: Session) -> Iterator[str]:
    found = [
        f"{run_id} ({wrong})"
        for n, run_id, account in session.rows(
            "select n, run.id, account from run join account on account.id = run.account order by n"
        )
        if (wrong := _find_readable_difference(session, n, account)) is not None
    ]
    if found:
        yield f"the account is not the sum of its rows of {_format_first(found)}"
    yield from _wrong_shared_accounts(session)


def _find_readable_difference(session: Session, n: int, account: int) -> str | None:
    """As `_find_difference`; None also where an amount can't be read, which `_unreadable_rows` reports."""
    try:
        return _find_difference(session, n, account)
    except Unreadable:
        return None


def _find_difference(session: Session, n: int, account: int) -> str | None:
    """Return the first unit in which the account, or that of a branch, differs from its rows, with both figures."""
    spent, held = _spent_amounts(session, n), _held_amounts(session, n)
    within = read_branch_accounts(session, account)
    for path, number in (("", account), *within.items()):
        stored, prefix = read_account(session, number), f"{path}/" if path else ""
        for name, stored_amount, amounts in (("spent", stored.spent, spent), ("held", stored.held, held)):
            found = _sum_units(amount for step, amount in amounts if step.startswith(prefix))
            for unit, by_account, by_rows in zip(Units._fields, stored_amount, found, strict=True):
                if by_account != by_rows:
                    return f"{path} {name} {unit} {by_account}, by its rows {by_rows}".lstrip()
    return None


def sum_rows(session: Session, n: int) -> tuple[Units, Units]:
    """Return what a run's rows say is spent, and held; an ended run holds nothing."""
    return _sum_units(amount for _, amount in _spent_amounts(session, n)), _sum_units(
        amount for _, amount in _held_amounts(session, n)
    )


def _spent_amounts(session: Session, n: int) -> list[tuple[str, Units]]:
    """Return every amount that a run's rows say was spent, with the path of its step."""
    found = session.rows(
        "select path, spent from step join answer on answer.step = step.id where run = ?1"
        " union all select path, lost from step join attempt on attempt.step = step.id where step.run = ?1",
        (n,),
    )
    return [(path, decode_units(text)) for path, text in found]


def _held_amounts(session: Session, n: int) -> list[tuple[str, Units]]:
    """Return every amount that a run's rows say is held, with the path of its step."""
    held = []
    for path, kind, own, newest in session.rows(
        "select path, kind, step.held,"
        " (select held from attempt where attempt.step = step.id order by id desc limit 1)"
        " from run join step on step.run = run.n left join answer on answer.step = step.id"
        " where run.n = ? and run.outcome is null and answer.step is null",
        (n,),
    ):
        amount = counts_of(kind) if own is None else decode_units(own)
        if newest is not None:  # the step still holds its round or call; all else is held by its newest attempt
            first = NOTHING._replace(rounds=amount.rounds, tool_calls=amount.tool_calls)
            amount = first.plus(decode_units(newest))
        held.append((path, amount))
    return held


def _sum_units(amounts: Iterable[Units]) -> Units:
    total = NOTHING
    for amount in amounts:
        total = total.plus(amount)
    return total


def _wrong_shared_accounts(session: Session) -> Iterator[str]:
    """Find shared accounts that say less than their rows do."""
    for (account,) in session.rows("select id from account where scope in ('day', 'mandate')"):
        try:
            accounts.check_shared_account(session, account)
        except StoreCorrupt as wrong:
            yield wrong.message.removesuffix(".")


def _missing_accounts(session: Session) -> Iterator[str]:
    """Count the steps that are charged to an account that is not there."""
    found = session.row(
        "select count(*) from (select shared from step union all select shared from attempt) as charged,"
        f" json_each({json_or_null('charged.shared')}) as item where {LISTED_ID} not in (select id from account)",
    )
    if found is not None and found[0]:
        yield f"{count_of(found[0], 'step is', 'steps are')} charged to an account that is not there"


_RUNS_USING_TEXT = f"""
    select run.id from run, json_each({json_or_null("run.spec")}) part where part.value = ?1
    union select run.id from answer join step on step.id = answer.step join run on run.n = step.run
    where instr(answer.body, ?1)
"""


def _damaged_texts(session: Session) -> Iterator[str]:
    """Find damaged texts that some run uses: one sentence that names those runs. Reads every text."""
    damaged = [
        content_hash
        for content_hash, body in session.stream("select hash, cast(body as blob) from text")
        if sha256(body).hexdigest() != content_hash
    ]
    users = {run_id: None for damaged_hash in damaged for (run_id,) in session.rows(_RUNS_USING_TEXT, (damaged_hash,))}
    if users:
        yield f"texts are damaged of {_format_first(sorted(users))}"


class CheckedColumn(NamedTuple):
    """An encoded column: what it holds, a statement that selects (run, path, text), and what decodes the text."""

    what: str
    statement: str
    read: Callable[[str], object]


_RUN = "select id, '', {} from run where {} is not null"
_STEP_TEXT = "select run.id, path, step.{} from step join run on run.n = step.run where step.{} is not null"
_ANSWER = "select run.id, path, answer.{} from answer join step on step.id = answer.step join run on run.n = step.run"
_ATTEMPT = (
    "select run.id, path, attempt.{} from attempt join step on step.id = attempt.step join run on run.n = step.run"
    " where attempt.{} is not null"
)
_INBOX_BODY = "select run.id, '', body from inbox join run on run.n = inbox.run where inbox.kind = '{}'"


def _columns(outcome: Any) -> Iterator[CheckedColumn]:
    yield CheckedColumn("spec", _RUN.format("spec", "spec"), lambda text: decode(Spec, text))
    yield CheckedColumn("outcome", _RUN.format("outcome", "outcome"), lambda text: decode(outcome, text))
    yield CheckedColumn("answer", _ANSWER.format("body"), decode_answer)
    yield CheckedColumn("call of a step", _STEP_TEXT.format("call", "call"), lambda text: decode(StoredCall, text))
    yield CheckedColumn("cost", _ANSWER.format("spent"), decode_units)
    for name, read in (("held", decode_units), ("sent", decode_sent), ("shared", decode_shared)):
        yield CheckedColumn(name, _STEP_TEXT.format(name, name), read)
        yield CheckedColumn(f"{name} of an attempt", _ATTEMPT.format(name, name), read)
    yield CheckedColumn("lost of an attempt", _ATTEMPT.format("lost", "lost"), decode_units)
    bound = (
        "select run.id, path, bound from client_completion as asked"
        " join step on step.id = asked.step join run on run.n = step.run"
    )
    yield CheckedColumn("bound of a request", bound, decode_units)
    hashes = "select run.id, approval.key, base from approval join run on run.n = approval.run"
    yield CheckedColumn("files of an approval", hashes, decode_texts)
    shapes = "select run.id, approval.key, shape from approval join run on run.n = approval.run where shape is not null"
    yield CheckedColumn("shape of an approval", shapes, rules.decode_shape)
    covered = "select approved_in, 'rule ' || id, covered from rule"
    yield CheckedColumn("calls of a remembered approval", covered, lambda text: decode(rules.CoveredCalls, text))
    keys = "select run.id, '', keys from client_question join run on run.n = client_question.run"
    yield CheckedColumn("keys of an ask", keys, decode_texts)
    yield CheckedColumn("word on limits", _INBOX_BODY.format("extend"), lambda text: decode(Limits, text))
    settled = _INBOX_BODY.format(settlements.KIND)
    yield CheckedColumn("word on a lost call", settled, lambda text: decode(settlements.SettlementRequest, text))


def _unreadable_rows(session: Session, outcome: Any) -> Iterator[str]:
    """Yield one sentence for each column that can't be decoded somewhere, with the runs and where in them.

    `outcome`: the type of a run's outcome, which flows define.
    """
    for column in _columns(outcome):
        found: dict[str, str] = {}  # the first place in each run
        for run_id, where, text in session.stream(column.statement):
            try:
                column.read(text)
            except Unreadable:
                found.setdefault(run_id, f"{run_id} ({where})" if where else run_id)
        if found:
            yield f"the {column.what} can't be read of {_format_first(list(found.values()))}"


def _format_first(names: list[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{', '.join(names[:MAX_LISTED])}{more}"
