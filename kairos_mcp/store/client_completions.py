"""Write the table `client_completion`: completions of open steps that a client's model was asked for.

A step has at most one outstanding request. One that ends without an answer, unless its client refused, is withdrawn,
and counts as an attempt. It is charged with its bound (the most that it can have cost), as far as so much is left,
before the step is asked about again. A late answer still counts while the step waits; its real charge then replaces
the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from kairos_mcp.budget.ledger import Ledger
from kairos_mcp.core.limits import NOTHING, Units, counts_of
from kairos_mcp.core.routes import is_answered_by
from kairos_mcp.store.queries import RunRow, StepRow, run_by_number, step_at
from kairos_mcp.store.rows import Session, decode_shared, decode_units, encode_units, placeholders
from kairos_mcp.store.runs import take_run

WITHDRAWN = "withdrawn"  # how an attempt ended whose request was withdrawn
CHARGED_TO_ANSWER = 0  # in place of an attempt's id: the step's own answer is charged with the bound
MAX_CHARGED_MS = 300_000  # a withdrawn request is charged with no more time than this

Ending = Literal["answered", "refused", "withdrawn"]


class RequestRow(NamedTuple):
    """A request. Times in milliseconds since 1970.

    `nonce`: the ask that it is part of; None where it was pushed to the client. `ended`: None while it is outstanding.
    `charged`: the attempt that its bound was charged to.
    """

    id: int
    step_id: int
    session: str
    nonce: str | None
    at: int
    bound_text: str
    ended: str | None
    ended_at: int | None
    charged: int | None

    @property
    def bound(self) -> Units:
        """The most that it can have cost. One that the client answers by calling again takes no time."""
        bound = decode_units(self.bound_text)
        if self.nonce is not None or self.ended_at is None:
            return bound
        return bound._replace(milliseconds=max(0, min(self.ended_at - self.at, MAX_CHARGED_MS)))


class NewRequest(NamedTuple):
    """A request to be made: the step's path, the client's session, the most that it can cost, and its ask."""

    path: str
    session: str
    bound: Units
    nonce: str | None = None


class RequestCharge(NamedTuple):
    """A request about a step that is charged with `lost`."""

    step: StepRow
    request: int
    lost: Units


class RequestOutcome(NamedTuple):
    """The requests that were made, one for each step; none where the run's owner has to do something first.

    `fence`: set if the run was taken over for that.
    """

    requests: tuple[int, ...] = ()
    fence: int | None = None


_COLUMNS = "asked.id, asked.step, session, nonce, asked.at, bound, ended, ended_at, charged"
_SELECT = f"select {_COLUMNS} from client_completion as asked"
IS_UNCHARGED = "(ended is null or (ended = 'withdrawn' and charged is null))"
"""SQL for whether a request is outstanding, or was withdrawn and is not charged yet."""
_SELECT_UNCHARGED = f"{_SELECT} where step = ? and {IS_UNCHARGED} order by id"
_SELECT_BY_ID = f"{_SELECT} where id = ?"
# Both begin at steps, since a run may have had thousands of requests.
_SELECT_ABOUT = (
    f"select path, {_COLUMNS} from step join client_completion as asked on asked.step = step.id where step.run = ?"
)
_SELECT_UNCHARGED_OF_RUN = f"""
    select path, {_COLUMNS} from waiting join step on step.id = waiting.step
        join client_completion as asked on asked.step = step.id
    where waiting.run = ? and ended = 'withdrawn' and charged is null order by asked.id
"""


_INSERT_FIRST = """
    insert into client_completion(run, step, session, nonce, at, bound)
    select run.n, step.id, ?, ?, ?, ? from run join step on step.run = run.n join waiting on waiting.run = run.n
        and waiting.step = step.id where run.n = ? and path = ?
        and route = 'sampling' and paused is null and outcome is null
        and not exists (select 1 from attempt where attempt.step = step.id)
        and not exists (select 1 from client_completion where client_completion.step = step.id) returning id
"""


def create_first_request(session: Session, run: RunRow, new: NewRequest, at: int) -> int | None:
    """Insert the first request about a step that waits, and return its number; None, and nothing is written, where
    `create_requests` has to look at more."""
    bindings = new.session, new.nonce, at, encode_units(new.bound), run.n, new.path
    found = session.row(_INSERT_FIRST, bindings)
    return None if found is None else int(found[0])


def create_requests(session: Session, run: RunRow, new: Sequence[NewRequest], owner: int, at: int) -> RequestOutcome:
    """Insert requests for these steps to a client's model, all or none.

    An earlier request that is outstanding is withdrawn instead: the run's owner charges it first, and only then its
    step may be asked about again.
    """
    now = run_by_number(session, run.n)
    if now.outcome is not None or now.paused is not None or not is_answered_by("client", now.route):
        return RequestOutcome()
    found = [step_at(session, run.n, request.path) for request in new]
    steps = [step for step in found if step is not None and step.is_waiting]
    if len(steps) < len(new):
        return RequestOutcome()
    before = [request.id for step in steps for request in requests_of_step(session, step.id)]
    # A step that holds no model call was refused by a shared limit: the owner has to reserve for it first.
    if before or not all(step.held.model_calls for step in steps):
        end_requests(session, before, "withdrawn", at)
        return RequestOutcome(fence=take_run(session, run.n, owner, ()))
    insert = "insert into client_completion(run, step, session, nonce, at, bound) values (?, ?, ?, ?, ?, ?)"
    numbers = [
        session.insert(insert, (run.n, step.id, request.session, request.nonce, at, encode_units(request.bound)))
        for step, request in zip(steps, new, strict=True)
    ]
    return RequestOutcome(tuple(numbers))


def withdraw(session: Session, run: RunRow, requests: Sequence[int], owner: int, at: int) -> int | None:
    """Withdraw outstanding requests, for the run's owner to charge.

    Takes the run over if no living server owns it, and returns the fence then.
    """
    ended = end_requests(session, requests, "withdrawn", at)
    return take_run(session, run.n, owner, ()) if ended and list_uncharged(session, run.n) else None


def withdraw_all(session: Session, run: int, at: int) -> None:
    """Withdraw all outstanding requests of a run."""
    found = session.rows("select id from client_completion where run = ? and ended is null", (run,))
    end_requests(session, [number for (number,) in found], "withdrawn", at)


def end_requests(session: Session, requests: Iterable[int], ending: Ending, at: int) -> bool:
    """Record how outstanding requests ended; False where none of them was outstanding any more."""
    statement = "update client_completion set ended = ?, ended_at = ? where id = ? and ended is null returning id"
    ended = [session.rows(statement, (ending, at, number)) for number in requests]
    return any(ended)


def requests_of_step(session: Session, step_id: int) -> list[RequestRow]:
    """Return a step's requests that are outstanding, or were withdrawn and are not charged yet."""
    return [RequestRow._make(found) for found in session.rows(_SELECT_UNCHARGED, (step_id,))]


def is_withdrawn(session: Session, request: int) -> bool:
    """Whether the request was withdrawn, so that another takes its place."""
    return session.row("select 1 from client_completion where id = ? and ended = 'withdrawn'", (request,)) is not None


def requests_about(session: Session, n: int, paths: Sequence[str]) -> list[tuple[str, RequestRow]]:
    """Return all requests about these steps of a run, each with its step's path, oldest first."""
    found = session.rows(f"{_SELECT_ABOUT} and path in ({placeholders(paths)}) order by asked.id", (n, *paths))
    return [(path, RequestRow._make(request)) for path, *request in found]


def list_uncharged(session: Session, n: int) -> list[tuple[str, RequestRow]]:
    """List the withdrawn requests of a run's open steps whose bound is not charged yet, each with its step's path."""
    return [(path, RequestRow._make(request)) for path, *request in session.rows(_SELECT_UNCHARGED_OF_RUN, (n,))]


# -- what they cost --------------------------------------------------------------------------------------------------


def record_charge(session: Session, requests: Iterable[int], attempt: int) -> None:
    """Record which attempt the bound of these requests was charged to."""
    for number in requests:
        session.rows("update client_completion set charged = ? where id = ?", (attempt, number))


def settle_answered(session: Session, ledger: Ledger, step: StepRow, request: int | None, fence: int, at: int) -> None:
    """Settle a step's requests once its answer is recorded: the one that it answers, and all others, asked in vain.

    `request` None: the answer came another way. Part of the transaction that has settled the answer's own charge.
    """
    outstanding = requests_of_step(session, step.id)
    others = [other for other in outstanding if other.id != request]
    answered = next((each for each in outstanding if each.id == request), None)
    if answered is None and request is not None:  # it was charged before its answer came
        found = session.row(_SELECT_BY_ID, (request,))
        assert found is not None, "a request stays as long as its step"
        answered = RequestRow._make(found)
    if answered is not None:
        session.rows(
            "update client_completion set ended = 'answered', ended_at = ?, charged = null where id = ?",
            (at, answered.id),
        )
        if answered.charged is not None and others:  # its bound now stands for the request that came after it
            session.rows(
                "update client_completion set ended = 'withdrawn', ended_at = ?, charged = ? where id = ?",
                (at, answered.charged, others[0].id),
            )
            others = others[1:]
        elif answered.charged is not None:
            _refund_bound(session, ledger, step, answered.charged)
    write_charges(session, charge_requests(ledger, step, others), fence, at)


def charge_requests(ledger: Ledger, step: StepRow, requests: Iterable[RequestRow]) -> list[RequestCharge]:
    """Charge requests about a step that were asked in vain, each as an attempt of its own."""
    charges = []
    for request in requests:
        lost = ledger.cap_to_remaining(step.path, NOTHING, request.bound, step.shared_accounts)
        ledger.settle(step.path, NOTHING, lost, step.shared_accounts)
        charges.append(RequestCharge(step, request.id, lost))
    return charges


def write_charges(session: Session, charges: Iterable[RequestCharge], fence: int, at: int) -> None:
    """Write the attempts that requests are charged as, and that they are."""
    for step, request, lost in charges:
        attempt = session.insert(
            "insert into attempt(step, fence, at, held, sent, lost, ended, waits_outside, shared)"
            " values (?, ?, ?, ?, ?, ?, ?, 1, ?)",
            (
                *(step.id, fence, at, encode_units(counts_of(step.kind)._replace(rounds=0))),
                *((step.newest or step).sent_text, encode_units(lost), WITHDRAWN, (step.newest or step).shared_text),
            ),
        )
        session.rows(
            "update client_completion set ended = 'withdrawn', ended_at = coalesce(ended_at, ?), charged = ?"
            " where id = ?",
            (at, attempt, request),
        )


def _refund_bound(session: Session, ledger: Ledger, step: StepRow, attempt: int) -> None:
    """Take back the bound of a request whose answer came late, where no other was made in its place.

    The attempt that was charged with it was never begun.
    """
    found = session.row("select lost from attempt where id = ?", (attempt,))
    assert found is not None, "an attempt stays"
    lost = decode_units(found[0])
    # It was charged to the shared accounts of the attempt before it.
    before = "select shared from attempt where step = ? and id < ? order by id desc limit 1"
    found = session.row(before, (step.id, attempt))
    shared = decode_shared(step.shared_text if found is None else found[0])
    ledger.settle(step.path, NOTHING, NOTHING.minus(lost), shared)
    not_begun = "update attempt set lost = ?, ended = 'waited' where id = ?"
    session.rows(not_begun, (encode_units(NOTHING), attempt))
