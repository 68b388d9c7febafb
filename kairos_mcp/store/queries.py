"""Read runs, their steps and what they wait for: typed rows by constant statements.

Nothing here writes. Queries that only reports need are in report_queries.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import NamedTuple

from kairos_mcp.budget.ledger import SharedAccountIds
from kairos_mcp.core.decision_rights import VIA_DOCTOR
from kairos_mcp.core.errors import UnknownRun, Unreadable
from kairos_mcp.core.limits import NOTHING, Units, counts_of
from kairos_mcp.core.messages import Exactness, JsonObject, ToolCall
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Answer, Sent
from kairos_mcp.core.text import truncate
from kairos_mcp.store.rows import (
    Row,
    Session,
    decode_answer,
    decode_call,
    decode_fields,
    decode_sent,
    decode_shared,
    decode_units,
    placeholders,
    read_each,
)

_RUN = (
    "n, id, flow, version, spec, principal, via, client, nullif(workspace, ''), account, created_at, owner, fence,"
    " route, paused, outcome, ended_at, resume_at, mandate, seq, news_seq, cached, exactness, place"
)


UNKNOWN = "unknown"  # how an attempt ended whose server died
WAITED = "waited"  # how an attempt ended that was never begun: the step waited until the run went on


class RunRow(NamedTuple):
    """A run. Times are milliseconds since 1970.

    `n` is its number in the store, which other tables refer to; `id` is for everybody else. `owner` None: no server
    drives it. `paused`: why; `resume_at`: when it goes on by itself. `outcome`: set once it has ended. `mandate`: the
    id of the mandate whose cycles it runs. `seq` rises with each commit of the run; `news_seq` is its value at the
    newest commit that is news to somebody who waits for the run. `cached`: the input tokens of its completions that
    came from a cache; `exactness`: the kinds of their token counts, each followed by a comma. `place`: of the machines
    that have its workspace; None: any.
    """

    n: int
    id: str
    flow: str
    version: int
    spec: str
    principal: str
    via: str
    client: str
    workspace: str | None
    account: int
    created_at: int
    owner: int | None
    fence: int
    route: str
    paused: str | None
    outcome: str | None
    ended_at: int | None
    resume_at: int | None
    mandate: str | None
    seq: int
    news_seq: int
    cached: int
    exactness: str
    place: str | None


class NewestAttempt(NamedTuple):
    """The newest attempt at a step after its first. `open`: no server executes it. `ended`: how the attempt before it
    ended. `at`: when it was begun."""

    held_text: str
    open: int
    shared_text: str | None
    sent_text: str
    ended: str
    at: int


class StepRow(NamedTuple):
    """A step of the record: its row, with its answer.

    The encoded columns are decoded by the properties, since replaying a run needs few of them. `further_attempts`: how
    many came after the first; the properties take the newest one into account. `seq`: the run's at its newest change.
    """

    id: int
    path: str
    kind: str
    digest: bytes
    at: int
    held_text: str | None
    sent_text: str | None
    body: str | None
    answered_at: int | None
    spent_text: str | None
    cached: int
    exactness: Exactness | None
    by_route: str | None
    shared_text: str | None
    call_text: str | None
    judged_text: str | None
    further_attempts: int
    seq: int
    newest: NewestAttempt | None = None

    @property
    def held(self) -> Units:
        """The round or call itself, and what the newest attempt holds."""
        first = counts_of(self.kind) if self.held_text is None else decode_units(self.held_text)
        if self.newest is None:
            return first
        itself = NOTHING._replace(rounds=first.rounds, tool_calls=first.tool_calls)
        return itself.plus(decode_units(self.newest.held_text))

    @property
    def was_begun_here(self) -> bool:
        """Whether a server began the first attempt."""
        return self.held_text is not None

    @property
    def first_begun_at(self) -> int:
        """When it was begun first, or earlier: when it was asked for, if only that is known."""
        was_open_before = self.further_attempts == 1 and not self.was_begun_here
        return self.newest.at if was_open_before and self.newest is not None else self.at

    @property
    def is_open(self) -> bool:
        """Whether no server executes it: it waits outside, or to be begun."""
        return bool(self.newest.open) if self.newest is not None else self.held_text is None

    @property
    def shared_accounts(self) -> SharedAccountIds:
        """The accounts beside the run's own that it is charged to."""
        return decode_shared((self.newest or self).shared_text)

    @property
    def sent(self) -> Sent:
        """What the server added to the newest attempt."""
        text = (self.newest or self).sent_text
        return decode_sent(text) if text else Sent()

    @property
    def call(self) -> ToolCall | None:
        """The call that it makes; None if a model's turn contains it, and for any other step. Raises Unreadable."""
        return decode_call(self.path, self.call_text)

    @property
    def spent(self) -> Units:
        """What the step has cost; nothing while it has no answer."""
        return decode_units(self.spent_text) if self.spent_text is not None else NOTHING

    @property
    def answer(self) -> Answer | None:
        """The answer; None if absent. Raises Unreadable."""
        return decode_answer(self.body) if self.body is not None else None

    @property
    def is_waiting(self) -> bool:
        """Whether it is open and has no answer."""
        return self.body is None and self.is_open

    @property
    def needs_settlement(self) -> bool:
        """A call of unknown outcome that waits for a person: it is never repeated by itself."""
        return self.newest is not None and self.kind == "call" and self.is_waiting and self.newest.ended == UNKNOWN

    @property
    def is_begun_unanswered(self) -> bool:
        """Begun by a server, without an answer: after a crash nobody knows how it ended."""
        return self.body is None and not self.is_open


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A control request (pause, resume, extend, reroute, cancel, settle, verdict) that the owner has not handled yet.

    `body` depends on the kind; `via`: what it came through.
    """

    id: int
    kind: str
    body: str
    via: str


def run_by_id(session: Session, run_id: str, principal: str | None = None) -> RunRow:
    """Return a run. Raises UnknownRun, also for a run of another principal than the given one."""
    found = session.row(f"select {_RUN} from run where id = ?", (run_id,))
    run = None if found is None else RunRow._make(found)
    if run is None or (principal is not None and run.principal != principal):
        raise UnknownRun(
            f"There is no run {truncate(run_id, 40)!r}.", "run_status without run_ids lists the newest runs."
        )
    return run


def runs_by_ids(session: Session, run_ids: Sequence[str], principal: str) -> list[RunRow]:
    """Return those of these runs that are the principal's."""
    statement = f"select {_RUN} from run where principal = ? and id in ({placeholders(run_ids)})"
    return [RunRow._make(found) for found in session.rows(statement, (principal, *run_ids))]


def run_by_number(session: Session, n: int) -> RunRow:
    """Return the run with this number in the store, which has to exist."""
    found = session.row(f"select {_RUN} from run where n = ?", (n,))
    assert found is not None
    return RunRow._make(found)


IS_NO_TRIAL = f"via <> '{VIA_DOCTOR}'"  # in lists of runs, what `doctor` tries is left out


def newest_run_ids(session: Session, principal: str | None, workspaces: Sequence[str] | None, limit: int) -> list[str]:
    """Return the ids of a principal's newest runs in these workspaces ('' for none), but for trials of `doctor`; None:
    of all, in all."""
    among = "" if workspaces is None else f" and workspace in ({placeholders(workspaces)})"
    whose = "" if principal is None else " and principal = ?"
    statement = f"select id from run where {IS_NO_TRIAL}{whose}{among} order by n desc limit ?"
    bindings = (*(() if principal is None else (principal,)), *(workspaces or ()), limit)
    return [run_id for (run_id,) in session.rows(statement, bindings)]


def count_elsewhere(session: Session, principal: str, workspaces: Sequence[str]) -> int:
    """Count the principal's runs in other workspaces than these, but for trials of `doctor`."""
    among = f" and workspace not in ({placeholders(workspaces)})"
    statement = f"select count(*) from run where principal = ? and {IS_NO_TRIAL}{among}"
    found = session.row(statement, (principal, *workspaces))
    assert found is not None
    return int(found[0])


def runs_of_owners(session: Session, owners: list[int], after: int, limit: int) -> list[RunRow]:
    """Return at most `limit` unfinished, unpaused runs of these owners, numbered above `after`, oldest first."""
    statement = (
        f"select {_RUN} from run where outcome is null and paused is null and n > ?"
        f" and owner in ({placeholders(owners)}) order by n limit ?"
    )
    return [RunRow._make(found) for found in session.rows(statement, (after, *owners, limit))]


LONGEST_PAUSE_MS = (48 + 26) * 3_600_000  # no run is paused for longer: the longest day, begun by a clock 48 h ahead


def is_due(resume_at: int, at: int) -> bool:
    """Whether a pause is over. One that ends too far ahead is over too: it began before the clock was set back."""
    is_reached, is_too_far = resume_at <= at, resume_at > at + LONGEST_PAUSE_MS
    return is_reached or is_too_far


_MAY_BE_TAKEN = """
    select exists(select 1 from run where outcome is null and owner is not null and owner <> ?)
        or exists(select 1 from run where (resume_at <= ? or resume_at > ?) and paused is not null and outcome is null)
        or exists(select 1 from approval join run on run.n = approval.run
            where verdict is null and not unasked and expires_at <= ? and outcome is null)
"""


def may_take_runs(session: Session, own_number: int, at: int) -> bool:
    """Whether there is an unfinished run of another owner, a pause that is over, or an approval that has expired."""
    found = session.row(_MAY_BE_TAKEN, (own_number, at, at + LONGEST_PAUSE_MS, at))
    return bool(found and found[0])


def fences_of_owner(session: Session, owner: int) -> dict[int, int]:
    """Return the unfinished runs of an owner: their fences by number."""
    return dict(session.rows("select n, fence from run where owner = ? and outcome is null", (owner,)))


def due_runs(session: Session, at: int, dead: Sequence[int] = ()) -> list[RunRow]:
    """Return the paused runs whose pause is over and that no living server owns (`dead`: owners that have ended)."""
    statement = (
        f"select {_RUN} from run where (resume_at <= ? or resume_at > ?) and paused is not null and outcome is null"
        f" and (owner is null or owner in ({placeholders(dead)}))"
    )
    return [RunRow._make(found) for found in session.rows(statement, (at, at + LONGEST_PAUSE_MS, *dead))]


_STEPS = """
    select step.id, path, kind, digest, step.at, held, sent, body, answer.at, spent, coalesce(cached, 0),
        exactness, by_route, shared, call, judged, (select count(*) from attempt where attempt.step = step.id),
        coalesce(answer.seq, step.seq)
    from step left join answer on answer.step = step.id where run = ?
"""
_RECORD = f"{_STEPS} order by step.id"
_STEP = f"{_STEPS} and path = ?"
_UNANSWERED = f"""{_STEPS} and step.id in (select step.id from step left join answer on answer.step = step.id
    where run = ?1 and answer.step is null) order by step.id"""


def step_at(session: Session, n: int, path: str) -> StepRow | None:
    """Return the step at a path, None if absent."""
    found = session.row(_STEP, (n, path))
    return _step_rows(session, [found])[0] if found is not None else None


def unanswered_steps(session: Session, n: int) -> list[StepRow]:
    """Return the steps of a run that have no answer yet, oldest first."""
    return _step_rows(session, session.rows(_UNANSWERED, (n,)))


def read_record(session: Session, n: int) -> list[StepRow]:
    """Return every step of a run with its answer, oldest first."""
    return _step_rows(session, session.rows(_RECORD, (n,)))


def read_steps_since(session: Session, n: int, last: int, unanswered: Collection[int]) -> list[StepRow]:
    """Return the steps of a run that came after the step with the id `last`, and those of these ids, oldest first."""
    found = (
        session.rows(f"{_STEPS} and step.id in ({placeholders(unanswered)})", (n, *unanswered)) if unanswered else []
    )
    found += session.rows(f"{_STEPS} and step.id > ? order by step.id", (n, last))
    return _step_rows(session, sorted(found, key=itemgetter(0)))


def _step_rows(session: Session, found: Sequence[Row]) -> list[StepRow]:
    steps = [StepRow._make((*columns, None)) for columns in found]
    again = [at for at, step in enumerate(steps) if step.further_attempts]
    if again:
        for at, step in zip(again, read_each(session, _add_newest, [steps[at] for at in again]), strict=True):
            steps[at] = step
    return steps


def _add_newest(session: Session, step: StepRow) -> StepRow:
    statement = (
        "select held, waits_outside, shared, sent, ended, at from attempt where step = ? order by id desc limit 1"
    )
    newest = session.row(statement, (step.id,))
    assert newest is not None, "there are attempts"
    return step._replace(newest=NewestAttempt._make(newest))


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """An open step: its row and kind, and what the server added to it (`sent`).

    `attempt`: the id of its newest attempt after the first. `ended`: how the attempt before that one ended. `digest`:
    of what was asked. `has_approval`: a person is or was asked about it. `opened_at`: since when it waits, in
    milliseconds.
    """

    step_id: int
    kind: str
    sent: Sent
    ended: str | None = None
    attempt: int | None = None
    digest: bytes = b""
    has_approval: bool = False
    opened_at: int = 0

    @property
    def needs_settlement(self) -> bool:
        """A call of unknown outcome: a person has to settle it."""
        return self.kind == "call" and self.ended == UNKNOWN


_NEWEST = "from attempt where attempt.step = step.id order by attempt.id desc limit 1"
IS_OPEN = f"coalesce((select waits_outside <> 0 {_NEWEST}), step.held is null)"
"""SQL for whether a step is open: by its newest attempt, or by its own row if there is none."""

_WAITING = f"""
    select path, step.id, kind, coalesce((select attempt.sent {_NEWEST}), step.sent), (select ended {_NEWEST}),
        (select attempt.id {_NEWEST}), digest, exists(select 1 from approval where approval.step = step.id),
        coalesce((select attempt.at {_NEWEST}), step.at)
    from waiting join step on step.id = waiting.step where waiting.run = ? order by step.id
"""


def open_steps(session: Session, n: int) -> dict[str, WaitingRow]:
    """Return the open steps by path, oldest first."""
    found = session.rows(_WAITING, (n,))
    return {
        path: WaitingRow(step_id, kind, decode_sent(sent), ended, attempt, digest, bool(has_approval), opened_at)
        for path, step_id, kind, sent, ended, attempt, digest, has_approval, opened_at in found
    }


def answer_bodies_at(session: Session, n: int, paths: Collection[str]) -> dict[str, str]:
    """Return the encoded answers at those of these paths that have one."""
    if not paths:
        return {}
    statement = "select path, body from step join answer on answer.step = step.id where run = ? and path in"
    return dict(session.rows(f"{statement} ({placeholders(paths)})", (n, *paths)))


def pending_requests(session: Session, n: int) -> list[ControlRequest]:
    """Return the control requests that the run's owner has not handled yet, oldest first."""
    found = session.rows(
        "select id, kind, body, via from inbox where run = ? and taken is null order by id",
        (n,),
    )
    return [ControlRequest(*columns) for columns in found]


def ids_of_runs(session: Session, numbers: Collection[int]) -> list[str]:
    """Return the ids of the runs with these numbers."""
    found = session.rows(f"select id from run where n in ({placeholders(numbers)})", list(numbers))
    return [run_id for (run_id,) in found]


def runs_to_cancel(session: Session) -> set[int]:
    """Return the numbers of the runs that have a cancel among their unhandled control requests."""
    return {n for (n,) in session.rows("select run from inbox where taken is null and kind = 'cancel'")}


def read_answers(session: Session, step_ids: list[int]) -> list[tuple[int, str]]:
    """Return the answers that these steps have by now: (step's id, encoded answer)."""
    return session.rows(f"select step, body from answer where step in ({placeholders(step_ids)})", step_ids)


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A further attempt at a step. `ended`: how the attempt before it ended; `lost`: what that stays charged with."""

    step_id: int
    at: int
    held: Units
    lost: Units
    ended: str
    waits_outside: bool
    sent: JsonObject


def list_attempts(session: Session, n: int) -> list[AttemptRow]:
    """Return the further attempts of a run's steps, oldest first."""
    found = session.rows(
        "select attempt.step, attempt.at, attempt.held, lost, ended, waits_outside, attempt.sent"
        " from attempt join step on step.id = attempt.step where step.run = ? order by attempt.id",
        (n,),
    )
    return [
        AttemptRow(step_id, at, decode_units(held), decode_units(lost), ended, bool(out), decode_fields(sent or "{}"))
        for step_id, at, held, lost, ended, out, sent in found
    ]


def referred_texts(run: RunRow, record: Sequence[StepRow]) -> list[str]:
    """Return the hashes of the texts that a run refers to: in its spec, then in results that were too long to show."""
    spec = decode_fields(run.spec)
    hashes = [value for name, value in spec.items() if name.endswith("_text") and isinstance(value, str)]
    for step in record:
        if step.body is not None and '"kept":"' in step.body:
            kept = decode_fields(step.body).get("kept")
            hashes += [kept] if isinstance(kept, str) else []
    return list(dict.fromkeys(hashes))


@contextmanager
def name_run_in_errors(run: RunRow) -> Iterator[None]:
    """Add the run's id, and a hint for it, to an Unreadable error that is raised within.

    So a damaged row stops its own run, and no other.
    """
    try:
        yield
    except Unreadable as error:
        raise with_run_id(run, error) from error


def with_run_id(run: RunRow, error: Unreadable) -> Unreadable:
    """Return the error with the id of its run and a hint for it."""
    if error.run_id is not None:
        return error
    what = f"{error.message[:1].lower()}{error.message[1:]}"
    state = "It has ended, and others are not touched."
    if run.outcome is None:
        state = f"It spends nothing more: cancel it (`kairos-mcp cancel {run.id}`)."
    return Unreadable(
        f"Run {run.id} can't be read: {what}", f"{state} `kairos-mcp doctor` names the row.", run_id=run.id
    )
