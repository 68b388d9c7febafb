"""Write answers for a parked run, and the commit that follows from them, in one transaction.

In general these are two transactions: one records the answers and takes the run (inbox.py), the next is the owner's
commit. They are one if the server that gets the answers still has the parked run in memory. That state is current as
long as nobody owns the run and its fence is the same, since all that writes for a parked run also takes it, or pauses
it, in the same transaction.
"""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.core.steps import Sent
from kairos_mcp.store import client_completions
from kairos_mcp.store.client_questions import consume_ask
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Row, Session, encode

_IS_PARKED = """
    select 1 from run where n = ? and fence = ? and route = ?
        and owner is null and paused is null and outcome is null
        and not exists (select 1 from client_question where nonce = ? and consumed is not null)
"""
_NO_OTHER_REQUEST = f"""
        and not exists (select 1 from client_completion where step = ? and {client_completions.IS_UNCHARGED}
            and id is distinct from ?)
"""
_IS_OUTSTANDING = "        and exists (select 1 from client_completion where id = ? and ended is null)\n"
_TAKE = "update run set owner = ?, fence = fence + 1 where n = ?"
_CHANGE_SENT = "update step set sent = ? where id = ? and not exists (select 1 from attempt where step = step.id)"
_CHANGE_SENT_AGAIN = "update attempt set sent = ? where id = (select max(id) from attempt where step = ?)"


class ParkedRun(NamedTuple):
    """A run that this server has parked, and what the answers for its open steps bring. `run`: its row as it was read.

    `requests`: the answered requests to a client's model, by the ids of their steps' rows; None for a step without one.
    `sent`: how a step was asked, if only its answer tells, by the same ids. `nonce`: of the answered client question.
    """

    run: RunRow
    requests: dict[int, int | None]
    sent: dict[int, Sent]
    nonce: str | None = None

    @property
    def condition(self) -> tuple[str, Row]:
        """SQL, with its bindings, that finds the run only if it is unchanged and parked, its client question was not
        answered before, and no other request about one of the steps has to be charged first."""
        run = self.run
        text, bindings = _IS_PARKED, [run.n, run.fence, run.route, self.nonce]
        for step_id, request in self.requests.items():
            text += _NO_OTHER_REQUEST
            bindings += step_id, request
            if request is not None:
                text += _IS_OUTSTANDING
                bindings.append(request)
        return text, tuple(bindings)

    def take(self, session: Session, owner: int, at: int) -> None:
        """Take ownership of the (unchanged) run and mark its steps answered."""
        session.rows(_TAKE, (owner, self.run.n))
        if self.nonce is not None:
            consume_ask(session, self.run, self.nonce, at)
        for step_id, request in self.requests.items():
            if request is not None:
                client_completions.end_requests(session, [request], "answered", at)
            sent = self.sent.get(step_id)
            if sent is not None and not session.change(_CHANGE_SENT, (encode(sent), step_id)):
                session.rows(_CHANGE_SENT_AGAIN, (encode(sent), step_id))
