"""Rules by agent and by risk hold where calls are made: whose call it is, and the risk that a model states."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from support.app import ME, Place, assert_all_lawful, rests, says
from support.cycles import MANDATE, cycle, edit, gives, open_scripted_client
from support.other_flow import OtherFlow
from support.sampling_clients import MODERN

from kairos_mcp.app.app import App
from kairos_mcp.core.messages import ToolCall
from kairos_mcp.core.outcomes import Outcome, make_outcome
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.steps import Branch, CallTool, Flow, Gather
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.specs.load import LoadedSpec

pytestmark = pytest.mark.unreplayed  # a flow of its own

AGENTS = {"task-1": "file_manager", "task-2": "code_analyzer", "task-3": None}
FLAT = {**MANDATE, "checkpoint_every": 3, "max_cycles": 1, "risk_budget": "medium"}
BOLD = (GateRule("edit_file", "ask", risk="medium"), GateRule("edit_file", "allow"))


def writes(name: str) -> Flow[bool]:
    call = ToolCall("call-1", "write_file", {"path": f"{name}.txt", "content": "made\n"})
    return not (yield from CallTool("call-1", call)).is_error  # type: ignore[union-attr]


def write_in_branch(name: str) -> Flow[Any]:
    return (yield from Gather({"try-1": Branch(writes(name))}))


def all_write() -> Flow[Outcome]:
    """Branches of several agents, each of which writes a file of its own; the first one within a branch of its own."""
    branches = {
        name: Branch(write_in_branch(name) if name == "task-1" else writes(name), agent=AGENTS[name]) for name in AGENTS
    }
    return make_outcome("assistant_stop", str((yield from Gather(branches))), None)


class Team(OtherFlow):
    """A wiring whose every run is this flow."""

    def change(self, loaded: LoadedSpec) -> LoadedSpec:
        return replace(loaded, flow=all_write)


@asynccontextmanager
async def team(settings: Settings) -> AsyncIterator[App]:
    now, number = count(10**12), count(1)
    app = App(settings, "mcp", lambda: next(now), lambda: f"run-{next(number)}", make_factory=Team)
    try:
        yield app
        await assert_all_lawful(app)
    finally:
        await app._close()


def task_files(place: Place) -> list[str]:
    return sorted(path.name for path in place.workspace.glob("task-*.txt"))


FIRST = GateRule("write_file", "allow", agent="file_*")


@pytest.mark.parametrize(
    ("rules", "files"),
    [
        ((FIRST, GateRule("write_file", "deny")), []),
        ((FIRST, GateRule("write_file", "deny", agent="c*")), ["task-1.txt"]),
        ((GateRule("*", "deny", agent="file_*"), GateRule("*_file", "allow")), ["task-2.txt", "task-3.txt"]),
    ],
)
async def test_a_rule_for_an_agent_holds_for_the_calls_of_its_branch_and_of_those_within(place, rules, files):
    async with team(place.settings(says("x"), gate=rules)) as app:
        run_id = (await app.runs.start(PlannerRequest("write", tools=("*",)), ME)).run_id
        await rests(app, run_id)
        assert task_files(place) == files
    denied = "select path from step join answer on step = step.id where body like '%denied%' order by path"
    refused = [path.partition("/")[0] for (path,) in place.rows(denied)]
    waits = [path.partition("/")[0] for (path,) in place.rows("select path from step join approval on step = step.id")]
    assert sorted([*(f"{name}.txt" for name in (*refused, *waits)), *files]) == [f"{name}.txt" for name in AGENTS]


def test_a_branch_without_an_agent_is_of_the_one_around_it() -> None:
    runner = Runner(all_write())
    assert {path: runner.agent_of(path) for path in runner.waiting} == {
        "task-1/try-1/call-1": "file_manager",
        "task-2/call-1": "code_analyzer",
        "task-3/call-1": None,
    }


@pytest.mark.parametrize(("stated", "asked"), [({}, 0), ({"risk": "low"}, 0), ({"risk": "medium"}, 1)])
async def test_the_risk_that_a_decision_states_reaches_the_rules_and_only_raises(place, stated, asked):
    (place.workspace / "docs").mkdir()
    page = place.workspace / "docs" / "index.md"
    page.write_text("[one](oen.md)\n")
    async with open_scripted_client(place, MODERN, *cycle(edit("oen.md", "one.md", **stated)), gate=BOLD) as client:
        run = await client.ask("ooda_run", {"mandate": FLAT})
        assert [item["kind"] for item in run["waiting"]] == ["approval"] * asked
        assert page.read_text() == ("[one](oen.md)\n" if asked else "[one](one.md)\n")
    assert place.rows("select count(*) from approval") == [(asked,)]


async def test_a_stated_risk_never_lowers_what_the_table_says(place):
    rules = (GateRule("apply_edits", "deny", risk="medium"), GateRule("apply_edits", "allow"))
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs" / "index.md").write_text("[one](oen.md)\n")
    edits = [{"path": "docs/index.md", "old_string": "oen.md", "new_string": "one.md"}]
    plan = {"action": "edit_plan", "edits": edits, "intent": "mend it", "risk": "low"}
    mandate = {**FLAT, "allowed_actions": ["edit_plan"]}
    async with open_scripted_client(place, MODERN, *cycle(gives(plan)), gate=rules) as client:
        done = await client.ask("ooda_run", {"mandate": mandate})
        assert [each["status"] for each in done["output"]["cycles"]] == ["denied"]
    assert "oen.md" in (place.workspace / "docs" / "index.md").read_text()
