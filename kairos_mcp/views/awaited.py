"""What a run that works is waiting for, and until when at the latest: a provider that is slow, or is asked again.

Of what is being performed the rows say since when and for how long at most; of a pause between two attempts only the
server that makes it knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apsw

from kairos_mcp.store import queries
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.views.waiting import iso

WORTH_SAYING_MS = 1_000  # what takes less is no wait


class BackOff(NamedTuple):
    """An attempt at the step at `path` that failed, as `why` says, and the moment of the next one (milliseconds since
    1970), which is number `attempt` of `of`."""

    path: str
    why: str
    again_at: int
    attempt: int
    of: int


def current_waits(connection: apsw.Connection, run: RunRow, at: int, backing_off: Sequence[BackOff]) -> Iterator[str]:
    """A sentence for each step that somebody waits for at this moment."""
    pauses = {each.path: each for each in backing_off}
    for step in queries.unanswered_steps(connection, run.n):
        pause = pauses.get(step.path)
        if pause is not None:
            again = f"it is asked again at {iso(pause.again_at)} (attempt {pause.attempt} of {pause.of})"
            yield f"Waiting: {step.path}: {_name_of_awaited(step)} failed ({pause.why}); {again}."
        elif step.outcome_unknown and step.held.milliseconds:
            since = step.at if step.newest is None else step.newest.at
            if step.attempts or at - since >= WORTH_SAYING_MS:
                tries = f", attempt {step.attempts + 1}" if step.attempts else ""
                until = f"since {iso(since)}, until {iso(since + step.held.milliseconds)} at the latest"
                yield f"Waiting: {step.path}: for {_name_of_awaited(step)}{tries}, {until}."


def _name_of_awaited(step: StepRow) -> str:
    sent = step.sent
    if step.kind == "call":
        return "the tool that was called"
    return f"the provider's model {sent.model}" if sent.route == "provider" else f"the route {sent.route}"
