"""`seq` rises with each commit of a run; `until="news"` returns when something changed that whoever waits can use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.app import ASK, ME, Place, asks, rests, says
from support.sampling_clients import ConnectedClient, connect_client

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.run_spec import PlannerRequest

PERSON = Caller(via="command")
WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}
PATIENCE_S = 8.0


@asynccontextmanager
async def open_client(place: Place, *lines: Any) -> AsyncIterator[ConnectedClient]:
    async with App.open(place.settings(*lines), via="mcp") as app, connect_client(app) as client:
        yield client


def seq_of(place: Place, run_id: str) -> int:
    ((seq,),) = place.rows("select seq from run where id = ?", run_id)
    return int(seq)


async def news(
    client: ConnectedClient, since: Any, run_ids: list[str], wait_s: float = PATIENCE_S
) -> list[dict[str, Any]]:
    more = {} if since is None else {"since": since}
    found = await client.ask("run_status", {"run_ids": run_ids, "until": "news", "wait_s": wait_s, **more})
    runs: list[dict[str, Any]] = found["runs"]
    return runs


async def test_every_commit_of_a_run_raises_its_seq(place: Place) -> None:
    """Whatever is written of a run by whichever way: the start, answers, control requests, verdicts, notes, the end."""
    async with open_client(place, WRITES, says("Done.")) as client:
        run = await client.ask("planner_run", {"goal": "Write.", "tools": ["write_file"]})
        run_id, key = run["run_id"], run["waiting"][0]["key"]
        seen = [run["seq"]]
        for action in ("pause", "resume"):
            seen.append((await client.ask("run_control", {"run_id": run_id, "action": action}))["seq"])
        await rests(client.app, run_id)
        await client.app.answers.decide(run_id, key, "approve", None, PERSON)
        seen.append((await rests(client.app, run_id)).seq)
    assert seen == sorted(set(seen))
    assert seq_of(place, run_id) == seen[-1]
    (n,) = place.rows("select n from run")[0]
    for table, change in (
        ("note", "insert into note(run, text) values (?, 'a word')"),
        (
            "inbox",
            "insert into inbox(run, kind, body, principal, via, client, at) values (?, 'x', '', '', '', '', 0)",
        ),
        ("inbox", "update inbox set taken = 1 where run = ?"),
        ("approval", "update approval set feedback = 'why' where run = ?"),
        ("run", "update run set route = 'caller' where n = ?"),
    ):
        before = seq_of(place, run_id)
        place.rows(change, n)
        assert seq_of(place, run_id) > before, table


async def test_an_approval_is_told_once_and_waits_for_the_decision(place: Place) -> None:
    async with open_client(place, WRITES, says("Done.")) as client:
        run = await client.ask("planner_run", {"goal": "Write.", "tools": ["write_file"]})
        following = run["next"]
        assert following["tool"] == "run_status"
        told = {"run_ids": [run["run_id"]], "until": "news", "since": run["seq"]}
        assert {name: following["arguments"][name] for name in told} == told
        began = time.monotonic()
        (same,) = await news(client, run["seq"], [run["run_id"]], wait_s=0.5)
        assert time.monotonic() - began >= 0.5
        assert same["seq"] == run["seq"]

        waiting = asyncio.create_task(client.ask(following["tool"], {**following["arguments"], "wait_s": PATIENCE_S}))
        await asyncio.sleep(0)
        await client.app.answers.decide(run["run_id"], run["waiting"][0]["key"], "approve", None, PERSON)
        began = time.monotonic()
        (found,) = (await waiting)["runs"]
        assert time.monotonic() - began < PATIENCE_S / 2
        assert found["seq"] > run["seq"]
        while found["status"] == "working":
            (found,) = await news(client, found["seq"], [run["run_id"]])
        assert (found["status"], found["summary"]) == ("completed", "Done.")


async def test_a_pause_an_end_and_a_new_key_are_news(place: Place) -> None:
    async with open_client(place, asks("one"), asks("two"), says("Done.")) as client:
        request = PlannerRequest("Ask.", caller_tools=(ASK,))
        run_id = (await client.app.runs.start(request, ME)).run_id
        await rests(client.app, run_id)

        async def after(act: Any) -> dict[str, Any]:
            since = seq_of(place, run_id)
            waiting = asyncio.create_task(news(client, since, [run_id]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await act
            (found,) = await waiting
            assert found["seq"] > since
            return found

        assert (await after(client.app.control.pause(run_id, ME)))["status"] == "paused"
        await client.app.control.request(run_id, "resume", ME)
        await rests(client.app, run_id)
        found = await after(client.app.answers.submit(run_id, {"round-1/call-1": {"content": "1"}}, ME))
        assert [item["key"] for item in found["waiting"]] == ["round-2/call-1"]
        assert (await after(client.app.control.cancel(run_id, ME)))["status"] == "cancelled"


async def test_what_is_no_use_to_the_caller_is_no_news(place: Place) -> None:
    async with open_client(place, asks("one"), says("Done.")) as client:
        request = PlannerRequest("Ask.", caller_tools=(ASK,))
        run_id = (await client.app.runs.start(request, ME)).run_id
        report = await rests(client.app, run_id)
        place.rows("insert into note(run, text) select n, 'a word' from run")
        (found,) = await news(client, report.seq, [run_id], wait_s=0.4)
        assert found["seq"] > report.seq
        assert place.rows("select news_seq <= ? from run", report.seq) == [(1,)]


async def test_without_since_and_with_one_that_is_ahead_news_is_told_at_once(place: Place) -> None:
    async with open_client(place, asks("one"), says("Done.")) as client:
        request = PlannerRequest("Ask.", caller_tools=(ASK,))
        run_id = (await client.app.runs.start(request, ME)).run_id
        report = await rests(client.app, run_id)
        for since in (None, report.seq + 1_000, {run_id: 0}, {}):
            began = time.monotonic()
            await news(client, since, [run_id])
            assert time.monotonic() - began < PATIENCE_S / 2


async def test_several_runs_are_waited_for_each_from_its_own_seq(place: Place) -> None:
    async with open_client(place, asks("one"), says("Done.")) as client:
        ids = []
        for key in ("a", "b"):
            request = PlannerRequest("Ask.", caller_tools=(ASK,), key=key)
            ids.append((await client.app.runs.start(request, ME)).run_id)
        await rests(client.app, *ids)
        since = {run_id: seq_of(place, run_id) for run_id in ids}
        waiting = asyncio.create_task(news(client, since, ids))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await client.app.answers.submit(ids[1], {"round-1/call-1": {"content": "1"}}, ME)
        found = {run["run_id"]: run["seq"] for run in await waiting}
        assert found[ids[0]] == since[ids[0]]
        assert found[ids[1]] > since[ids[1]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"run_ids": ["a"], "since": 1},
        {"run_ids": ["a", "b"], "until": "news", "since": 1},
        {"until": "news", "since": 1},
        {"run_ids": ["a"], "all": True},
        {"run_ids": ["a"], "until": "news", "since": -1},
        {"run_ids": ["a"], "until": "news", "since": 1.5},
        {"run_ids": ["a"], "until": "news", "since": "1"},
    ],
)
async def test_a_since_that_means_nothing_is_refused(place: Place, arguments: dict[str, Any]) -> None:
    async with open_client(place) as client:
        result = await client.sdk_client.call_tool("run_status", arguments)
        assert result.is_error
        assert isinstance(result.structured_content, dict)
        assert result.structured_content["code"] == "bad_arguments"
