"""What was done in a run, item by item, for somebody who watches it: its calls, and what the model says beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kairos_mcp.core.messages import Completion, JsonObject
from kairos_mcp.store import report_queries
from kairos_mcp.store.codec import decode_answer
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.session import Session
from kairos_mcp.views.run_report import call_entry


@dataclass(frozen=True, slots=True)
class ProgressItem:
    """A step that was done, by its path (`ref`): a call, as a report shows it, or what the model said beside calls.

    Neither: a round of which there is nothing to show beside its calls, or beside the run's output.
    """

    ref: str
    call: JsonObject | None = None
    said: str | None = None


def read_progress(session: Session, run: RunRow, known: Collection[str], limit: int) -> list[ProgressItem]:
    """Return what is done and not among the `known` refs, of the newest `limit` steps, oldest first."""
    return list(_items(session, run, known, limit))[::-1]


def _items(session: Session, run: RunRow, known: Collection[str], limit: int) -> Iterator[ProgressItem]:
    for step in report_queries.newest_done(session, run.n, limit):
        if step.path in known:
            continue
        row = report_queries.read_done(session, step)
        if step.kind == "call":
            yield ProgressItem(step.path, call=call_entry(session, run, row))
            continue
        match decode_answer(row.body):
            case Completion(content=said, tool_calls=(_, *_)) if said.strip():
                yield ProgressItem(step.path, said=said)
            case _:
                yield ProgressItem(step.path)
