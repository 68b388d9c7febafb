"""One script of completions through every route: the same steps, the same questions, the same outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from support.app import Place, asked_digests, outcome_of, place_in, reads, says
from support.provider_server import Reply, calls, standin, talks
from support.sampling_clients import LEGACY, MODERN, ClientModel, ConnectedClient, Turn, open_client, paths

from kairos_mcp.core.messages import ToolCall
from kairos_mcp.models.dialects import encode_text_turn

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@dataclass(frozen=True)
class Play:
    """What the model says, turn by turn, and what it is asked to do; `but`: routes on which it can't be said so."""

    turns: tuple[Turn, ...]
    arguments: Mapping[str, Any]
    but: tuple[str, ...] = ()


PLAYS = {
    "reads side by side": Play((reads("a.txt", "b.txt"), reads("not there"), says("alpha, beta")), {}),
    "a schema, repaired once": Play((reads("a.txt"), says('{"n": "x"}'), says('{"n": 3}')), {"output_schema": NUMBER}),
    "a closing after a limit": Play((reads("a.txt"), reads("b.txt"), says("the sum")), {"limits": {"rounds": 2}}),
    "a turn cut off": Play(({"content": "half a sent", "finish": "length"}, says("whole")), {}),
    "a tool that was not offered": Play(
        ({"tool_calls": [{"name": "run_command", "arguments": {"argv": ["true"]}}]}, says("no")), {}
    ),
    "arguments that are a text": Play(
        ({"tool_calls": [{"name": "read_file", "arguments": "a.txt"}]}, says("no")),
        {},
        but=("native",),  # the SDK refuses such a reply as a whole
    ),
    "failures, of which the model is reminded": Play(
        (*(reads(f"x{n}", f"y{n}", content=f"turn {n}") for n in range(5)), says("done")), {"limits": {"rounds": 9}}
    ),
}
ROUTES = [
    "push native",
    "push text",
    "input required native",
    "input required text",
    "caller legacy",
    "caller modern",
    "scripted legacy",
    "scripted modern",
    "provider native",
    "provider text",
]


def era_of(route: str) -> str:
    return MODERN if route.startswith("input") or route.endswith("modern") else LEGACY


@dataclass(frozen=True)
class Came:
    """What a run came to, but for what may differ: sent, usage, ids, times."""

    steps: list[str]
    asked: dict[str, bytes]
    outcome: Any


async def through(route: str, place: Place, play: Play) -> Came:
    """The play through this route."""
    match route.split():
        case ["push", dialect] | ["input", "required", dialect]:
            model = ClientModel(list(play.turns), native=dialect == "native")
            async with open_client(place.settings(), era_of(route), model) as client:
                ended = await client.ask("planner_run", {"goal": "go", **play.arguments})
            assert (ended["route"], len(model.asked)) == ("sampling", len(play.turns))
        case ["provider", dialect]:
            async with standin() as server:
                server.will(*(openai_reply(turn, native=dialect == "native") for turn in play.turns))
                asks_it = place.settings(model="openai:small", base_url=server.openai, dialect=dialect)
                async with open_client(asks_it, MODERN) as client:
                    ended = await client.ask("planner_run", {"goal": "go", **play.arguments})
            assert (ended["route"], len(server.heard)) == ("provider", len(play.turns))
        case ["scripted", _]:
            async with open_client(place.settings(*play.turns), era_of(route)) as client:
                ended = await client.ask("planner_run", {"goal": "go", **play.arguments})
        case _:
            async with open_client(place.settings(), era_of(route)) as client:
                ended = await by_the_caller(client, play)
    assert ended["status"] in ("completed", "stopped")
    return Came(
        paths(place, ended["run_id"]), asked_digests(place, ended["run_id"]), outcome_of(place, ended["run_id"])
    )


def openai_reply(turn: Turn, *, native: bool) -> Reply:
    """The turn as an OpenAI-compatible server says it."""
    assert not isinstance(turn, str)
    content, finish = turn.get("content", ""), turn.get("finish", "stop")
    asked = [(call["name"], call["arguments"]) for call in turn.get("tool_calls", ())]
    if native:
        return talks(content, calls(*asked), finish="tool_calls" if asked else finish)
    if finish == "length":
        return talks(content, finish=finish)
    return talks(encode_text_turn(content, [ToolCall("", name, given) for name, given in asked]))


async def by_the_caller(client: ConnectedClient, play: Play) -> dict[str, Any]:
    run = await client.ask("planner_run", {"goal": "go", "route": "caller", **play.arguments})
    for turn in play.turns:
        (item,) = run["waiting"]
        run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {item["key"]: turn}})
    return run


@pytest.fixture(scope="module")
def by_script() -> dict[str, Came]:
    """What each play came to by a script, once."""
    return {}


@pytest.mark.parametrize("title", PLAYS)
@pytest.mark.parametrize("route", ROUTES)
async def test_a_script_gives_the_same_run_on_every_route(tmp_path, by_script, title, route):
    play = PLAYS[title]
    if any(word in play.but for word in route.split()):
        pytest.skip("it can't be said on this route")
    if title not in by_script:
        by_script[title] = await through("scripted legacy", place_in(tmp_path / "script"), play)
    came = await through(route, place_in(tmp_path / "route"), play)
    assert came.steps == by_script[title].steps
    assert came.asked == by_script[title].asked
    assert came.outcome == by_script[title].outcome


@pytest.mark.parametrize("route", ["push text", "input required text"])
async def test_a_reply_that_can_t_be_read_is_shown_to_the_model_alike_in_both_eras(tmp_path, route):
    play = Play(("Let me think about it first.", reads("a.txt"), says("alpha")), {})
    pushed = await through("push text", place_in(tmp_path / "push"), play)
    came = await through(route, place_in(tmp_path / "route"), play)
    assert came.steps == ["round-1", "round-2", "round-2/call-1", "round-3"]
    assert came == pushed
