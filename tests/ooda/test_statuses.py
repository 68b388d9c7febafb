"""Each status and reason of a mandate reached and read through the tools; and long lists in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, get_args

import pytest
from support.app import Place
from support.cycles import (
    EDITS_ALLOWED,
    MANDATE,
    cycle,
    edit,
    gives,
    judgement_line,
    noop,
    open_scripted_client,
    orientation_line,
)
from support.sampling_clients import MODERN

from kairos_mcp.app.mandates import MAX_PAGE_CHARS, MAX_ROWS_PER_PAGE
from kairos_mcp.core.mandate import MandateStatus
from kairos_mcp.core.outcomes import CYCLE_REASONS

FREE = {**MANDATE, "checkpoint_every": 3}
SURE = {"confidence": 0.95, "remaining": ()}
RISKY = gives({"action": "create_file", "target": "prompts/new.md", "content": "x", "intent": "instruct"})
LOOKS = gives({"action": "run_tool", "tool": "list_files", "arguments": {}, "intent": "look"})
# The first is a stop reason of ours: the cycles are used up; the second is of stages: approvals/test_staged_flows.py.
REASONS = set(CYCLE_REASONS) - {"parse_error", "not_applied"}
Act = Callable[[Any, dict[str, Any]], Any]


async def nothing(client: Any, run: dict[str, Any]) -> None:
    pass


async def cancel_run(client: Any, run: dict[str, Any]) -> None:
    await client.ask("run_control", {"run_id": run["run_id"], "action": "cancel"})


async def another_goal(client: Any, run: dict[str, Any]) -> None:
    await client.ask("mandate_save", {"mandate": {**MANDATE, "goal": "Something else."}})
    await client.ask("run_control", {"run_id": run["run_id"], "action": "resume"})
    await client.ask("run_status", {"run_ids": [run["run_id"]], "until": "attention"})


async def pause_run(client: Any, run: dict[str, Any]) -> None:
    await client.ask("run_control", {"run_id": run["run_id"], "action": "pause"})


SCENES: dict[str, tuple[Mapping[str, Any], tuple[Any, ...], Mapping[str, Any], Act, tuple[str, str | None]]] = {
    "a completion waits": (FREE, (), {"route": "caller"}, nothing, ("active", None)),
    "an approval waits": (FREE, cycle(edit("oen.md", "one.md")), {}, nothing, ("active", None)),
    "a person paused it": (FREE, (), {"route": "caller"}, pause_run, ("active", None)),
    "a checkpoint": (MANDATE, cycle(noop()), {}, nothing, ("paused_at_checkpoint", None)),
    "a risk": (
        {**FREE, "allowed_actions": ["create_file"]},
        (orientation_line(), RISKY),
        {},
        nothing,
        ("paused_risk_exceeded", None),
    ),
    "another goal": (MANDATE, cycle(noop()), {}, another_goal, ("paused_goal_drift", None)),
    "cancelled": (MANDATE, cycle(noop()), {}, cancel_run, ("interrupted", "interrupted")),
    "a limit": (FREE, cycle(noop()), {"limits": {"model_calls": 2}}, nothing, ("interrupted", "interrupted")),
    "its script ended": (FREE, (orientation_line(),), {}, nothing, ("interrupted", "interrupted")),
    "all checks hold": (
        {**FREE, "acceptance": [{"check": "file_exists", "path": "a.txt"}]},
        cycle(noop()), {}, nothing, ("terminated", "goal_achieved"),
    ),
    "sure twice": (
        FREE, (*cycle(noop("a"), **SURE), *cycle(noop("b"), **SURE)), {}, nothing, ("terminated", "goal_achieved")
    ),
    "no more cycles": (
        {**FREE, "max_cycles": 1, "allowed_actions": ["run_tool"]},
        cycle(LOOKS), {}, nothing, ("terminated", "max_cycles_reached"),
    ),
    "nothing to do": (FREE, cycle(noop()) * 2, {}, nothing, ("terminated", "nothing_to_do")),
    "the last answer could not be read": (
        {**FREE, "max_cycles": 1}, [gives("nothing")] * 3, {}, nothing, ("terminated", "max_cycles_reached")
    ),
    "errors": (FREE, [gives("nothing")] * 6, {}, nothing, ("terminated", "error_threshold")),
    "a loop": (
        {**FREE, "allowed_actions": ["run_tool"]}, cycle(LOOKS) * 3, {}, nothing, ("terminated", "loop_detected")
    ),
}  # fmt: skip


async def listed_status(client: Any) -> tuple[str, str | None]:
    (item,) = (await client.ask("mandate_list"))["mandates"]
    return item["status"], item.get("reason")


@pytest.mark.parametrize("scene", SCENES)
async def test_a_status_is_reached_and_is_the_same_in_the_list_and_in_the_run(place: Place, scene: str) -> None:
    mandate, lines, more, act, expected = SCENES[scene]
    async with open_scripted_client(place, MODERN, *lines) as client:
        await client.ask("mandate_save", {"mandate": mandate})
        assert await listed_status(client) == ("created", None)
        run = await client.ask("ooda_run", {"mandate_id": "links", **more})
        await act(client, run)
        assert await listed_status(client) == expected
        (item,) = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"]
        assert (item["output"]["mandate_status"], item["output"].get("reason")) == expected
        listed = {
            each: (await client.ask("mandate_list", {"status": each}))["mandates"] for each in get_args(MandateStatus)
        }
        assert {each: len(found) for each, found in listed.items() if found} == {expected[0]: 1}


def test_every_status_and_every_reason_has_a_scene() -> None:
    assert {expected[0] for *_, expected in SCENES.values()} | {"created"} == set(get_args(MandateStatus))
    assert {expected[1] for *_, expected in SCENES.values()} == {*REASONS, "interrupted", None}


async def test_it_is_active_while_it_moves(place: Place) -> None:
    slow = {**orientation_line(), "delay_s": 30}
    async with open_scripted_client(place, MODERN, slow) as client:
        run = await client.ask("ooda_run", {"mandate": FREE, "wait_s": 0})
        assert (run["status"], await listed_status(client)) == ("working", ("active", None))
        await cancel_run(client, run)


async def test_a_terminated_one_may_be_run_again_and_then_is_active(place: Place) -> None:
    async with open_scripted_client(place, MODERN, *cycle(noop()), gate=EDITS_ALLOWED) as client:
        await client.ask("ooda_run", {"mandate": {**FREE, "max_cycles": 1}})
        await client.ask("ooda_run", {"mandate_id": "links", "route": "caller"})
        assert await listed_status(client) == ("active", None)


async def test_a_long_list_comes_in_pages_each_mandate_once(place: Place) -> None:
    async with open_scripted_client(place, MODERN, judgement_line()) as client:
        ids = [f"m-{number:03}" for number in range(60)]
        await asyncio.gather(*(save_mandate(client, each) for each in ids))
        found, cursor, pages = [], {}, 0
        while cursor is not None:
            page = await client.ask("mandate_list", cursor)
            assert len(str(page["mandates"])) < MAX_PAGE_CHARS * 1.2
            assert page["total"] == len(ids)
            found += [each["mandate_id"] for each in page["mandates"]]
            cursor = {"cursor": page["cursor"]} if page["cursor"] is not None else None
            pages += 1
        assert (found, pages > 1) == (ids, True)
        wrong = await client.sdk_client.call_tool("mandate_list", {"cursor": "NO/id"})
        assert wrong.structured_content["code"] == "bad_arguments"


async def save_mandate(client: Any, mandate_id: str) -> None:
    await client.ask("mandate_save", {"mandate": {"id": mandate_id, "goal": "Keep it tidy, " * 20}})


async def test_a_rare_status_is_looked_for_within_bounds(place: Place) -> None:
    async with open_scripted_client(place, MODERN, judgement_line()) as client:
        first = await client.ask("mandate_save", {"mandate": {"id": "a", "goal": "Tidy."}})
        assert first["changed"]
        statement = (
            "with recursive n(i) as (select 10001 union all select i + 1 from n where i < 10000 + ?)"
            " insert into mandate(principal, workspace, id, body, digest, goal_hash, saved_at)"
            " select principal, workspace, 'b-' || i, body, digest, goal_hash, saved_at from mandate, n where id = 'a'"
        )
        place.rows(statement, MAX_ROWS_PER_PAGE + 10)
        page = await client.ask("mandate_list", {"status": "terminated"})
        assert (page["mandates"], page["cursor"] is not None) == ([], True)
        last = await client.ask("mandate_list", {"status": "terminated", "cursor": page["cursor"]})
        assert (last["mandates"], last["cursor"]) == ([], None)
