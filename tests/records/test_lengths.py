"""What SQLite does for a look at a run, for an ask of a client and for the first call of a day does not grow with what
was recorded before.

Counted, not timed: the steps of SQLite's virtual machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import apsw
import pytest
from mcp_types import CreateMessageRequestParams
from support.app import ASK, ME, Place, answer_run, asks, reads, rests, says, start_run
from support.sampling_clients import ERAS, ClientModel, Reply, open_client
from support.statements import is_by_timer

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.store import accounts, approvals, queries, report_queries
from kairos_mcp.store.connection import SqliteSession

pytestmark = pytest.mark.state_file("it counts what SQLite reads and writes")
LOOKS: dict[str, Callable[[SqliteSession, int], Any]] = {
    "what waits": approvals.read_waiting_items,
    "open steps": queries.open_steps,
    "the newest calls": lambda session, n: report_queries.newest_calls(session, n, 5),
    "the newest model": lambda session, n: report_queries.newest_model(session, n, "scripted"),
    "the figures that no account holds": lambda session, n: report_queries.read_tally(
        session, queries.run_by_number(session, n)
    ),
    "whether a provider's own content is in it": report_queries.has_private_content,
}


def count_steps(session: SqliteSession, look: Callable[[], Any]) -> int:
    """How many steps SQLite's virtual machine takes for what `look` executes."""
    steps: list[int] = []
    session.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda event: steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
    )
    try:
        look()
    finally:
        session.trace_v2(0)
    assert steps
    return sum(steps)


async def steps_after(place: Place, rounds: int) -> dict[str, int]:
    """The steps of each look at a run of so many rounds that waits for its caller."""
    for n in range(rounds):
        (place.workspace / f"{n}.txt").write_text(f"{n}\n")
    lines = [*(reads(f"{n}.txt") for n in range(rounds)), asks("why"), says("done")]
    async with App.open(place.settings(*lines), via="mcp") as app:
        run_id = await start_run(app, caller_tools=(ASK,), limits=Limits(rounds=rounds + 2))
        session, ((n,),) = app._store.reader, place.rows("select n from run where id = ?", run_id)
        assert len(place.rows("select 1 from step where run = ?", n)) == 2 * rounds + 2
        found = {what: count_steps(session, lambda look=look: look(session, n)) for what, look in LOOKS.items()}
        assert (await answer_run(app, run_id, **{f"round_{rounds + 1}__call_1": {"content": "so"}})).summary == "done"
    return found


async def test_a_look_at_a_run_costs_the_same_at_any_length(place: Place) -> None:
    few, many = await steps_after(place, 6), await steps_after(place, 40)
    assert {what: steps <= few[what] + 20 for what, steps in many.items()} == dict.fromkeys(LOOKS, True), (few, many)


async def steps_of_a_first_call(app: App, day: str) -> tuple[int, int, int]:
    """The steps of what is looked at before the first call of a day."""
    account = await app._store.submit(lambda session: accounts.ensure_day_account(session, "local", day, UNLIMITED).id)
    session = app._store.reader
    sums = count_steps(session, lambda: accounts.check_shared_account(session, account))
    exist = count_steps(session, lambda: accounts.check_day_accounts_exist(session, "local", 0))
    return sums, exist, count_steps(session, lambda: accounts.newest_day(session, "local"))


async def test_the_first_call_of_a_day_costs_the_same_however_many_there_were_before(place: Place) -> None:
    async with App.open(place.settings(*[says("done")] * 40), via="mcp") as app:
        await start_run(app, "first")
        few = await steps_of_a_first_call(app, "2999-01-01")
        for number in range(30):
            await start_run(app, str(number))
        many = await steps_of_a_first_call(app, "2999-01-02")
    assert all(later <= earlier + 20 for earlier, later in zip(few, many, strict=True)), (few, many)


@dataclass
class StepCounter:
    """Counts the steps of the statements with one of these words, on every connection that is opened within it."""

    words: tuple[str, ...]
    steps: int = 0

    def __enter__(self) -> StepCounter:
        apsw.connection_hooks.append(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        apsw.connection_hooks.remove(self._trace)

    def _trace(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._add)

    def _add(self, event: dict[str, Any]) -> None:
        if any(word in event["sql"] for word in self.words) and not is_by_timer():
            self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


async def test_a_start_costs_the_same_however_many_there_were_before(place: Place) -> None:
    steps = []
    with StepCounter(("start_digest",)) as counter:
        async with App.open(place.settings(says("done")), via="mcp") as app:
            for number in range(40):
                before = counter.steps
                await start_run(app, str(number))
                steps.append(counter.steps - before)
    assert 0 < steps[-1] <= steps[2] + 20, steps


@dataclass
class CountedModel(ClientModel):
    """A client's model that notes, at each request, how far the counter is."""

    counter: StepCounter = field(default_factory=lambda: StepCounter(("client_completion", "client_question")))
    counts: list[int] = field(default_factory=list)

    async def __call__(self, ctx: object, params: CreateMessageRequestParams) -> Reply:
        self.counts.append(self.counter.steps)
        return await super().__call__(ctx, params)


@pytest.mark.parametrize("era", ERAS)
async def test_an_ask_of_a_client_costs_the_same_at_any_length(place: Place, era: str) -> None:
    rounds = 40
    for n in range(rounds):
        (place.workspace / f"{n}.txt").write_text(f"{n}\n")
    model = CountedModel([*(reads(f"{n}.txt") for n in range(rounds)), says("done")])
    with model.counter:
        async with open_client(place.settings(), era, model) as client:
            result = await client.ask("planner_run", {"goal": "go", "limits": {"rounds": rounds + 2}})
            while result["status"] == "input_required":
                result = await client.ask("run_continue", {"run_id": result["run_id"]})
    assert result["rounds"] == rounds + 1
    each = [after - before for before, after in pairwise(model.counts)]
    early, late = max(each[2:18]), max(each[-16:])  # a call of a client of today asks eight times
    assert 0 < late <= early + 20, (early, late)


FORGED = {
    "a step that waits is listed no more": ("delete from waiting", "1 rows of waiting do not fit the steps"),
    "a step is listed that was answered": (
        "insert into waiting select run, min(id) from step",
        "1 rows of waiting do not fit the steps",
    ),
    "an attempt is of no run": ("update attempt set run = null", "1 rows of attempt name another run than their step"),
    "an attempt is of another run": (
        "update attempt set run = run + 1",
        "1 rows of attempt name another run than their step",
    ),
    "tokens of a cache": ("update run set cached = 7", "the figures do not fit the answers"),
    "a kind of count": ("update run set exactness = ''", "the figures do not fit the answers"),
}


@pytest.mark.parametrize("what", FORGED)
@pytest.mark.unreplayed
async def test_what_is_stored_beside_the_steps_and_differs_is_damage(place: Place, what: str) -> None:
    usage = {"input_tokens": 10, "output_tokens": 2}
    async with App.open(place.settings(reads("a.txt", usage=usage), asks("why"), asks("so")), via="mcp") as app:
        run_id = await start_run(app, route="caller", caller_tools=(ASK,))
        await app.control.reroute(run_id, "scripted", ME)  # a further attempt
        await rests(app, run_id)
        await answer_run(app, run_id, round_2__call_1={"content": "because"})
        assert (await app.health(thorough=True))["damage"] == []
        statement, message = FORGED[what]
        place.rows(statement)
        assert message in " ".join((await app.health(thorough=True))["damage"])
