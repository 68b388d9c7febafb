"""A call whose end nobody knows, settled in a dialog of the client: what its user is shown, and what counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import mcp_types as wire
import pytest
from support.app import Place, rests
from support.reviewers import CANCELS, DECLINES, UNHURRIED, Person, accepts, connect_person
from support.sampling_clients import MODERN, ConnectedClient

from approvals.test_rights import LOST, a_lost_call
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import NOTHING
from kairos_mcp.store.rows import encode_units

SETTLED = "select json_extract(body, '$.settlement'), principal, via, client from inbox where kind = 'settle'"


@asynccontextmanager
async def waits(place: Place, era: str, person: Person) -> AsyncIterator[tuple[ConnectedClient, str]]:
    run_id = await a_lost_call(place)
    settings = place.settings(commands="bare")
    async with (
        App.open(settings, via="mcp") as app,
        connect_person(app, era, person, patience=UNHURRIED, name="a host") as client,
    ):
        await rests(app, run_id)
        yield client, run_id


async def test_the_user_is_shown_the_call_and_leave_first_and_what_they_say_is_recorded(place: Place, era: str) -> None:
    person = Person([accepts(settlement="already_done", note="I saw it")])
    async with waits(place, era, person) as (client, run_id):
        run = await client.ask("run_continue", {"run_id": run_id})
        (shown,) = person.seen
        assert 'argv: ["true"]' in shown.message
        assert shown.requested_schema["properties"]["settlement"]["enum"] == ["leave", "already_done", "reattempt"]
        assert place.rows(SETTLED) == [("already_done", "local", "elicitation", "a host 1")]
        assert run["status"] == "completed"
        (call,) = (await client.ask("run_trace", {"run_id": run_id, "view": "calls"}))["items"]
        (decided,) = call["decided"]
        assert (decided["through"], decided["client"], decided["note"]) == ("elicitation", "a host 1", "I saw it")


@pytest.mark.parametrize(
    "reply",
    [
        *(CANCELS, DECLINES, accepts(), accepts(settlement="leave"), accepts(settlement=["reattempt"])),
        *(accepts(decision="approve"), accepts(note="reattempt"), accepts(settlement="yes")),
    ],
)
async def test_what_is_no_settlement_leaves_the_call_waiting(place: Place, era: str, reply: wire.ElicitResult) -> None:
    person = Person([reply, reply])
    async with waits(place, era, person) as (client, run_id):
        run = await client.ask("run_continue", {"run_id": run_id})
        assert (run["status"], [item["key"] for item in run["waiting"]]) == ("input_required", [LOST])
        assert (place.rows(SETTLED), len(person.seen)) == ([], 1)


async def test_an_answer_to_what_was_shown_of_an_earlier_attempt_stores_nothing(place: Place) -> None:
    async with waits(place, MODERN, Person()) as (client, run_id):
        asked = await client.step_to_requests("run_continue", {"run_id": run_id})
        (key,) = asked.input_requests
        place.rows(
            "insert into attempt(step, fence, at, held, sent, lost, ended, waits_outside, shared)"
            " select step, fence, at, held, sent, ?, ended, waits_outside, shared from attempt",
            encode_units(NOTHING),
        )
        again = {key: accepts(settlement="reattempt")}
        await client.step("run_continue", {"run_id": run_id}, state=asked.request_state, answers=again)
        assert place.rows(SETTLED) == []


async def test_a_dialog_that_is_still_open_when_only_a_command_may_settle_decides_nothing(place: Place) -> None:
    """The person at the machine turned to `approvals = "person"` while a client showed it."""
    async with waits(place, MODERN, Person()) as (client, run_id):
        asked = await client.step_to_requests("run_continue", {"run_id": run_id})
        (key,) = asked.input_requests
    settings = place.settings(commands="bare", approvals="person")
    async with App.open(settings, via="mcp") as app, connect_person(app, MODERN, Person(), name="a host") as client:
        again = {key: accepts(settlement="already_done")}
        await client.step("run_continue", {"run_id": run_id}, state=asked.request_state, answers=again)
        assert place.rows(SETTLED) == []
