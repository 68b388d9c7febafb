"""A team on this project's own source, by one script on every route: the same steps, questions, outcome and files, with
two of its tasks under way at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from sampling.test_every_route import era_of, openai_reply
from starlette.responses import Response
from support.app import Place, asked_digests, outcome_of
from support.provider_server import Heard, standin
from support.sampling_clients import WITHIN_S, ClientModel, ConnectedClient, Reply, encode_reply, open_client
from support.team_on_source import (
    ENDS_WITH,
    GOAL,
    LINES,
    PLAN_FILE,
    SIDE_BY_SIDE,
    STEPS,
    TRAINING,
    line_for,
    place_with_source,
    step_of,
)

from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule

ROUTES = (
    "scripted",
    "provider native",
    "provider text",
    "push native",
    "push text",
    "input required native",
    "input required text",
    "caller legacy",
    "caller modern",
    "caller, then provider",
    "sampling, then caller",
)
IN_EVERY_RUN = (
    "provider native",
    "push native",
    "input required text",
    "caller, then provider",
    "sampling, then caller",
)
START = {"goal": GOAL, "limits": {"rounds": 40}}


@dataclass
class Meeting:
    """Where two steps meet: neither is answered before both are asked for, so that they are seen to overlap."""

    both: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)

    async def answer(self, path: str) -> Any:
        """Return the line for this step."""
        self.asked.append(path)
        if set(SIDE_BY_SIDE) <= set(self.asked):
            self.both.set()
        if path in SIDE_BY_SIDE:
            async with asyncio.timeout(WITHIN_S):
                await self.both.wait()
        return line_for(path)


@dataclass
class MeetingModel(ClientModel):
    """A client's model that finds its line by what it is shown."""

    meeting: Meeting = field(default_factory=Meeting)

    async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> Reply:
        shown = json.dumps(params.model_dump(mode="json"))
        turns = sum(message.role == "assistant" for message in params.messages)
        return encode_reply(await self.meeting.answer(step_of(shown, turns)), native=self.native)


def provider_reply(meeting: Meeting, *, native: bool) -> Callable[[Heard], Awaitable[Response]]:
    async def reply(heard: Heard) -> Response:
        turns = sum(message["role"] == "assistant" for message in heard.body["messages"])
        path = step_of(json.dumps(heard.body), turns)
        return await openai_reply(await meeting.answer(path), native=native)(heard)

    return reply


def settings_of(place: Place, *lines: Any, **changes: Any) -> Settings:
    return place.settings(*lines, gate=(GateRule("write_file", "allow"),), **changes)


@dataclass(frozen=True)
class Came:
    """What a team came to, but for what may differ: sent, usage, ids, times."""

    asked: dict[str, bytes]
    outcome: Any
    files: dict[str, str]


def came_to(place: Place, ended: dict[str, Any]) -> Came:
    assert (ended["status"], ended["stop_reason"], ended["summary"]) == ("completed", "team_done", ENDS_WITH)
    files = {str(file.relative_to(place.workspace)): file for file in place.workspace.rglob("*") if file.is_file()}
    digests = {name: sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    asked = asked_digests(place, ended["run_id"])
    asked["plan"] = b"with as many names of files as could be read within its time"
    return Came(asked, outcome_of(place, ended["run_id"]), digests)


def routes_of_answers(place: Place) -> set[str]:
    """By which routes the completions came."""
    statement = "select distinct by_route from answer join step on step.id = answer.step where kind <> 'call'"
    return {route for (route,) in place.rows(statement)}


async def through(route: str, place: Place) -> Came:
    """The team by this route."""
    meeting = Meeting()
    match route.replace(",", "").split():
        case ["scripted"]:
            async with open_client(settings_of(place, *LINES)) as client:
                return came_to(place, await client.ask("team_run", START))
        case ["provider", dialect]:
            async with standin() as server:
                server.will(*[provider_reply(meeting, native=dialect == "native")] * len(STEPS))
                asks_it = settings_of(place, model="openai:small", base_url=server.openai, dialect=dialect)
                async with open_client(asks_it) as client:
                    ended = await client.ask("team_run", START)
        case ["push", dialect] | ["input", "required", dialect]:
            model = MeetingModel(native=dialect == "native", meeting=meeting)
            async with open_client(settings_of(place), era_of(route), model) as client:
                ended = await client.ask("team_run", START)
                while ended["status"] == "input_required":  # after eight rounds of one call
                    ended = await client.ask("run_continue", {"run_id": ended["run_id"]})
        case ["caller", "then", "provider"]:
            async with standin() as server:
                server.will(*[provider_reply(meeting, native=True)] * len(STEPS))
                asks_it = settings_of(place, model="openai:small", base_url=server.openai)
                async with open_client(asks_it) as client:
                    ended = await reroute_team(client, meeting, "provider")
            assert routes_of_answers(place) == {"caller", "provider"}
            return came_to(place, ended)
        case ["sampling", "then", "caller"]:
            ended = await asked_until_both_wait(place, meeting)
            assert routes_of_answers(place) == {"caller", "sampling"}
            return came_to(place, ended)
        case _:
            async with open_client(settings_of(place), era_of(route)) as client:
                ended = await by_the_caller(client, await client.ask("team_run", START | {"route": "caller"}), meeting)
    assert sorted(meeting.asked) == sorted(STEPS)
    return came_to(place, ended)


async def by_the_caller(client: ConnectedClient, run: dict[str, Any], meeting: Meeting) -> dict[str, Any]:
    """Answer one of those that wait, the newest, until the team has ended."""
    while run["status"] == "input_required":
        keys = [item["key"] for item in run["waiting"]]
        meeting.asked += [key for key in keys if key not in meeting.asked]
        answers = {keys[-1]: line_for(keys[-1])}
        run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": answers})
    return run


async def reroute_team(client: ConnectedClient, meeting: Meeting, route: str) -> dict[str, Any]:
    """The plan and a turn of one task by the caller; what both tasks wait for then goes to the other route."""
    run = await client.ask("team_run", START | {"route": "caller"})
    for path in ("plan", SIDE_BY_SIDE[0]):
        run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {path: line_for(path)}})
    waiting = {item["key"] for item in run["waiting"]}
    assert waiting == {"task-1/try-1/round-2", "task-2/try-1/round-1"}
    meeting.both.set()
    await client.ask("run_control", {"run_id": run["run_id"], "action": "reroute", "route": route})
    (run,) = (await client.ask("run_status", {"run_ids": [run["run_id"]], "until": "done", "wait_s": 20}))["runs"]
    return run


async def asked_until_both_wait(place: Place, meeting: Meeting) -> dict[str, Any]:
    """A client's model makes the plan; it is rerouted while the requests of two tasks are out with it."""
    model = MeetingModel(native=True, meeting=meeting)
    async with open_client(settings_of(place), era_of("input"), model) as client:
        start = START | {"route": "sampling"}
        asked = await client.step_to_requests("team_run", start)
        replies = {"plan": encode_reply(line_for("plan"), native=True)}
        asked = await client.step_to_requests("team_run", start, state=asked.request_state, answers=replies)
        assert set(asked.input_requests) == set(SIDE_BY_SIDE)
        ((run_id,),) = place.rows("select id from run")
        await client.ask("run_control", {"run_id": run_id, "action": "reroute", "route": "caller"})
        (run,) = (await client.ask("run_status", {"run_ids": [run_id], "view": "full"}))["runs"]
        assert {item["key"] for item in run["waiting"]} == set(SIDE_BY_SIDE)
        return await by_the_caller(client, run, meeting)


@pytest.fixture(scope="module")
def by_script() -> list[Came]:
    """What the team came to by a script, once."""
    return []


@pytest.mark.parametrize(
    "route", [pytest.param(each, marks=() if each in IN_EVERY_RUN else pytest.mark.slow) for each in ROUTES]
)
async def test_a_team_on_a_real_code_base_is_the_same_on_every_route(
    tmp_path: Path, by_script: list[Came], route: str
) -> None:
    if not by_script:
        by_script.append(await through("scripted", place_with_source(tmp_path / "script")))
    came = await through(route, place_with_source(tmp_path / "route"))
    assert sorted(path for path in came.asked if "/call-" not in path) == sorted(STEPS)
    assert came.asked == by_script[0].asked
    assert came.outcome == by_script[0].outcome
    assert came.files == by_script[0].files
    assert came.files[PLAN_FILE] == sha256(TRAINING.encode()).hexdigest()
