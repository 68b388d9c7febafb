"""A team that has ended is on record: each try of a task for the agent that made it, with what its branch used."""

from __future__ import annotations

from typing import Any

from support.app import ME, PERSON, WITHIN_S, Place, reads, rests, says
from support.branches import branches_of

from kairos_mcp.app.app import App
from kairos_mcp.core.agent import KindRecord
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.run_spec import TeamRequest

PLAN = {
    "analysis": "Two files.",
    "strategy": "decomposed",
    "tasks": [
        {"id": "a", "agent": "code_analyzer", "description": "Read a.txt.", "kind": "analyse"},
        {"id": "b", "agent": "search_specialist", "description": "Find beta.", "kind": "search"},
        {"id": "c", "agent": "code_analyzer", "description": "Read b.txt.", "kind": "analyse", "depends_on": ["a"]},
    ],
}


def at(path: str, line: dict[str, Any]) -> dict[str, Any]:
    return {"for": path, **line}


SCRIPT = [
    at("task-1/try-1/round-1", reads("a.txt")),
    at("task-1/try-1/round-2", says("alpha")),
    at("task-2/try-1/round-1", {"error": {"code": "provider_error", "message": "refused"}}),
    at("task-2/try-2/round-1", says("beta twice")),
    at("task-3/try-1/round-1", says("beta")),
    at("synthesis", says("Both were read.")),
]


async def test_each_try_is_on_record_and_the_next_planner_is_shown_it(place: Place) -> None:
    async with App.open(place.settings(*SCRIPT), via="mcp") as app:
        run_id = (await app.runs.start(TeamRequest("Read both.", plan=PLAN), ME)).run_id
        assert (await rests(app, run_id)).stop_reason == "team_done"
        records = {each.agent.name: each.record for each in (await app.agents.list_all(PERSON)).agents if each.record}

        assert list(records) == ["code_analyzer", "search_specialist"]
        analyzer, specialist = records.values()
        assert (analyzer.tasks, analyzer.done) == (3, 3)  # its own two, and the one that the other failed at
        assert analyzer.kinds == (KindRecord("analyse", 2, 2), KindRecord("search", 1, 1))
        assert (specialist.tasks, specialist.done, specialist.kinds) == (1, 0, (KindRecord("search", 1, 0),))
        used = branches_of(place, run_id)
        own = [used[path].spent for path in ("task-1/try-1", "task-2/try-2", "task-3/try-1")]
        assert sorted(each.rounds for each in own) == [1, 1, 2]
        assert analyzer.rounds == 1
        assert analyzer.tokens == sorted(each.total_tokens for each in own)[1] > 0

        asked = (await app.runs.start(TeamRequest("Again.", route="caller"), ME)).run_id
        (item,) = (await rests(app, asked)).waiting
    text = item["messages"][0]["content"]
    assert f"- code_analyzer: {analyzer.line}" in text
    assert f"- search_specialist: {specialist.line}" in text


async def test_another_principal_s_planner_is_shown_nothing_of_it(place: Place) -> None:
    other = Caller(principal="token")
    async with App.open(place.settings(*SCRIPT), via="mcp") as app:
        await rests(app, (await app.runs.start(TeamRequest("Read both.", plan=PLAN), ME)).run_id)
        asked = (await app.runs.start(TeamRequest("Again.", route="caller"), other)).run_id
        await app.runs.wait([asked], until="rest", wait_s=WITHIN_S, caller=other)
        (item,) = (await app.runs.report(asked, other)).waiting
    assert "tasks done" not in item["messages"][0]["content"]
