"""Two mandates on a real repository, by every route: the same steps and questions, judged by git and pytest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sampling.test_every_route import openai_reply
from support.app import Place, asked_digests, assert_all_lawful, empty_place_in, outcome_of
from support.provider_server import standin
from support.repository import (
    LINKS,
    MENDS_LINKS,
    MENDS_SUITE,
    SUITE,
    changed_files,
    dead_links,
    repository_in,
    suite_passes,
)
from support.reviewers import UNHURRIED, connect_person
from support.sampling_clients import LEGACY, MODERN, ClientModel, paths

from kairos_mcp.app.app import App
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.key_file import KEY_BYTES, KEY_FILE

ORDERS = {"links": (LINKS, MENDS_LINKS), "suite": (SUITE, MENDS_SUITE)}
ROUTES = [
    *("scripted legacy", "scripted modern", "provider native", "provider text", "push native", "push text"),
    *("input-required native", "input-required text", "caller legacy", "caller modern"),
]
SAMPLE = {"push text", "caller legacy"}
CASES = [
    pytest.param(order, route, marks=[] if order == "links" or route in SAMPLE else [pytest.mark.slow])
    for order in ORDERS
    for route in ROUTES
    if route != "scripted legacy"
]
FREE = (GateRule("edit_file", "allow"), GateRule("run_command", "allow"))


@dataclass(frozen=True)
class Came:
    """What a run came to, but for what may differ: sent, usage, ids, times."""

    steps: list[str]
    asked: dict[str, bytes]
    outcome: Any


def place_of(root: Path) -> Place:
    place = empty_place_in(root)
    repository_in(place.workspace)
    place.home.mkdir(mode=0o700, exist_ok=True)
    (place.home / KEY_FILE).write_bytes(b"k" * KEY_BYTES)  # hashes of files are the same in every place
    return place


def settings_of(place: Place, *lines: Mapping[str, Any], **changes: Any) -> Settings:
    """Edits and the suite run unasked; a program may see where this Python lies, wherever that is."""
    lies = tuple(dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix))))
    return place.settings(*lines, gate=FREE, command_reads=lies, **changes)


async def through(route: str, place: Place, order: str) -> Came:
    """The three cycles by this route."""
    mandate, turns = ORDERS[order]
    kind, way = route.split()
    era = MODERN if way == "modern" or kind == "input-required" else LEGACY
    match kind:
        case "scripted":
            run = await ran(settings_of(place, *turns), era, mandate)
        case "provider":
            async with standin() as server:
                server.will(*(openai_reply(turn, native=way == "native") for turn in turns))
                settings = settings_of(place, model="openai:small", base_url=server.openai, dialect=way)
                run = await ran(settings, era, mandate)
                assert len(server.heard) == len(turns)
        case "caller":
            run = await ran(settings_of(place), era, mandate, turns=turns)
        case _:
            run = await ran(settings_of(place), era, mandate, ClientModel(list(turns), native=way == "native"))
    assert run["route"] == {"push": "sampling", "input-required": "sampling"}.get(kind, kind)
    run_id = run["run_id"]
    return Came(paths(place, run_id), asked_digests(place, run_id), outcome_of(place, run_id))


async def ran(
    settings: Settings, era: str, mandate: Mapping[str, Any], model: ClientModel | None = None, turns: Any = ()
) -> dict[str, Any]:
    """The run once it has ended; its record replays. With turns the caller is the one who thinks."""
    async with App.open(settings, via="mcp") as app:
        async with connect_person(app, era, None, patience=UNHURRIED, model=model) as client:
            route = {"route": "sampling"} if model else {"route": "caller"} if turns else {}
            run = await client.ask("ooda_run", {"mandate": dict(mandate), **route})
            said = iter(turns)
            while run["status"] == "input_required":  # eight rounds of one call are the most
                run = await client.ask("run_continue", {"run_id": run["run_id"], **answers_to(run, said)})
        await assert_all_lawful(app)
    assert run["status"] in ("completed", "stopped"), run
    return run


def answers_to(run: Mapping[str, Any], said: Any) -> dict[str, Any]:
    return {"answers": {item["key"]: turn for item, turn in zip(run["waiting"], said, strict=False)}}


@pytest.fixture(scope="module")
def by_script(tmp_path_factory) -> dict[str, Came]:
    """What each order came to by a script, once."""
    return {}


@pytest.mark.sandbox
@pytest.mark.parametrize(("order", "route"), CASES)
async def test_three_cycles_are_the_same_by_every_route(tmp_path, by_script, order, route):
    if order not in by_script:
        by_script[order] = await through("scripted legacy", place_of(tmp_path / "script"), order)
    place = place_of(tmp_path / "route")
    came = await through(route, place, order)
    assert came == by_script[order]
    cycles = came.outcome["output"]["cycles"]
    assert [each["status"] for each in cycles] == ["applied"] * 3
    if order == "links":
        assert dead_links(place.workspace) == []
        assert changed_files(place.workspace) == ["docs/guide.md", "docs/reference.md", "docs/usage.md"]
        assert came.outcome["stop_reason"] == "max_cycles_reached"
    else:
        verdicts = [(each["reflection"]["assessment"], each["reflection"]["checks"][0]["holds"]) for each in cycles]
        assert verdicts == [("partial", False), ("partial", False), ("success", True)]
        assert suite_passes(place.workspace)
        assert changed_files(place.workspace) == ["tally.py"]
        assert came.outcome["stop_reason"] == "goal_achieved"
