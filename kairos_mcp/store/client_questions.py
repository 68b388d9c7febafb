"""Write the tables `client_question` and `pushed_request`: what a client is asked, by which server, and its answer.

An ask is for open steps or approvals. A client may be connected to several servers, and each of them is called about
the run. One asks, and the others wait for the answer: as long as that server lives, the same client is asked by no
other. Of another client nothing is known, so a call of its own lets it be asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kairos_mcp.core.decision_rights import Actor
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import SAMPLING
from kairos_mcp.store import decisions, settlements
from kairos_mcp.store.client_completions import (
    NewRequest,
    RequestOutcome,
    create_first_request,
    create_requests,
    requests_about,
    withdraw,
)
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.inbox import RecordedAnswers, SubmittedAnswer, record_answers, submit_request
from kairos_mcp.store.ownership import Owners, is_owner_alive
from kairos_mcp.store.queries import RunRow, run_by_number, step_at
from kairos_mcp.store.rows import Row, Session, decode_texts
from kairos_mcp.store.runs import add_note
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


def create_first_ask(session: Session, run: RunRow, new_ask: NewAsk, request: NewRequest) -> AskRow | None:
    """Insert the ask about a step that no client was asked about before; None, and nothing is written, where
    `create_or_find_ask` has to look at more."""
    if create_first_request(session, run, request, new_ask.at) is None:
        return None
    return _insert_ask(session, run, new_ask, ())


def create_or_find_ask(
    session: Session, run: RunRow, new_ask: NewAsk, requests: Sequence[NewRequest], owner: int
) -> AskRow | RequestOutcome | None:
    """Return the ask that is still outstanding, or a new one with these requests.

    None where the earlier ask counts as refused; a RequestOutcome where the run's owner has to do something first.
    """
    requested_before = [request for _, request in requests_about(session, run.n, new_ask.paths)]
    nonces = dict.fromkeys(request.nonce for request in requested_before if request.nonce is not None)
    asked_before = [ask for nonce in nonces if (ask := find_ask(session, run.n, nonce)) is not None]
    earlier = _find_unanswered(session, run, new_ask, asked_before)
    of_earlier = [request for request in requested_before if earlier is not None and request.nonce == earlier.nonce]
    if earlier is not None and all(request.ended is None for request in of_earlier):  # no other client was asked since
        if earlier.at > new_ask.stale_at:
            return earlier
        if new_ask.unanswered is None:
            return None
        add_note(session, run, new_ask.unanswered)
    outcome = create_requests(session, run, requests, owner, new_ask.at)
    return _insert_ask(session, run, new_ask, asked_before) if outcome.requests else outcome


def create_ask_once(session: Session, run: RunRow, new_ask: NewAsk) -> AskRow | None:
    """Return the ask about approvals that is still outstanding, or a new one.

    None where this client left an earlier one unanswered, so that nobody seems to be there; the next call asks again.
    """
    names_one = " or ".join("keys like ?" for _ in new_ask.paths)
    found = session.rows(
        f"{_SELECT_ASK} and ({names_one}) order by rowid", (run.n, *(f'%"{path}"%' for path in new_ask.paths))
    )
    asked_before = [_ask_row(row) for row in found]
    earlier = _find_unanswered(session, run, new_ask, asked_before)
    if earlier is None:
        return _insert_ask(session, run, new_ask, asked_before)
    if earlier.at > new_ask.stale_at:
        return earlier
    consume_ask(session, run, earlier.nonce, new_ask.at)
    return None


def consume_ask(session: Session, run: RunRow, nonce: str, at: int) -> bool:
    """Mark the ask as used; False for every caller but the first that brings its answers."""
    once = "update client_question set consumed = ? where nonce = ? and run = ? and consumed is null returning nonce"
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


def record_ask_answers(
    session: Session, run: RunRow, nonce: str, new_answers: Sequence[SubmittedAnswer], *, owner: int, at: int
) -> int | None:
    """Consume the ask and record its answers; only the first caller that brings them stores anything.

    Requests of the ask that are not answered are withdrawn. Returns the fence if the run was taken over.
    """
    ask = find_ask(session, run.n, nonce)
    if ask is None or not consume_ask(session, run, nonce, at):
        return None
    request_ids = request_ids_of(session, ask)
    answers = [replace(answer, request=request_ids.get(answer.path)) for answer in new_answers]
    recorded = record_still_open(session, run, answers, owner=owner, at=at)
    in_vain = [number for path, number in request_ids.items() if path not in recorded.paths]
    withdrawal_fence = withdraw(session, run, in_vain, owner, at)
    return withdrawal_fence if recorded.fence is None else recorded.fence


def record_still_open(
    session: Session, run: RunRow, new_answers: Sequence[SubmittedAnswer], *, owner: int, at: int
) -> RecordedAnswers:
    """Record the answers whose steps still wait; late ones store nothing."""
    now = run_by_number(session, run.n)
    if now.outcome is not None:
        return RecordedAnswers()
    found = [(step_at(session, run.n, answer.path), answer) for answer in new_answers]
    still_open = [(step, answer) for step, answer in found if step is not None and step.is_waiting]
    return record_answers(session, now, still_open, SAMPLING.name, owner, at)


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


def request_ids_of(session: Session, ask: AskRow) -> dict[str, int]:
    """Return the ids of the requests that went out in an ask, by the paths of their steps."""
    about = requests_about(session, ask.run, list(ask.keys.values()))
    return {path: request.id for path, request in about if request.nonce == ask.nonce}


_SELECT_ASK = "select nonce, run, keys, principal, client, at, consumed from client_question where run = ?"


def find_ask(session: Session, n: int, nonce: str) -> AskRow | None:
    """Return the ask of a run with this nonce, or None."""
    found = session.row(f"{_SELECT_ASK} and nonce = ?", (n, nonce))
    return None if found is None else _ask_row(found)


def _ask_row(found: Row) -> AskRow:
    nonce, run, keys, *rest = found
    return AskRow(nonce, run, {key: path for key, path in decode_texts(keys).items() if path is not None}, *rest)


def _insert_ask(session: Session, run: RunRow, new_ask: NewAsk, asked_before: Sequence[AskRow]) -> AskRow:
    """Insert an ask. A path that was asked before gets a new key, `path#2`, so that no answer counts for two asks."""
    used_keys = [key for ask in asked_before for key in ask.keys]
    keys: dict[str, str] = {}
    for path in new_ask.paths:
        times = sum(key == path or key.startswith(f"{path}#") for key in used_keys)
        keys[f"{path}#{times + 1}" if times else path] = path
    session.rows(
        "insert into client_question(nonce, run, keys, principal, client, at) values (?, ?, ?, ?, ?, ?)",
        (new_ask.nonce, run.n, json.dumps(keys), *new_ask.client, new_ask.at),
    )
    return AskRow(new_ask.nonce, run.n, keys, *new_ask.client, new_ask.at, None)


def _find_unanswered(session: Session, run: RunRow, new_ask: NewAsk, asked_before: Sequence[AskRow]) -> AskRow | None:
    """Return this client's newest unanswered ask of exactly these steps since the run was last rerouted, or None."""
    unanswered = [
        ask
        for ask in asked_before
        if ask.consumed is None
        and (ask.principal, ask.client) == new_ask.client
        and tuple(ask.keys.values()) == new_ask.paths
    ]
    if not unanswered:
        return None
    rerouted = session.row("select coalesce(max(taken), 0) from inbox where run = ? and kind = 'reroute'", (run.n,))
    assert rerouted is not None
    return unanswered[-1] if unanswered[-1].at > rerouted[0] else None


OLD_MS = 600_000  # after which a push counts for nothing: its end may not have been written
_HOLD = (
    "insert into pushed_request(run, key, owner, client, at) values (?, ?, ?, ?, ?) on conflict (run, key) do update"
    " set owner = excluded.owner, client = excluded.client, at = excluded.at"
)


class NewPush(NamedTuple):
    """What a server is about to ask a client: in the run with this number, by the key of what waits, at this time."""

    run: int
    key: str
    owner: int
    client: str
    at: int


def claim(session: Session, owners: Owners, new: NewPush) -> bool:
    """Claim what a server is about to ask; False where another living server is asking the same client."""
    found = session.row("select owner, client, at from pushed_request where run = ? and key = ?", (new.run, new.key))
    if found is not None:
        owner, client, at = found
        is_of_another = owner != new.owner and client == new.client and new.at - at <= OLD_MS
        if is_of_another and is_owner_alive(session, owners, owner):
            return False
    session.rows(_HOLD, new)
    return True


def release(session: Session, run: int, key: str, owner: int) -> None:
    """Give up what this server claimed: the client has answered, or is asked no more."""
    session.rows("delete from pushed_request where run = ? and key = ? and owner = ?", (run, key, owner))
