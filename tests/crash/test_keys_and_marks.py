"""A call is marked right before it leaves, and carries a key that each attempt at it has: so a person is asked about a
lost call only where it may have been made, and where nobody would notice that it comes twice."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import sandboxed
from support.app import ME, PERSON, UNWATCHED, WITHIN_S, Place, meet_servers, place_in, rests, says
from support.downstream import PEER
from support.network import Peer, json_text, peer, rules

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import FenceLost, KairosError, NoSpace, StoreBusy, StoreUnavailable
from kairos_mcp.core.messages import ToolResult, ToolSpec
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.tool import Tool, ToolContext, ToolMemory
from kairos_mcp.settings.http_definition import HttpDefinition
from kairos_mcp.settings.http_tool_table import parse_http_tool
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule, ServerSetting
from kairos_mcp.store import integrity, tool_intents
from kairos_mcp.store.accounts import unit_columns
from kairos_mcp.tools.http.client import HttpClient
from kairos_mcp.tools.http.http_tool import http_tool
from kairos_mcp.tools.tool import call_redacted

MARK = ("intent round-1/call-1", "{}")
WAITING = "touch begun; until test -e go; do sleep 0.01; done"
MARKS = "select name, body from tool_intent order by name"
ALLOWED = (GateRule("pay", "allow"), GateRule("x__pid", "allow"), GateRule("run_command", "allow"))


@pytest.fixture
def place(tmp_path: Any) -> Place:
    return place_in(tmp_path)


@pytest.fixture
def shop() -> Any:
    with peer() as serving:
        serving.will(json_text('{"paid": true}'))
        yield serving


def paying(shop: Peer, **more: Any) -> HttpDefinition:
    defined = {"name": "pay", "description": "Pays.", "url": shop.url("/pay"), "method": "POST", **more}
    return parse_http_tool(defined)


def settings_for(place: Place, tool: HttpDefinition, *, calls: int = 1, **more: Any) -> Settings:
    lines = [{"tool_calls": [{"name": "pay", "arguments": {}}]} for _ in range(calls)]
    private = tuple(rules(f"127.0.0.1:{tool.sample_url().port}"))
    ways = {"http_tools": (tool,), "private_hosts": private, "gate": ALLOWED, "flow": UNWATCHED, **more}
    return place.settings(*lines, says("done"), **ways)


async def gone_through(settings: Settings, tool: str) -> str:
    async with App.open(settings, via="mcp") as app:
        await meet_servers(app)
        run_id = (await app.runs.start(PlannerRequest("pay", tools=(tool,)), ME)).run_id
        report = await rests(app, run_id)
        assert (report.status, report.summary) == ("completed", "done"), report
    return run_id


def lose(place: Place, *, marked: bool = False) -> None:
    """As if the server had died within the run's first call: with the mark of one that left, or without."""
    first = "(select id from step where path = 'round-1/call-1')"
    place.rows(f"delete from answer where step >= {first}")
    place.rows(f"delete from step where id > {first}")
    place.rows("update run set outcome = null, ended_at = null, owner = 0")
    if marked:
        place.rows("insert into tool_intent(run, name, body) values (1, ?, ?)", *MARK)
    with place.session() as session:
        spent, held = integrity.sum_rows(session, 1)
        changed = ", ".join(f"{name} = ?" for name in unit_columns("spent", "held"))
        session.rows(f"update account set {changed} where scope = 'run'", (*spent, *held))


async def taken_up(settings: Settings, run_id: str) -> tuple[str, list[str]]:
    """How the run stands at the next server once it rests: its status, and the kinds of what it waits for."""
    async with App.open(settings, via="mcp") as app:
        await meet_servers(app)
        await app.runs.wait([run_id], until="attention", wait_s=WITHIN_S, caller=ME)
        report = await app.runs.report(run_id, ME)
        return report.status, [item["kind"] for item in report.waiting]


def keys_of(shop: Peer) -> list[str | None]:
    return [heard.header("idempotency-key") for heard in shop.heard]


@pytest.mark.parametrize(("effect", "marks"), [("irreversible", [MARK]), ("keyed", []), ("idempotent", [])])
async def test_what_can_not_be_undone_is_marked_before_its_first_byte_and_nothing_else_is(
    place: Place, shop: Peer, effect: str, marks: list[Any]
) -> None:
    seen = []

    def look_and_answer(self: Peer, line: Any) -> None:
        seen.append(place.rows(MARKS))
        json_text('{"paid": true}')(self, line)

    shop.will(look_and_answer)
    await gone_through(settings_for(place, paying(shop, effect=effect)), "pay")
    assert (seen, place.rows(MARKS)) == ([marks], [])  # the mark goes with the answer


@pytest.mark.parametrize(
    ("marked", "requests", "stands"), [(False, 2, ("completed", [])), (True, 1, ("input_required", ["settle"]))]
)
async def test_a_person_is_asked_about_a_lost_call_only_if_it_had_left(
    place: Place, shop: Peer, marked: bool, requests: int, stands: Any
) -> None:
    settings = settings_for(place, paying(shop))
    run_id = await gone_through(settings, "pay")
    lose(place, marked=marked)
    assert await taken_up(settings, run_id) == stands
    assert len(shop.heard) == requests


async def test_a_call_that_is_keyed_is_made_again_with_its_key_and_nobody_is_asked(place: Place, shop: Peer) -> None:
    settings = settings_for(place, paying(shop, effect="keyed"), calls=2)
    run_id = await gone_through(settings, "pay")
    first, second = keys_of(shop)
    assert (first != second, len(first or "")) == (True, 64)
    lose(place)
    assert await taken_up(settings, run_id) == ("completed", [])
    assert keys_of(shop) == [first, second, first, second]


async def test_a_person_is_asked_once_the_other_end_may_have_forgotten_the_key(place: Place, shop: Peer) -> None:
    settings = settings_for(place, paying(shop, effect="keyed", key_life_s=60))
    run_id = await gone_through(settings, "pay")
    lose(place)
    place.rows("update step set at = at - 61000 where path = 'round-1/call-1'")
    assert await taken_up(settings, run_id) == ("input_required", ["settle"])
    assert len(shop.heard) == 1


async def test_a_clock_that_went_back_proves_no_key(place: Place, shop: Peer) -> None:
    settings = settings_for(place, paying(shop, effect="keyed"))
    run_id = await gone_through(settings, "pay")
    lose(place)
    place.rows("update step set at = at + 3600000 where path = 'round-1/call-1'")
    assert await taken_up(settings, run_id) == ("input_required", ["settle"])


async def test_the_key_s_life_does_not_begin_while_a_person_decides(place: Place, shop: Peer) -> None:
    settings = settings_for(place, paying(shop, effect="keyed", key_life_s=60), gate=())
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("pay", tools=("pay",)), ME)).run_id
        (asked,) = (await rests(app, run_id)).waiting
        place.rows("update step set at = at - 61000 where path = 'round-1/call-1'")
        await app.answers.decide(run_id, asked["key"], "approve", None, PERSON)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
    lose(place)
    assert await taken_up(settings, run_id) == ("completed", [])
    first, again = keys_of(shop)
    assert first == again


def test_a_call_that_can_not_be_marked_does_not_leave(shop: Peer) -> None:
    def refuse(*_given: str) -> None:
        raise FenceLost("run-1")  # another server has taken the run

    client = HttpClient(private=rules(f"127.0.0.1:{shop.port}"))
    tool = http_tool(paying(shop), client, resolve_secret=str)
    memory = ToolMemory(refuse, lambda name: None)
    ctx = ToolContext("run-1", time.monotonic() + WITHIN_S, lambda ref: None, memory=memory, is_marked=True)
    with pytest.raises(FenceLost):
        tool.run({}, ctx)
    assert shop.heard == []


@pytest.mark.parametrize("failure", [NoSpace, StoreBusy, StoreUnavailable])
async def test_a_call_whose_mark_the_store_did_not_take_is_begun_again(
    place: Place, shop: Peer, monkeypatch: pytest.MonkeyPatch, failure: type[KairosError]
) -> None:
    keep_text, refused = tool_intents.keep_text, list[int]()

    def keep_from_the_second_time_on(*given: Any) -> None:
        refused.append(len(shop.heard))
        if len(refused) == 1:
            raise failure("The disk is full.", "Free some space.")
        keep_text(*given)

    monkeypatch.setattr(tool_intents, "keep_text", keep_from_the_second_time_on)
    await gone_through(settings_for(place, paying(shop)), "pay")
    assert (refused, len(shop.heard)) == ([0, 0], 1)
    assert place.rows("select ended from attempt") == [("unknown",)]
    ((told,),) = place.rows("select a.body from answer a join step s on s.id = a.step where s.path = 'round-1/call-1'")
    assert "paid" in told


async def test_a_server_that_has_lost_the_run_keeps_nothing(place: Place, shop: Peer) -> None:
    run_id = await gone_through(settings_for(place, paying(shop)), "pay")
    place.rows("update run set owner = 0, fence = 9")
    with place.session() as session, pytest.raises(FenceLost):
        tool_intents.keep_text(session, 1, run_id, 0, 8, "note", "text")
    assert place.rows(MARKS) == []


def peer_setting(place: Place, effect: str) -> ServerSetting:
    command = (sys.executable, str(PEER), f"log={place.root / 'log'}", "meta")
    effects: Any = (("pid", effect), ("echo", "read"))
    return ServerSetting("x", command, sandbox=False, effects=effects)


def metas(place: Place) -> list[Any]:
    lines = (place.root / "log").read_text().splitlines()
    return [json.loads(line.removeprefix("meta ")) for line in lines if line.startswith("meta ")]


@pytest.mark.parametrize(
    ("effect", "marked", "effect_later", "stands"),
    [
        ("keyed", False, "keyed", ("completed", [])),
        ("keyed", False, "irreversible", ("input_required", ["settle"])),  # the stricter of then and now counts
        ("idempotent", False, "irreversible", ("input_required", ["settle"])),
        ("idempotent", False, "keyed", ("input_required", ["settle"])),
        ("idempotent", False, "idempotent", ("completed", [])),
        ("irreversible", False, "irreversible", ("completed", [])),
        ("irreversible", True, "keyed", ("input_required", ["settle"])),
    ],
)
async def test_a_server_s_call_carries_its_key_and_is_repeated_with_it(
    place: Place, effect: str, marked: bool, effect_later: str, stands: Any
) -> None:
    lines = ({"tool_calls": [{"name": "x__pid", "arguments": {}}, {"name": "x__echo", "arguments": {"text": "t"}}]},)
    settings = place.settings(
        *lines, says("done"), servers=(peer_setting(place, effect),), gate=ALLOWED, flow=UNWATCHED
    )
    run_id = await gone_through(settings, "x__*")
    settings = replace(settings, servers=(peer_setting(place, effect_later),))
    changing, reading = metas(place)
    assert len(changing["kairos-mcp/idempotency-key"]) == 64
    assert "kairos-mcp/idempotency-key" not in reading
    lose(place, marked=marked)
    assert await taken_up(settings, run_id) == stands
    assert metas(place)[2:3] == ([changing] if stands[0] == "completed" else [])


async def marks_during(settings: Settings, tool: str, has_begun: Callable[[], bool], place: Place) -> list[Any]:
    """What is marked while a run's only call is under way, which lasts until there is a file `go`."""
    async with App.open(settings, via="mcp") as app:
        await meet_servers(app)
        run_id = (await app.runs.start(PlannerRequest("pay", tools=(tool,)), ME)).run_id
        async with asyncio.timeout(WITHIN_S):
            while not has_begun():  # noqa: ASYNC110 - another's file
                await asyncio.sleep(0.005)
        marks = place.rows(MARKS)
        (place.workspace / "go").touch()
        assert (await rests(app, run_id)).status == "completed"
    return marks


async def test_a_server_s_call_is_marked_before_it_is_sent(place: Place) -> None:
    call = {"name": "x__await", "arguments": {"text": str(place.workspace / "go")}}
    gate, servers = (GateRule("x__await", "allow"),), (peer_setting(place, "keyed"),)
    settings = place.settings({"tool_calls": [call]}, says("done"), servers=servers, gate=gate, flow=UNWATCHED)
    assert await marks_during(settings, "x__*", lambda: bool(metas(place)), place) == [MARK]


async def test_a_program_without_a_sandbox_is_marked_before_it_starts(place: Place) -> None:
    call = {"name": "run_command", "arguments": {"argv": ["sh", "-c", WAITING]}}
    settings = place.settings({"tool_calls": [call]}, says("done"), gate=ALLOWED, flow=UNWATCHED, commands="bare")
    begun = place.workspace / "begun"
    assert await marks_during(settings, "run_command", begun.exists, place) == [MARK]


def test_what_does_not_mark_itself_is_marked_before_it_is_called() -> None:
    events: list[str] = []
    memory = ToolMemory(lambda name, text: events.append(name), lambda name: None)
    spec = ToolSpec("ring", "Rings.", {"type": "object"}, source="python:bells")
    tool = Tool(spec, lambda arguments, ctx: ToolResult(str(events.append("called"))))
    ctx = ToolContext("run-1", time.monotonic() + 1, lambda ref: None, "round-1/call-1", memory, is_marked=True)
    assert not call_redacted(Redactor(), tool, {}, ctx).is_error
    assert events == [MARK[0], "called"]


async def test_a_program_finds_its_call_s_key_in_its_environment(place: Place) -> None:
    sandboxed.skip_if_missing()
    call = {"name": "run_command", "arguments": {"argv": ["printenv", "KAIROS_IDEMPOTENCY_KEY"]}}
    settings = place.settings({"tool_calls": [call]}, {"tool_calls": [call]}, says("done"), gate=ALLOWED)
    run_id = await gone_through(settings, "run_command")
    first, second = printed(place)
    assert (len(first), first != second) == (64, True)
    lose(place)  # it had not begun
    assert await taken_up(settings, run_id) == ("completed", [])
    assert printed(place) == [first, second]


def printed(place: Place) -> list[str]:
    found = place.rows("select body from answer join step on id = step where kind = 'call' order by id")
    return [json.loads(body)["content"].splitlines()[-1] for (body,) in found]
