"""Write the table `ask`: ask a client to answer open steps or approvals, and record what it answers, once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kairos_mcp.core.identity import Actor
from kairos_mcp.store import decisions, settlements
from kairos_mcp.store.client_requests import NewRequest, RequestOutcome, create_requests, requests_of_ask, withdraw
from kairos_mcp.store.codec import decode_texts
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.inbox import SubmittedAnswer, insert_submitted_answers, submit_request
from kairos_mcp.store.queries import RunRow, open_steps, run_by_number
from kairos_mcp.store.runs import add_note
from kairos_mcp.store.session import Session
from kairos_mcp.store.settlements import SettlementRequest

Client = tuple[str, str]  # a principal, and the name of the client that it speaks through


@dataclass(frozen=True, slots=True)
class AskRow:
    """A round trip in which a client is asked: `keys` maps each key on the wire to the path of its step.

    Times in milliseconds since 1970. `consumed`: when its answer was used.
    """

    nonce: str
    run: int
    keys: Mapping[str, str]
    principal: str
    client: str
    at: int
    consumed: int | None


@dataclass(frozen=True, slots=True)
class NewAsk:
    """What is to be asked, of whom, and when.

    An earlier ask that this client has not answered is repeated if it was made after `stale_at`; an older one counts as
    refused. `unanswered`: the note that says so in a run whose route was requested, which is then asked again; None:
    the run may take another route.
    """

    paths: tuple[str, ...]
    client: Client
    nonce: str
    at: int
    stale_at: int
    unanswered: str | None


def create_or_find_ask(
    session: Session, run: RunRow, new_ask: NewAsk, requests: Sequence[NewRequest], owner: int
) -> AskRow | RequestOutcome | None:
    """Return the ask that is still outstanding, or a new one with these requests.

    None where the earlier ask counts as refused; a RequestOutcome where the run's owner has to do something first.
    """
    earlier = _find_unanswered(session, run, new_ask)
    if earlier is not None and _is_outstanding(session, earlier):
        if earlier.at > new_ask.stale_at:
            return earlier
        if new_ask.unanswered is None:
            return None
        add_note(session, run, new_ask.unanswered)
    outcome = create_requests(session, run, requests, owner, new_ask.at)
    return _insert_ask(session, run, new_ask) if outcome.requests else outcome


def _is_outstanding(session: Session, ask: AskRow) -> bool:
    """Whether no other client has been asked since."""
    return all(request.ended is None for request in requests_of_ask(session, ask.nonce).values())


def create_ask_once(session: Session, run: RunRow, new_ask: NewAsk) -> AskRow | None:
    """Return the ask about approvals that is still outstanding, or a new one.

    None where this client left an earlier one unanswered, so that nobody seems to be there; the next call asks again.
    """
    earlier = _find_unanswered(session, run, new_ask)
    if earlier is None:
        return _insert_ask(session, run, new_ask)
    if earlier.at > new_ask.stale_at:
        return earlier
    consume_ask(session, run, earlier.nonce, new_ask.at)
    return None


def consume_ask(session: Session, run: RunRow, nonce: str, at: int) -> bool:
    """Mark the ask as used; False for every caller but the first that brings its answers."""
    once = "update ask set consumed = ? where nonce = ? and run = ? and consumed is null returning nonce"
    return bool(session.rows(once, (at, nonce, run.n)))


def record_ask_decisions(
    session: Session,
    run: RunRow,
    nonce: str | None,
    new_decisions: Sequence[Decision],
    settlement_requests: Sequence[SettlementRequest],
    actor: Actor,
    *,
    owner: int,
    at: int,
) -> int | None:
    """Consume the ask (None: a push has none) and record the decisions and settlements by `actor` that still count.

    Returns the fence if the run was taken over.
    """
    if nonce is not None and not consume_ask(session, run, nonce, at):
        return None
    open_decisions = decisions.only_open_decisions(session, run, new_decisions, at)
    open_settlements = settlements.only_open_settlements(session, run, settlement_requests, actor.principal)
    return decisions.record_responses(
        session, run, [], open_decisions, "", owner, at, settlement_requests=open_settlements, actor=actor
    )


def deposit_ask_answers(
    session: Session, run: RunRow, nonce: str, deposits: Sequence[SubmittedAnswer], *, owner: int, at: int
) -> int | None:
    """Consume the ask and deposit its answers; only the first caller that brings them stores anything.

    Requests of the ask that are not answered are withdrawn. Returns the fence if the run was taken over.
    """
    if not consume_ask(session, run, nonce, at):
        return None
    request_ids = {path: request.id for path, request in requests_of_ask(session, nonce).items()}
    answers = [replace(deposit, request=request_ids.get(deposit.path)) for deposit in deposits]
    fence = deposit_still_open(session, run, answers, owner=owner, at=at)
    withdrawal_fence = withdraw(session, run, list(request_ids.values()), owner, at)
    return withdrawal_fence if fence is None else fence


def deposit_still_open(
    session: Session, run: RunRow, deposits: Sequence[SubmittedAnswer], *, owner: int, at: int
) -> int | None:
    """Deposit the answers whose steps still wait; late ones store nothing.

    Returns the fence if the run was taken over.
    """
    if run_by_number(session, run.n).outcome is not None:
        return None
    waiting = open_steps(session, run.n)
    still_open = [deposit for deposit in deposits if deposit.path in waiting]
    return insert_submitted_answers(session, run, still_open, "sampling", owner, at) if still_open else None


def reroute(
    session: Session,
    run: RunRow,
    route: str,
    actor: Actor,
    *,
    owner: int,
    at: int,
    reason: str,
) -> int | None:
    """Request another route, unless the run has changed its route since. Returns the fence if it was taken over."""
    now = run_by_number(session, run.n)
    if now.outcome is not None or now.route != run.route:
        return None
    return submit_request(session, run, "reroute", route, actor, owner, at, reason=reason)


def list_asks(session: Session, n: int) -> list[AskRow]:
    """List the asks of a run, oldest first."""
    found = session.rows(
        "select nonce, run, keys, principal, client, at, consumed from ask where run = ? order by rowid",
        (n,),
    )
    return [AskRow(nonce, run, _decode_keys(keys), *rest) for nonce, run, keys, *rest in found]


def _decode_keys(text: str) -> dict[str, str]:
    return {key: path for key, path in decode_texts(text).items() if path is not None}


def _insert_ask(session: Session, run: RunRow, new_ask: NewAsk) -> AskRow:
    """Insert an ask. A path that was asked before gets a new key, `path#2`, so that no answer counts for two asks."""
    used_keys = [key for ask in list_asks(session, run.n) for key in ask.keys]
    keys = {_unused_key(path, used_keys): path for path in new_ask.paths}
    session.rows(
        "insert into ask(nonce, run, keys, principal, client, at) values (?, ?, ?, ?, ?, ?)",
        (new_ask.nonce, run.n, json.dumps(keys), *new_ask.client, new_ask.at),
    )
    return AskRow(new_ask.nonce, run.n, keys, *new_ask.client, new_ask.at, None)


def _find_unanswered(session: Session, run: RunRow, new_ask: NewAsk) -> AskRow | None:
    """Return this client's newest unanswered ask of exactly these steps since the run was last rerouted, or None."""
    rerouted = session.row("select coalesce(max(taken), 0) from deposit where run = ? and kind = 'reroute'", (run.n,))
    assert rerouted is not None
    for ask in reversed(list_asks(session, run.n)):
        is_same = (ask.principal, ask.client) == new_ask.client and tuple(ask.keys.values()) == new_ask.paths
        if is_same and ask.consumed is None and ask.at > rerouted[0]:
            return ask
    return None


def _unused_key(path: str, used: Sequence[str]) -> str:
    times = sum(key == path or key.startswith(f"{path}#") for key in used)
    return path if times == 0 else f"{path}#{times + 1}"
