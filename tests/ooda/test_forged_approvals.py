"""A client that forges, replays and redirects approvals of an edit: none counts, judged by the file and the rows."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from support.app import Place
from support.cycles import MANDATE, PAGE, Person, accepts, cycle, edit, open_scripted_client, page
from support.reviewers import MODERN, UNHURRIED, connect_person, verdicts
from support.stdio_server import StdioClient

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError

ONCE = {**MANDATE, "max_cycles": 1}
LINES = cycle(edit("oen.md", "one.md"))
DONE = PAGE.replace("oen.md", "one.md")
YES = {"decision": "approve"}
OTHER = {"path": "docs/index.md", "old_string": "tow.md", "new_string": "two.md"}


async def waits(client: Any) -> tuple[str, dict[str, Any]]:
    """The run of the mandate and what it asks approval of."""
    run = await client.ask("ooda_run", {"mandate": ONCE})
    (item,) = run["waiting"]
    assert (item["kind"], page_of(client)) == ("approval", PAGE)
    return run["run_id"], item


async def other(client: Any) -> tuple[str, dict[str, Any]]:
    """Another call that asks for approval."""
    run = await client.ask("registry_call", {"name": "edit_file", "arguments": OTHER})
    (item,) = run["waiting"]
    return run["run_id"], item


def page_of(client: Any) -> str:
    return page(Place(client.app.settings.home.parent))


async def submit_answers(client: Any, run_id: str, answers: Any) -> str:
    """The code with which the answers are refused, or the run's status."""
    result = await client.sdk_client.call_tool("run_continue", {"run_id": run_id, "answers": answers})
    report = result.structured_content
    return str(report["code"] if result.is_error else report["status"])


def none_decided(place: Place) -> bool:
    return all(verdict is None for verdict, *_ in verdicts(place))


async def test_approval_that_is_not_about_this_item_is_none(place, era):
    """Even where whoever calls may decide."""
    async with open_scripted_client(place, era, *LINES, approvals="host") as client:
        (run, item), (stray, strays) = await waits(client), await other(client)
        key, mine, theirs = item["key"], item["digest"], strays["digest"]
        assert mine != theirs
        forged = [
            (run, {key: {**YES, "digest": theirs}}, "approval_mismatch"),
            (run, {key: {**YES, "digest": mine.upper()}}, "bad_arguments"),
            (run, {key: {**YES, "digest": mine[:-1]}}, "bad_arguments"),
            (run, {key: YES}, "bad_arguments"),
            (run, {key: {**YES, "digest": mine, "by": "a person"}}, "bad_arguments"),
            (run, {key: {"decision": "Approve", "digest": mine}}, "bad_arguments"),
            (run, {key + "#2": {**YES, "digest": mine}}, "not_waiting"),
            (run, {key.removesuffix("/approval"): {"content": "It was made."}}, "not_waiting"),
            (run, {strays["key"]: {**YES, "digest": theirs}}, "not_waiting"),
            (stray, {key: {**YES, "digest": mine}}, "not_waiting"),
            (stray, {strays["key"]: {**YES, "digest": mine}}, "approval_mismatch"),
            ("run-000000000000", {key: {**YES, "digest": mine}}, "unknown_run"),
            (stray, {strays["key"]: {**YES, "digest": theirs}, key: {**YES, "digest": mine}}, "not_waiting"),
        ]
        for run_id, answers, code in forged:
            assert await submit_answers(client, run_id, answers) == code, answers
        with pytest.raises(KairosError) as refused:
            await client.app.answers.submit(run, {key: {**YES, "digest": mine}}, Caller("bob"))
        assert refused.value.code == "unknown_run"
        assert none_decided(place)
        assert page(place) == PAGE
        assert place.rows("select count(*) from inbox") == [(0,)]


async def test_a_model_that_answers_for_its_person_is_refused(place, era):
    async with open_scripted_client(place, era, *LINES) as client:
        run, item = await waits(client)
        assert (
            await submit_answers(client, run, {item["key"]: {**YES, "digest": item["digest"]}}) == "approval_required"
        )
        (again,) = (await client.ask("run_status", {"run_ids": [run]}))["runs"]
        assert again["next"]["tool"] == "run_status"
        assert none_decided(place)
        assert page(place) == PAGE


async def test_approval_that_comes_too_late_is_none(place, era):
    async with open_scripted_client(place, era, *LINES, approvals="host") as client:
        run, item = await waits(client)
        place.rows("update approval set expires_at = asked_at")
        assert await submit_answers(client, run, {item["key"]: {**YES, "digest": item["digest"]}}) == "approval_expired"
        assert page(place) == PAGE
        (report,) = (await client.ask("run_status", {"run_ids": [run], "until": "attention"}))["runs"]
        assert (report["status"], report["next"]["arguments"]) == ("paused", {"run_id": run, "action": "resume"})
        await client.ask("run_control", report["next"]["arguments"])
        run, again = await waits(client)
        assert (again["key"], page(place)) == (f"{item['key']}-2", PAGE)


async def test_approval_of_what_has_changed_since_it_was_shown_is_used_for_nothing(place, era):
    theirs = PAGE.replace("# Index", "# The index")
    async with open_scripted_client(place, era, *LINES, approvals="host") as client:
        run, item = await waits(client)
        (place.workspace / "docs" / "index.md").write_text(theirs)
        await client.ask("run_continue", {"run_id": run, "answers": {item["key"]: {**YES, "digest": item["digest"]}}})
        (report,) = (await client.ask("run_status", {"run_ids": [run], "until": "done"}))["runs"]
        act = report["output"]["cycles"][0]["act"]
        assert (act["status"], act["code"]) == ("failed", "stale_file")
        assert page(place) == theirs


async def test_EDIT_019_approval_for_a_file_that_a_link_has_replaced_follows_no_link(place, era):
    target, file = place.root / "target.md", place.workspace / "docs" / "index.md"
    target.write_text(PAGE)  # the very text that was shown
    async with open_scripted_client(place, era, *LINES, approvals="host") as client:
        run, item = await waits(client)
        file.unlink()
        file.symlink_to(target)
        await client.ask("run_continue", {"run_id": run, "answers": {item["key"]: {**YES, "digest": item["digest"]}}})
        (report,) = (await client.ask("run_status", {"run_ids": [run], "until": "done"}))["runs"]
        act = report["output"]["cycles"][0]["act"]
        assert (act["status"], act["code"]) == ("denied", "path_denied")
    assert (target.read_text(), file.is_symlink()) == (PAGE, True)


async def test_approval_given_by_eight_at_once_is_used_once(place, era):
    async with open_scripted_client(place, era, *LINES, approvals="host") as client, AsyncExitStack() as clients:
        run, item = await waits(client)
        connected = [
            await clients.enter_async_context(connect_person(client.app, era, None, name=f"client {n}"))
            for n in range(8)
        ]
        words = [{"decision": "approve" if n % 4 else "deny", "digest": item["digest"]} for n in range(8)]
        came = await asyncio.gather(
            *(submit_answers(each, run, {item["key"]: word}) for each, word in zip(connected, words, strict=True))
        )
        ((first, *_),) = verdicts(place)
        agreed = [word["decision"] == first for word in words]
        assert [code == "already_answered" for code in came] == [not same for same in agreed]
        await client.ask("run_status", {"run_ids": [run], "until": "done"})
        assert page(place) == (DONE if first == "approve" else PAGE)
        begun = "select count(*) from attempt join step on step.id = step where path = 'cycle-1/act/call-1'"
        assert place.rows(begun) == [(int(first == "approve"),)]
        assert await submit_answers(client, run, {item["key"]: {**YES, "digest": item["digest"]}}) != "working"
        assert place.rows(begun) == [(int(first == "approve"),)]


async def test_a_dialogs_answer_without_its_seal_or_under_another_one_is_none(place):
    """2026-07-28: what the client carries between two calls of one run, made up, spoilt, or taken to another run."""
    yes = accepts(decision="approve")
    async with (
        App.open(place.settings(*LINES), via="mcp") as app,
        connect_person(app, MODERN, Person(), patience=UNHURRIED) as client,
    ):
        start = {"mandate": ONCE}
        first = await client.step_to_requests("ooda_run", start)
        call = {"name": "edit_file", "arguments": OTHER}
        second = await client.step_to_requests("registry_call", call)
        (key,), (stray,) = first.input_requests, second.input_requests
        assert key != stray
        run = {"run_id": place.rows("select id from run order by n")[0][0]}
        for state in ("", "x", run["run_id"], spoilt(first.request_state), first.request_state[:-8]):
            with pytest.raises(MCPError) as refused:
                await client.step("run_continue", run, state=state, answers={key: yes})
            assert refused.value.error.code == -32602
        await client.step("run_continue", run, answers={key: yes})  # without any
        for name, arguments, state in (
            ("run_continue", run, second.request_state),
            ("registry_call", call, first.request_state),
            ("ooda_run", start, second.request_state),
        ):
            with suppress(MCPError):  # refused, or asked anew
                await client.step(name, arguments, state=state, answers={key: yes, stray: yes})
        assert none_decided(place)
        assert page(place) == PAGE
        report = await client.step_to_result(
            "ooda_run", start, state=first.request_state, answers={key: yes}
        )  # as it was meant
        assert (report["output"]["cycles"][0]["status"], page(place)) == ("applied", DONE)
        assert [verdict for verdict, *_ in verdicts(place)] == ["approve", None]


def spoilt(state: str) -> str:
    """The same with one character of its middle changed."""
    middle = len(state) // 2
    return state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]


def test_replies_to_what_was_never_asked_decide_nothing(place):
    """Line by line, up to 2025-11-25: answers to requests that the server did not send."""
    place.settings(*LINES)
    with StdioClient.start(place) as client:
        run = client.call("ooda_run", mandate=ONCE, wait_s=15)
        reply = {"action": "accept", "content": {"decision": "approve"}}
        for number in range(20):
            for name in (number, str(number), run["waiting"][0]["key"]):
                client.send({"jsonrpc": "2.0", "id": name, "result": reply})
        report = client.call("run_continue", run_id=run["run_id"], wait_s=1)
        assert [item["kind"] for item in report["waiting"]] == ["approval"]
    assert none_decided(place)
    assert page(place) == PAGE
