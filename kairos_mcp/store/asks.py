"""The jobs on asks: put open completions to a client, take its answers once, find what was asked before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import apsw

from kairos_mcp.store.connection import row, rows
from kairos_mcp.store.reading import RunRow
from kairos_mcp.store.runs import Deposit, deposit


@dataclass(frozen=True, slots=True)
class AskRow:
    """Completions put to a client: `keys` maps the key on the wire to the path of the step. Times in ms."""

    nonce: str
    run: int
    keys: Mapping[str, str]
    principal: str
    client: str
    at: int
    consumed: int | None


def ask(
    connection: apsw.Connection, run: RunRow, paths: Sequence[str], nonce: str, who: tuple[str, str], at: int
) -> AskRow:
    """Write a new ask. A path that was asked before gets a new key, `path#2`: no answer counts for two asks."""
    before = [key for asked in asks(connection, run.n) for key in asked.keys]
    keys = {_key(path, before): path for path in paths}
    rows(
        connection,
        "insert into ask(nonce, run, keys, principal, client, at) values (?, ?, ?, ?, ?, ?)",
        (nonce, run.n, json.dumps(keys), *who, at),
    )
    return AskRow(nonce, run.n, keys, *who, at, None)


def take_answers(
    connection: apsw.Connection, run: RunRow, nonce: str, deposits: Sequence[Deposit], owner: int, at: int
) -> tuple[bool, int | None]:
    """Consume the ask and deposit what came, in one transaction: of several that bring it, one is first.

    Gives whether this was the first, and the fence if the run was taken. Raises what `deposit` raises.
    """
    found = row(connection, "select consumed from ask where nonce = ? and run = ?", (nonce, run.n))
    if found is None or found[0] is not None:
        return False, None
    fence = deposit(connection, run, deposits, "sampling", owner, at) if deposits else None
    rows(connection, "update ask set consumed = ? where nonce = ?", (at, nonce))
    return True, fence


def asks(connection: apsw.Connection, n: int) -> list[AskRow]:
    """The asks of a run, oldest first."""
    found = rows(
        connection,
        "select nonce, run, keys, principal, client, at, consumed from ask where run = ? order by rowid",
        (n,),
    )
    return [AskRow(nonce, run, json.loads(keys), *rest) for nonce, run, keys, *rest in found]


def _key(path: str, before: Sequence[str]) -> str:
    times = sum(key == path or key.startswith(f"{path}#") for key in before)
    return path if times == 0 else f"{path}#{times + 1}"
