"""What else the record holds of one run: further attempts, and the texts that its spec and its results refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from kairos_mcp.budget.units import Units
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store.codec import decode_fields, decode_units
from kairos_mcp.store.connection import rows
from kairos_mcp.store.queries import RunRow, StepRow


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A further try of a step. `ended`: how the one before it did, and what it stays charged with (`lost`)."""

    mark: int
    at: int
    held: Units
    lost: Units
    ended: str
    handed_out: bool
    sent: JsonObject


def attempts(connection: apsw.Connection, n: int) -> list[AttemptRow]:
    """The further attempts of a run's steps, oldest first."""
    found = rows(
        connection,
        "select attempt.mark, attempt.at, attempt.held, attempt.lost, attempt.ended, attempt.handed_out, attempt.sent"
        " from attempt join mark on mark.id = attempt.mark where mark.run = ? order by attempt.id",
        (n,),
    )
    return [
        AttemptRow(mark, at, decode_units(held), decode_units(lost), ended, bool(out), decode_fields(sent or "{}"))
        for mark, at, held, lost, ended, out, sent in found
    ]


def referred_texts(run: RunRow, record: Sequence[StepRow]) -> list[str]:
    """The hashes of the texts that a run needs: those of its spec, then those of results that were too long."""
    spec = decode_fields(run.spec)
    hashes = [value for name, value in spec.items() if name.endswith("_text") and isinstance(value, str)]
    for row in record:
        if row.body is not None and '"kept":"' in row.body:
            kept = decode_fields(row.body).get("kept")
            hashes += [kept] if isinstance(kept, str) else []
    return list(dict.fromkeys(hashes))
