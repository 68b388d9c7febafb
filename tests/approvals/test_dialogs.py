"""Approvals in a client's dialog, in both protocol eras: what the user did, and what of it counts."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import httpx2
import mcp_types as wire
import pytest
from mcp.shared.exceptions import MCPError
from support.app import ASK, ME, PERSON, rests, says
from support.reviewers import (
    CANCELS,
    DECLINES,
    KEY,
    LEGACY,
    MODERN,
    STEP,
    UNHURRIED,
    Absent,
    Person,
    Thinking,
    accepts,
    asks_for,
    connect_person,
    digest,
    open_asking_app,
    shown_of,
    verdicts,
    waiting,
)
from support.sampling_clients import asks_of, text_reply

from kairos_mcp.app.dialogs import TOO_SOON
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY
from kairos_mcp.store import approvals
from kairos_mcp.store.page_files import find_pages, published_page

UNDECIDED = [(None, None, None, None)]


async def test_the_user_of_a_client_is_asked_and_their_word_is_taken(place, era):
    person = Person([accepts(decision="approve", feedback="once")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place)
        run = await client.ask("run_continue", {"run_id": run_id})
        assert [item["kind"] for item in run["waiting"]] == ["tool_call"]
        assert verdicts(place) == [("approve", "local", "elicitation", "once")]
        assert place.rows("select client from approval") == [("a client 1",)]
    (shown,) = person.seen
    assert shown.message.splitlines() == ["edit a.txt  -1 +1", "- alpha", "+ omega"]
    assert run_id in shown.requested_schema["properties"]["decision"]["description"]
    assert shown.requested_schema["properties"]["decision"]["enum"] == ["deny", "approve"]
    assert shown.requested_schema["required"] == ["decision"]


async def test_a_denial_carries_what_they_said(place, era):
    person = Person([accepts(decision="deny", feedback="use b.txt")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place)
        await client.ask("run_continue", {"run_id": run_id})
        assert verdicts(place) == [("deny", "local", "elicitation", "use b.txt")]


@pytest.mark.parametrize(
    "reply",
    [DECLINES, CANCELS, accepts(decision="approve"), accepts(decision="deny")],
    ids=["no", "left", "yes", "deny"],
)
async def test_what_comes_within_no_time_is_nobodys_and_that_session_is_asked_no_more(place, era, reply):
    person = Person([reply, reply])
    async with open_asking_app(place) as app, connect_person(app, era, person, patience=DEFAULT_WAIT_POLICY) as client:
        run_id = await waiting(app, place)
        for _ in range(3):
            run = await client.ask("run_continue", {"run_id": run_id})
            assert (run["status"], [item["key"] for item in run["waiting"]]) == ("input_required", [KEY])
        assert (verdicts(place), len(person.seen)) == (UNDECIDED, 1)
        assert (TOO_SOON in run["degraded"]) is (reply is not CANCELS)
        async with connect_person(app, era, Person([accepts(decision="approve")]), name="another client") as other:
            await other.ask("run_continue", {"run_id": run_id})
        assert verdicts(place) == [("approve", "local", "elicitation", None)]


async def test_a_dialog_that_was_left_is_shown_again_where_somebody_asks_for_it(place, era):
    person = Person([CANCELS, accepts(decision="approve")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place)
        await client.ask("run_continue", {"run_id": run_id})
        await client.ask("run_continue", {"run_id": run_id})
        assert (verdicts(place), len(person.seen)) == (UNDECIDED, 1)
        await client.ask("run_continue", {"run_id": run_id, "ask": True})
        assert verdicts(place) == [("approve", "local", "elicitation", None)]


async def test_after_a_dialog_that_nobody_answered_the_next_step_is_the_persons_command(place, era):
    async with open_asking_app(place) as app, connect_person(app, era, Person([CANCELS])) as client:
        run_id = await waiting(app, place)
        assert (await client.ask("run_status"))["runs"][0]["next"]["tool"] == "run_continue"
        run = await client.ask("run_continue", {"run_id": run_id})
        assert run["next"]["tool"] == "run_status"
        assert f" {run_id} " in run["next"]["why"].partition(" approve ")[2]


async def test_a_dialog_that_is_still_open_is_not_one_that_nobody_answered(place):
    async with open_asking_app(place) as app, connect_person(app, LEGACY, Thinking([])) as client:
        run = await client.ask("run_continue", {"run_id": await waiting(app, place), "wait_s": 0.2})
        assert run["next"]["tool"] == "run_continue"


async def test_another_call_about_the_same_step_under_a_new_digest_is_shown(place, era):
    """What nobody answered was about exactly that: a key with another digest is another question."""
    person = Person([CANCELS, accepts(decision="approve")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place)
        await client.ask("run_continue", {"run_id": run_id})
        place.rows("update approval set digest = ?", "f" * 64)
        await client.ask("run_continue", {"run_id": run_id})
        assert (len(person.seen), verdicts(place)[0][0]) == (2, "approve")


async def test_a_later_decline_denies(place, era):
    async with (
        open_asking_app(place) as app,
        connect_person(app, era, Person([DECLINES]), patience=UNHURRIED) as client,
    ):
        await client.ask("run_continue", {"run_id": await waiting(app, place)})
        assert verdicts(place) == [("deny", "local", "elicitation", None)]


@pytest.mark.parametrize(
    "reply",
    [
        *(accepts(), accepts(decision="yes"), accepts(decision=["approve"]), accepts(decision="APPROVE")),
        *(accepts(feedback="approve"), accepts(approve=True), wire.ElicitResult(action="accept")),
    ],
)
async def test_what_is_no_decision_leaves_it_waiting_and_is_not_asked_again_in_this_call(place, era, reply):
    person = Person([reply, accepts(decision="deny")])
    async with open_asking_app(place) as app, connect_person(app, era, person, patience=UNHURRIED) as client:
        run_id = await waiting(app, place)
        run = await client.ask("run_continue", {"run_id": run_id})
        assert (run["status"], len(person.seen), verdicts(place)) == ("input_required", 1, UNDECIDED)
        await client.ask("run_continue", {"run_id": run_id})
        assert (len(person.seen), verdicts(place)[0][0]) == (2, "deny")


@pytest.mark.parametrize("reply", [wire.ElicitResult(action="accept"), accepts()], ids=["none", "empty"])
async def test_PROTOCOL_018_an_acceptance_without_content_is_no_answer_and_is_asked_again(place, reply):
    """Of a client that drives the rounds itself: the next call carries the same question under a new key."""
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person(), patience=UNHURRIED) as client:
        run_id = await waiting(app, place)
        asked, key = await asked_once(client, run_id)
        answers = {key: reply}
        run = await client.step_to_result(
            "run_continue", {"run_id": run_id}, state=asked.request_state, answers=answers
        )
        assert (run["status"], [item["key"] for item in run["waiting"]]) == ("input_required", [KEY])
        assert verdicts(place) == UNDECIDED
        again = await client.step_to_requests("run_continue", {"run_id": run_id})
        assert list(again.input_requests) == [f"{KEY}#2"]
        approves = {f"{KEY}#2": accepts(decision="approve")}
        await client.step_to_result("run_continue", {"run_id": run_id}, state=again.request_state, answers=approves)
        assert verdicts(place)[0][0] == "approve"


async def test_a_client_that_fails_at_dialogs_decides_nothing(place):
    person = Person([wire.ErrorData(code=-1, message="no")])
    async with open_asking_app(place) as app, connect_person(app, LEGACY, person) as client:
        run_id = await waiting(app, place)
        run = await client.ask("run_continue", {"run_id": run_id})
        assert (run["status"], verdicts(place)) == ("input_required", UNDECIDED)


async def test_PROTOCOL_024_nothing_is_asked_of_a_client_that_did_not_declare_it(place, era):
    async with open_asking_app(place) as app, connect_person(app, era, None) as client:
        run_id = await waiting(app, place)
        run = await client.ask("run_continue", {"run_id": run_id})
        command = run["waiting"][0]["command"]
        assert re.search(rf" approve --home \S+ {run_id} {KEY}$", command)
        assert f"`{command}`" in run["next"]["why"]
    assert asks_of(place) == []


async def test_nothing_is_asked_where_only_the_command_decides(place, era):
    person = Person([])
    async with open_asking_app(place, approvals="person") as app, connect_person(app, era, person) as client:
        run = await client.ask("run_continue", {"run_id": await waiting(app, place)})
        assert (run["status"], run["next"]["tool"]) == ("input_required", "run_status")
    assert person.seen == []


async def test_run_status_asks_nobody(place, era):
    person = Person([])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place)
        await client.ask("run_status", {"run_ids": [run_id], "until": "attention"})
    assert (person.seen, asks_of(place)) == ([], [])


@pytest.mark.parametrize("reply", [accepts(decision="approve"), accepts(decision="leave"), accepts(settlement="x")])
async def test_what_a_dialog_does_not_show_whole_is_not_approved_there(place, era, reply):
    person = Person([reply])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place, preview="x\n" * 3)
        run = await client.ask("run_continue", {"run_id": run_id})
        assert run["status"] == "input_required"
    (shown,) = person.seen
    assert verdicts(place) == UNDECIDED
    assert shown.message.splitlines()[-1].endswith(f"kairos-mcp approve {run_id}")
    assert shown.requested_schema["properties"]["decision"]["enum"] == ["leave", "deny"]


async def test_what_a_dialog_does_not_show_whole_can_be_denied_there(place, era):
    person = Person([accepts(decision="deny", feedback="too much")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        await client.ask("run_continue", {"run_id": await waiting(app, place, preview="x\n" * 3)})
    assert verdicts(place) == [("deny", "local", "elicitation", "too much")]
    assert shown_of(place) == [{"way": "look", "screen": "unknown", "lines": 1, "of": 3}]


async def test_a_line_of_a_call_that_reads_like_one_of_ours_is_no_reason_to_hide_it(place, era):
    person = Person([accepts(decision="approve")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        await client.ask(
            "run_continue", {"run_id": await waiting(app, place, preview="POST x\nreads also\nreads also y")}
        )
    assert (verdicts(place), shown_of(place)) == (UNDECIDED, [])


async def test_what_was_shown_is_stored_with_the_decision(place, era):
    person = Person([accepts(decision="approve")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place)
        await client.ask("run_continue", {"run_id": run_id})
        items = (await client.ask("run_trace", {"run_id": run_id}))["items"]
        (step,) = [step for step in items if "decided" in step]
        assert re.match(r"2 of 2 lines \(unknown, 60x24\) for \d", step["decided"][0]["shown"])
        exported = map(json.loads, await app.records.export(run_id, ME))
        (decision,) = [line for line in exported if line["line"] == "decision"]
        assert decision == {"line": "decision", "path": STEP, "files": None, **step["decided"][0], "at": decision["at"]}
    assert shown_of(place) == [{"way": "whole", "screen": "unknown", "lines": 2, "of": 2}]


async def test_changes_are_walked_through_where_the_client_shows_fields(place, era):
    person = Person([accepts(c01=True, zdecision="approve", zfeedback="good")])
    edit = "edit a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n-a\n-b\n+c\n+d"
    async with (
        open_asking_app(place) as app,
        connect_person(app, era, person, name="claude-code", version="2.1.400") as client,
    ):
        await client.ask("run_continue", {"run_id": await waiting(app, place, preview=edit)})
    (shown,) = person.seen
    fields = shown.requested_schema["properties"]
    assert list(fields) == ["c01", "c02", "c03", "c04", "zdecision", "zfeedback"]
    shown_lines = [(field["title"], field["description"]) for field in list(fields.values())[:4]]
    assert shown_lines == [("1 of 4", "- a"), ("2 of 4", "- b"), ("3 of 4", "+ c"), ("4 of 4", "+ d")]
    assert verdicts(place) == [("approve", "local", "elicitation", "good")]
    assert shown_of(place) == [{"way": "walk", "screen": "claude-code 2.1.332", "lines": 4, "of": 4}]


async def test_what_is_said_about_a_question_leaves_room_for_it(place, era):
    person = Person([accepts(decision="deny")])
    async with open_asking_app(place) as app, connect_person(app, era, person) as client:
        run_id = await waiting(app, place, goal="change it " * 30)
        await client.ask("run_continue", {"run_id": run_id})
    about = person.seen[0].requested_schema["properties"]["decision"]["description"]
    assert run_id in about
    assert len(about) <= 3 * 54


@pytest.mark.parametrize(
    ("name", "version", "fields"),
    [("codex-mcp-client", "0.171.0", ["decision"]), ("copilot-cli", "1.0.102", ["decision", "feedback"])],
)
async def test_a_client_that_sends_no_form_with_an_empty_text_is_asked_for_none(place, era, name, version, fields):
    person = Person([accepts(decision="approve")])
    async with (
        open_asking_app(place) as app,
        connect_person(app, era, person, name=name, version=version) as client,
    ):
        await client.ask("run_continue", {"run_id": await waiting(app, place)})
    assert list(person.seen[0].requested_schema["properties"]) == fields
    assert verdicts(place)[0][0] == "approve"


async def test_a_client_that_opens_links_is_sent_to_the_page_and_its_call_waits_for_the_decision_there(place, era):
    asked = asyncio.Event()

    async def open_link(_ctx: object, params: wire.ElicitRequestURLParams) -> wire.ElicitResult:
        links.append(params.url)
        asked.set()
        return wire.ElicitResult(action="accept")

    links: list[str] = []
    async with (
        open_asking_app(place) as app,
        connect_person(app, era, open_link, name="claude-code", version="2.1.400") as client,
    ):
        run_id = await waiting(app, place, preview="x\n" * 20)
        with published_page(app.settings.home, "http://127.0.0.1:1/"):
            call = asyncio.create_task(client.ask("run_continue", {"run_id": run_id, "wait_s": 30}))
            await asyncio.wait_for(asked.wait(), 20)
            for _ in range(5):  # time enough for a call that would not wait
                await client.ask("run_status", {"run_ids": [run_id]})
            assert not call.done()
        await app.answers.decide(run_id, KEY, "approve", None, PERSON, digest=digest(place, run_id))
        run = await asyncio.wait_for(call, 20)
        assert [item["kind"] for item in run["waiting"]] == ["tool_call"]
    assert links == [f"http://127.0.0.1:1/#/runs/{run_id}"]
    assert (verdicts(place)[0][:2], shown_of(place)) == (("approve", "local"), [])


async def test_where_no_page_is_served_the_server_that_asks_serves_one(place, era):
    seen: list[tuple[str, int]] = []

    async def open_link(_ctx: object, params: wire.ElicitRequestURLParams) -> wire.ElicitResult:
        async with httpx2.AsyncClient(trust_env=False) as browser:
            seen.append((params.url, (await browser.get(params.url)).status_code))
        return wire.ElicitResult(action="cancel")

    async with (
        open_asking_app(place) as app,
        connect_person(app, era, open_link, name="claude-code", version="2.1.400") as client,
    ):
        run_id = await waiting(app, place, preview="x\n" * 20)
        await client.ask("run_continue", {"run_id": run_id})
        assert find_pages(app.settings.home) == [seen[0][0].partition("#")[0]]
    assert (len(seen), seen[0][1], find_pages(app.settings.home)) == (1, 200, [])


async def test_a_dialog_stays_open_after_the_call_and_a_late_decision_counts(place):
    person = Thinking([accepts(decision="approve", feedback="at last")])
    async with open_asking_app(place) as app, connect_person(app, LEGACY, person) as client:
        run_id = await waiting(app, place)
        for _ in range(2):
            run = await client.ask("run_continue", {"run_id": run_id, "wait_s": 0.2})
            assert (run["status"], run["waiting"][0]["key"], len(person.seen)) == ("input_required", KEY, 1)
        assert verdicts(place) == UNDECIDED
        person.decided.set()
        async with asyncio.timeout(10):
            while verdicts(place) == UNDECIDED:
                await client.ask("run_status", {"run_ids": [run_id], "until": "attention", "wait_s": 1})
        assert verdicts(place) == [("approve", "local", "elicitation", "at last")]
        assert [item["kind"] for item in (await client.ask("run_status"))["runs"][0]["waiting"]] == ["tool_call"]


async def test_a_dialog_is_shown_to_another_session_too_and_closed_there_when_one_has_decided(place):
    first, second = Thinking([accepts(decision="approve")]), Thinking([accepts(decision="deny")])
    async with (
        open_asking_app(place) as app,
        connect_person(app, LEGACY, first, name="first") as one,
        connect_person(app, LEGACY, second, name="second") as two,
    ):
        run_id = await waiting(app, place)
        await one.ask("run_continue", {"run_id": run_id, "wait_s": 0.2})
        await two.ask("run_continue", {"run_id": run_id, "wait_s": 0.2})
        assert (len(first.seen), len(second.seen)) == (1, 1)
        second.decided.set()
        async with asyncio.timeout(10):
            await first.closed.wait()
        assert verdicts(place) == [("deny", "local", "elicitation", None)]
        assert not first.decided.is_set()


async def test_a_dialog_ends_with_its_session_and_the_next_one_is_asked_anew(place):
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        person = Thinking([accepts(decision="deny")])
        async with connect_person(app, LEGACY, person) as client:
            await client.ask("run_continue", {"run_id": run_id, "wait_s": 0.2})
        assert verdicts(place) == UNDECIDED
        async with connect_person(app, LEGACY, Person([accepts(decision="approve")])) as client:
            await client.ask("run_continue", {"run_id": run_id})
        assert verdicts(place) == [("approve", "local", "elicitation", None)]


async def test_a_dialog_is_closed_when_somebody_else_has_decided(place):
    person = Absent()
    async with open_asking_app(place) as app, connect_person(app, LEGACY, person) as client:
        run_id = await waiting(app, place)
        call = asyncio.create_task(client.ask("run_continue", {"run_id": run_id}))
        await person.shown.wait()
        await app.answers.decide(run_id, KEY, "approve", None, replace(ME, via="command"))
        assert [item["kind"] for item in (await call)["waiting"]] == ["tool_call"]
        assert verdicts(place) == [("approve", "local", "command", None)]


async def test_two_calls_of_one_client_show_one_dialog(place):
    person = Absent()
    async with open_asking_app(place) as app, connect_person(app, LEGACY, person) as client:
        run_id = await waiting(app, place)
        calls = [
            asyncio.create_task(client.ask("run_continue", {"run_id": run_id, "wait_s": 10 + n})) for n in range(2)
        ]
        await person.shown.wait()
        await app.answers.decide(run_id, KEY, "deny", None, replace(ME, via="command"))
        await asyncio.gather(*calls)
    assert len(person.seen) == 1


# -- 2026-07-28: what travels, and what of it counts -----------------------------------------------------------


async def asked_once(client: Any, run_id: str, **more: Any) -> tuple[wire.InputRequiredResult, str]:
    asked = await client.step_to_requests("run_continue", {"run_id": run_id}, **more)
    (key,) = asked.input_requests
    assert isinstance(asked.input_requests[key], wire.ElicitRequest)
    return asked, key


async def test_PROTOCOL_020_an_answer_of_another_kind_is_none_and_it_is_asked_again(place):
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person()) as client:
        run_id = await waiting(app, place)
        asked, key = await asked_once(client, run_id)
        wrong = {key: text_reply('{"decision": "approve"}')}
        again, second = await asked_once(client, run_id, state=asked.request_state, answers=wrong)
        assert (key, second, verdicts(place)) == (KEY, f"{KEY}#2", UNDECIDED)
        late = {key: accepts(decision="approve")}  # for the first ask, which is consumed
        await asked_once(client, run_id, state=asked.request_state, answers=late)
        assert verdicts(place) == UNDECIDED
        await client.step_to_result(
            "run_continue", {"run_id": run_id}, state=again.request_state, answers={second: accepts(decision="approve")}
        )
        assert verdicts(place)[0][0] == "approve"


async def test_a_state_that_comes_again_decides_nothing_again(place):
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person(), patience=UNHURRIED) as client:
        run_id = await waiting(app, place)
        asked, key = await asked_once(client, run_id)
        yes, no = {key: accepts(decision="approve")}, {key: accepts(decision="deny")}
        carried = [{"state": asked.request_state, "answers": answers} for answers in (yes, no) * 4]
        await asyncio.gather(*(client.step_to_result("run_continue", {"run_id": run_id}, **each) for each in carried))
        assert len(verdicts(place)) == 1
        assert place.rows("select count(*) from inbox where kind = 'verdict'") == [(1,)]


async def test_an_answer_that_nobody_asked_for_is_ignored(place):
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person()) as client:
        run_id = await waiting(app, place)
        forged = {KEY: accepts(decision="approve"), f"{KEY}#2": accepts(decision="approve")}
        await asked_once(client, run_id, answers=forged)
        assert verdicts(place) == UNDECIDED


async def test_a_state_is_for_its_run_and_its_call_alone(place):
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person()) as client:
        one, two = await waiting(app, place, key="1"), await waiting(app, place, key="2")
        asked, key = await asked_once(client, one)
        answers = {key: accepts(decision="approve")}
        for name, arguments in (("run_continue", {"run_id": two}), ("planner_run", {"goal": "x"})):
            with pytest.raises(MCPError):
                await client.step(name, arguments, state=asked.request_state, answers=answers)
        assert verdicts(place) == UNDECIDED * 2


async def test_a_call_that_comes_again_without_an_answer_is_told_how_to_decide_otherwise(place):
    """The client raises on its own side: to be asked at each call would hide what the call has to say."""
    impatient = replace(DEFAULT_WAIT_POLICY, stale_after_s=-1.0)
    async with open_asking_app(place) as app:
        run_id = await waiting(app, place)
        async with connect_person(app, MODERN, Person(), patience=impatient) as client:
            await asked_once(client, run_id)
            run = await client.step_to_result("run_continue", {"run_id": run_id})
            assert (run["status"], run["waiting"][0]["key"]) == ("input_required", KEY)
            _, key = await asked_once(client, run_id)  # and the call after that is asked anew
            assert key == f"{KEY}#2"
        assert verdicts(place) == UNDECIDED


async def test_the_same_ask_stands_while_its_user_may_be_thinking(place):
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person()) as client:
        run_id = await waiting(app, place)
        assert [(await asked_once(client, run_id))[1] for _ in range(3)] == [KEY] * 3
        assert len(asks_of(place)) == 1


async def test_a_decision_survives_the_server_that_asked(place):
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person()) as client:
        run_id = await waiting(app, place)
        asked, key = await asked_once(client, run_id)
    async with open_asking_app(place) as app, connect_person(app, MODERN, Person()) as client:
        answers = {key: accepts(decision="approve")}
        run = await client.step_to_result(
            "run_continue", {"run_id": run_id}, state=asked.request_state, answers=answers
        )
        assert [item["key"] for item in run["waiting"]] == [STEP]


async def test_several_are_asked_in_one_round_and_each_counts_by_itself(place, era):
    person = Person([accepts(decision="approve"), CANCELS, accepts(decision="deny")])
    look = {"name": "ask_person", "arguments": {"question": "may I?"}}
    async with (
        open_asking_app(place, {"tool_calls": [look] * 3}, says("done")) as app,
        connect_person(app, era, person) as client,
    ):
        request = PlannerRequest("look", caller_tools=(replace(ASK, effect="read"),))
        run_id = (await app.runs.start(request, ME)).run_id
        await rests(app, run_id)
        for n in (1, 2, 3):
            assert asks_for(place, run_id, path=f"round-1/call-{n}")
        run = await client.ask("run_continue", {"run_id": run_id})
        assert sorted(str(verdict) for verdict, *_ in verdicts(place)) == ["None", "approve", "deny"]
        assert {item["kind"] for item in run["waiting"]} == {"tool_call", "approval"}
        assert (len(person.seen), len(asks_of(place))) == (3, era == MODERN)


def test_a_key_tells_whether_it_is_an_approvals() -> None:
    keys = ("round-1/call-1/approval", "call-1/approval-2", "round-1/call-1", "approval/call-1", "approvals")
    assert [approvals.is_approval_key(key) for key in keys] == [True, True, False, False, False]


async def test_a_dialog_shows_what_changes_and_the_digest_beside_the_choice(place, era):
    person = Person([CANCELS])
    edit = {"tool_calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "omega\n"}}]}
    async with open_asking_app(place, edit, says("done")) as app, connect_person(app, era, person) as client:
        run = await client.ask("planner_run", {"goal": "change it", "tools": ["write_file"], "wait_s": 5})
    (shown,) = person.seen
    assert shown.message.splitlines() == ["edit a.txt  -1 +1", "- alpha", "+ omega"]
    about = shown.requested_schema["properties"]["decision"]["description"]
    assert re.match(f"digest [0-9a-f]{{16}} · {run['run_id']}", about)
