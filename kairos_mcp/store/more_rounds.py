"""Grants of more rounds as rows, and what loops have done, by which one is measured.

A grant is a row of `inbox`, as an extension by a person is: kind `grant`, taken at once. It counts for the task in
which it was given, over all tries of it; without tasks, for the run.
"""

from __future__ import annotations

from collections.abc import Mapping

from kairos_mcp.budget.more_rounds import Grant, LoopRecord
from kairos_mcp.core.steps import Answer
from kairos_mcp.store.report_queries import insert_note
from kairos_mcp.store.rows import Session, decode, decode_answer, encode

GRANT_KIND = "grant"

_GRANTS = f"select body from inbox where run = ? and kind = '{GRANT_KIND}' order by id"
_INSERT_GRANT = (
    "insert into inbox(run, kind, body, principal, via, client, at, taken)"
    f" select n, '{GRANT_KIND}', ?, principal, via, client, ?, ? from run where n = ?"
)
_CALLS = """
    select step.id, path, digest, body, by_route from step left join answer on answer.step = step.id
    where run = ? and kind = 'call' order by step.id
"""


def list_grants(session: Session, run: int) -> list[Grant]:
    """List the grants of a run, oldest first. Raises Unreadable."""
    return [decode(Grant, body) for (body,) in session.rows(_GRANTS, (run,))]


def read_loops(session: Session, run: int, new: Mapping[int, tuple[Answer, str]]) -> LoopRecord:
    """Read what the loops of a run were granted and have done. Raises Unreadable.

    `new`: answers that are not in the rows yet, by the ids of their steps, each with who it came from.
    """
    loops = LoopRecord(list_grants(session, run))
    for step_id, path, digest, body, by_route in session.rows(_CALLS, (run,)):
        if body is not None:
            loops.add_call(path, digest, decode_answer(body), by_route)
        elif step_id in new:
            loops.add_call(path, digest, *new[step_id])
    return loops


def insert_grant(session: Session, run: int, grant: Grant, at: int) -> None:
    """Record a grant, and note it."""
    session.rows(_INSERT_GRANT, (encode(grant), at, at, run))
    insert_note(session, run, f"limits.rounds: {grant.granted} more were asked for and granted at {grant.call}.")
