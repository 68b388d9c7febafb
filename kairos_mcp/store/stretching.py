"""What a run of a mandate may use until a person looks at it again: counted anew with each word of theirs (O17)."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from kairos_mcp.core.run_spec import Spec
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.codec import decode
from kairos_mcp.store.connection import row, rows
from kairos_mcp.store.queries import ControlRequest, RunRow

UNITS = ("model_calls", "milliseconds")


def renew_stretch(connection: apsw.Connection, run: RunRow, came: Iterable[ControlRequest]) -> None:
    """Where a person resumed the run or approved a call of it, give it another stretch, within what it may have in
    all. Part of the transaction that takes these wishes up."""
    spec: Spec = decode(Spec, run.spec)
    if spec.stretch is None or not any(_is_from_person(connection, run, each) for each in came):
        return
    account = read_account(connection, run.account)
    for unit in UNITS:
        more, most = getattr(spec.stretch, unit), getattr(spec.stretch.most, unit)
        if more is not None:
            cap = getattr(account.spent, unit) + getattr(account.held, unit) + more
            cap = max(cap if most is None else min(cap, most), getattr(account.caps, unit))
            rows(connection, f"update account set cap_{unit} = ? where id = ?", (cap, run.account))


def _is_from_person(connection: apsw.Connection, run: RunRow, wish: ControlRequest) -> bool:
    """What comes through MCP may be a model's own word."""
    match wish:
        case ControlRequest(kind="resume", via=via):
            return via != "mcp"
        case ControlRequest(kind="verdict", body=key, via=via) if via != "mcp":
            approved = "select 1 from approval where run = ? and key = ? and verdict = 'approve'"
            return row(connection, approved, (run.n, key)) is not None
        case _:
            return False
