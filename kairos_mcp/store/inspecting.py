"""Takes every typed row of the store apart, once, and names the runs of those that hold something else.

What is looked at is what somebody would read: an attempt is asked for all that it says, a removed run for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import apsw

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.store import settlements
from kairos_mcp.store.codec import decode, decode_answer, decode_sent, decode_shared, decode_texts, decode_units

MAX_LISTED = 5  # runs of each kind of row


class CheckedColumn(NamedTuple):
    """Rows of a kind: what they hold, the statement that gives (run, where it stands, text), and what reads a text."""

    what: str
    statement: str
    read: Callable[[str], object]


_RUN = "select id, '', {} from run where {} is not null"
_MARK = "select run.id, path, mark.{} from mark join run on run.n = mark.run where mark.{} is not null"
_ANSWER = "select run.id, path, answer.{} from answer join mark on mark.id = answer.mark join run on run.n = mark.run"
_ATTEMPT = (
    "select run.id, path, attempt.{} from attempt join mark on mark.id = attempt.mark join run on run.n = mark.run"
    " where attempt.{} is not null"
)
_DEPOSIT = "select run.id, '', body from deposit join run on run.n = deposit.run where deposit.kind = '{}'"


def _columns(outcome: Any) -> Iterator[CheckedColumn]:
    yield CheckedColumn("spec", _RUN.format("spec", "spec"), lambda text: decode(Spec, text))
    yield CheckedColumn("outcome", _RUN.format("outcome", "outcome"), lambda text: decode(outcome, text))
    yield CheckedColumn("answer", _ANSWER.format("body"), decode_answer)
    yield CheckedColumn("cost", _ANSWER.format("spent"), decode_units)
    for name, read in (("held", decode_units), ("sent", decode_sent), ("shared", decode_shared)):
        yield CheckedColumn(name, _MARK.format(name, name), read)
        yield CheckedColumn(f"{name} of an attempt", _ATTEMPT.format(name, name), read)
    yield CheckedColumn("lost of an attempt", _ATTEMPT.format("lost", "lost"), decode_units)
    bound = "select run.id, path, bound from request join mark on mark.id = request.mark join run on run.n = mark.run"
    yield CheckedColumn("bound of a request", bound, decode_units)
    leave = "select run.id, approval.key, base from approval join run on run.n = approval.run"
    yield CheckedColumn("files of an approval", leave, decode_texts)
    keys = "select run.id, '', keys from ask join run on run.n = ask.run"
    yield CheckedColumn("keys of an ask", keys, decode_texts)
    yield CheckedColumn("word on limits", _DEPOSIT.format("extend"), lambda text: decode(Limits, text))
    settled = _DEPOSIT.format(settlements.DEPOSIT_KIND)
    yield CheckedColumn("word on a lost call", settled, lambda text: decode(settlements.SettlementRequest, text))


def find_unreadable_rows(connection: apsw.Connection, outcome: Any) -> Iterator[str]:
    """A sentence for each kind of row that holds something else, with the runs and where in them. `outcome`: how runs
    end, which the flows say."""
    for column in _columns(outcome):
        found: dict[str, str] = {}  # the first of each run
        for run_id, where, text in connection.execute(column.statement):
            try:
                column.read(text)
            except Unreadable:
                found.setdefault(run_id, f"{run_id} ({where})" if where else run_id)
        if found:
            yield f"the {column.what} can't be read of {format_first(list(found.values()))}"


def format_first(names: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{', '.join(names[:MAX_LISTED])}{more}"
