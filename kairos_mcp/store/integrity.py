"""Holds the accounts against the rows that they are the sums of, and finds what else in the file does not fit.

The sums are kept once more than they need be, since a grant needs a row: so damage to either side can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apsw

from kairos_mcp.budget.units import NOTHING, Units, counts_of
from kairos_mcp.core.errors import StoreCorrupt, Unreadable
from kairos_mcp.store import accounts, branches, inspecting, schema, texts
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.codec import decode_units
from kairos_mcp.store.connection import fetch_all, fetch_one, json_or_null
from kairos_mcp.store.inspecting import MAX_LISTED, format_first
from kairos_mcp.store.queries import run_by_number

SQLITE_DAMAGE = "SQLite finds damage"


def find_damage(connection: apsw.Connection, outcome: Any = dict[str, Any]) -> list[str]:
    """Everything that is wrong, as sentences; empty where nothing is. `outcome`: the kind of value that says how a run
    ended."""
    found = [text for (text,) in fetch_all(connection, f"pragma integrity_check({MAX_LISTED})") if text != "ok"]
    if found:
        return [f"{SQLITE_DAMAGE}: {'; '.join(found)}"]  # what rows say can't be believed then
    if unlike := schema.schema_differences(connection):
        return [f"{SQLITE_DAMAGE}: {'; '.join(unlike[:MAX_LISTED])}"]  # what is asked below may not be there
    loose = [
        *_dangling_rows(connection),
        *_missing_texts(connection),
        *texts.find_damaged_texts(connection),
        *_missing_accounts(connection),
    ]
    return [*loose, *inspecting.find_unreadable_rows(connection, outcome), *_wrong_sums(connection)]


def check_run_account(connection: apsw.Connection, n: int, account: int) -> None:
    """Raises StoreCorrupt where a run's account, or that of a branch of it, is not the sum of its rows: nothing more is
    spent of it."""
    if (wrong := _find_difference(connection, n, account)) is not None:
        raise StoreCorrupt(
            f"The run's account is not the sum of its rows: {wrong}.",
            "Run `kairos-mcp doctor`; cancel the run, or go on from it with planner_run continues.",
            run_id=run_by_number(connection, n).id,
        )


def _dangling_rows(connection: apsw.Connection) -> Iterator[str]:
    """Rows that refer to one which is not there. Owner 0 is nobody, and has no row."""
    found = [
        (table, parent)
        for table, rowid, parent, _ in fetch_all(connection, "pragma foreign_key_check")
        if not (parent == "owner" and fetch_one(connection, "select 1 from run where n = ? and owner = 0", (rowid,)))
    ]
    for table, parent in sorted(set(found)):
        yield f"{found.count((table, parent))} rows of {table} refer to a {parent} that is not there"


def _missing_texts(connection: apsw.Connection) -> Iterator[str]:
    """Texts that a spec refers to, and that are not there."""
    found = fetch_all(
        connection,
        f"select distinct run.id from run, json_each({json_or_null('run.spec')}) part"
        " where part.key like '%\\_text' escape '\\'"
        " and part.type = 'text' and not exists (select 1 from text where hash = part.value) order by 1",
    )
    if found:
        yield f"texts are missing of {format_first([run_id for (run_id,) in found])}"


def _wrong_sums(connection: apsw.Connection) -> Iterator[str]:
    found = [
        f"{run_id} ({wrong})"
        for n, run_id, account in fetch_all(
            connection, "select n, run.id, account from run join account on account.id = run.account order by n"
        )
        if (wrong := _find_readable_difference(connection, n, account)) is not None
    ]
    if found:
        yield f"the account is not the sum of its rows of {format_first(found)}"
    yield from _wrong_shared_accounts(connection)


def _find_readable_difference(connection: apsw.Connection, n: int, account: int) -> str | None:
    """As `_wrong_sum`; None also where an amount can't be read, which is told as that."""
    try:
        return _find_difference(connection, n, account)
    except Unreadable:
        return None


def _find_difference(connection: apsw.Connection, n: int, account: int) -> str | None:
    """The first unit in which the account differs, or that of a branch, with both figures."""
    spent, held = _spent_amounts(connection, n), _held_amounts(connection, n)
    within = branches.read_branch_accounts(connection, account)
    for path, number in (("", account), *within.items()):
        kept, prefix = read_account(connection, number), f"{path}/" if path else ""
        for name, told, rows_of in (("spent", kept.spent, spent), ("held", kept.held, held)):
            found = _sum_units(amount for step, amount in rows_of if step.startswith(prefix))
            for unit, by_account, by_rows in zip(Units._fields, told, found, strict=True):
                if by_account != by_rows:
                    return f"{path} {name} {unit} {by_account}, by its rows {by_rows}".lstrip()
    return None


def sum_rows(connection: apsw.Connection, n: int) -> tuple[Units, Units]:
    """What a run's rows say is spent, and held; an ended run holds nothing."""
    return _sum_units(amount for _, amount in _spent_amounts(connection, n)), _sum_units(
        amount for _, amount in _held_amounts(connection, n)
    )


def _spent_amounts(connection: apsw.Connection, n: int) -> list[tuple[str, Units]]:
    """Every amount that a run's rows say was spent, with the path of its step."""
    found = fetch_all(
        connection,
        "select path, spent from mark join answer on answer.mark = mark.id where run = ?1"
        " union all select path, lost from mark join attempt on attempt.mark = mark.id where run = ?1",
        (n,),
    )
    return [(path, decode_units(text)) for path, text in found]


def _held_amounts(connection: apsw.Connection, n: int) -> list[tuple[str, Units]]:
    """Every amount that a run's rows say is held, with the path of its step."""
    held = []
    for path, kind, own, newest in fetch_all(
        connection,
        "select path, kind, mark.held,"
        " (select held from attempt where attempt.mark = mark.id order by id desc limit 1)"
        " from run join mark on mark.run = run.n left join answer on answer.mark = mark.id"
        " where run.n = ? and run.outcome is null and answer.mark is null",
        (n,),
    ):
        itself = counts_of(kind) if own is None else decode_units(own)
        if newest is not None:  # the round or call goes on; all else is held by the newest attempt
            again = decode_units(newest)
            itself = NOTHING._replace(rounds=itself.rounds, tool_calls=itself.tool_calls).plus(again)
        held.append((path, itself))
    return held


def _sum_units(several: Iterable[Units]) -> Units:
    whole = NOTHING
    for each in several:
        whole = whole.plus(each)
    return whole


def _wrong_shared_accounts(connection: apsw.Connection) -> Iterator[str]:
    """Accounts that runs share, as a principal's day."""
    for (account,) in fetch_all(connection, "select id from account where scope in ('day', 'mandate')"):
        try:
            accounts.check_shared_account(connection, account)
        except StoreCorrupt as wrong:
            yield wrong.message.removesuffix(".")


def _missing_accounts(connection: apsw.Connection) -> Iterator[str]:
    """Accounts that steps are charged to, and that are not there."""
    found = fetch_one(
        connection,
        "select count(*) from (select shared from mark union all select shared from attempt) as charged,"
        f" json_each({json_or_null('charged.shared')}) where value not in (select id from account)",
    )
    if found is not None and found[0]:
        yield f"{found[0]} steps are charged to an account that is not there"
