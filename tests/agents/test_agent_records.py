"""The record of an agent comes from rows: of the newest tasks in ended team runs, of one principal and workspace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import PERSON, Place, law

from kairos_mcp.app.app import App
from kairos_mcp.budget.reservation import open_branch
from kairos_mcp.core.agent import MAX_TASKS, AgentRecord, KindRecord, TriedTask, make_records
from kairos_mcp.core.limits import NOTHING, UNLIMITED, BranchShare, Limits, Units
from kairos_mcp.store import agent_records, runs
from kairos_mcp.store.accounts import insert_branch_account, read_account
from kairos_mcp.store.agent_records import read_records
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Session
from kairos_mcp.store.runs import NewRun

pytestmark = pytest.mark.unreplayed  # the runs are rows without steps

Task = dict[str, Any]


class Teams:
    """Writes team runs that have ended, through the store's functions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = 0

    async def add(
        self,
        *tasks: Task,
        used: Sequence[Units] = (),
        principal: str = "local",
        workspace: str = "/work",
        flow: str = "team",
        ended: bool = True,
    ) -> None:
        """Add a run with these tasks; `used`: what the tries used, in order, 2 rounds and 100 tokens by default."""
        self._count += 1
        owner = await self._store.register_owner(1)
        new = NewRun(
            id=f"run-{self._count:012x}",
            flow=flow,
            version=1,
            spec="{}",
            texts=(),
            notes=(),
            limits=Limits(),
            route="scripted",
            principal=principal,
            via="mcp",
            client="",
            key=None,
            start_digest=self._count.to_bytes(32, "big"),
            workspace=workspace or None,
            at=self._count,
        )
        amounts = iter(used)

        def write(session: Session) -> None:
            run = runs.insert_run(session, new, runs.draft_run(new, owner))
            for position, task in enumerate(tasks, 1):
                outer = self._open(session, f"task-{position}", run.account)
                for number in range(1, len(task.get("tries", ())) + 1):
                    inner = self._open(session, f"task-{position}/try-{number}", outer)
                    spent = next(amounts, Units(rounds=2, total_tokens=100))
                    columns = ", ".join(f"spent_{unit} = ?" for unit in Units._fields)
                    session.rows(f"update account set {columns} where id = ?", (*spent, inner))
            if ended:
                outcome = {"stop_reason": "assistant_stop", "status": "completed", "output": {"tasks": list(tasks)}}
                session.rows("update run set outcome = ? where n = ?", (json.dumps(outcome), run.n))

        await self._store.submit(write)

    @staticmethod
    def _open(session: Session, path: str, parent: int) -> int:
        around = read_account(session, parent)
        number = insert_branch_account(session, path, parent, open_branch(BranchShare(UNLIMITED, 1), around).caps)
        assert read_account(session, number).spent == NOTHING
        return number

    async def records(self, principal: str = "local", workspace: str = "/work") -> dict[str, AgentRecord]:
        found = await self._store.read(lambda session: read_records(session, principal, workspace))
        return {each.agent: each for each in found}


@pytest.fixture
async def teams(place: Place) -> Any:
    store = place.store()
    yield Teams(store)
    await store.close()


def task(*tries: tuple[str, str], kind: str | None = None, **more: Any) -> Task:
    """A task with these tries, each an agent and how it ended."""
    return {"id": "t", "kind": kind, "tries": [{"agent": agent, "status": status} for agent, status in tries], **more}


async def test_an_agent_that_did_nothing_has_no_record(teams: Teams) -> None:
    assert await teams.records() == {}
    await teams.add()
    await teams.add({"id": "a", "agent": "general", "status": "skipped", "tries": []})
    await teams.add({"id": "a", "agent": "general", "status": "skipped"})
    assert await teams.records() == {}


async def test_each_try_counts_for_the_agent_that_made_it(teams: Teams) -> None:
    await teams.add(
        task(("reader", "failed"), ("general", "done"), kind="analyse"),
        task(("reader", "done"), kind="search"),
        task(("reader", "done"), kind="search"),
        used=[
            Units(rounds=9, total_tokens=900, nano_usd=9),
            Units(rounds=1, total_tokens=50),
            Units(rounds=3, total_tokens=300, nano_usd=3),
            Units(rounds=5, total_tokens=500, nano_usd=5),
        ],
    )
    assert await teams.records() == {
        "general": AgentRecord("general", 1, 1, (KindRecord("analyse", 1, 1),), 1, 50, 0),
        "reader": AgentRecord("reader", 3, 2, (KindRecord("search", 2, 2), KindRecord("analyse", 1, 0)), 5, 500, 5),
    }


async def test_a_task_without_a_kind_is_of_another(teams: Teams) -> None:
    await teams.add(task(("general", "done")))
    assert (await teams.records())["general"].kinds == (KindRecord("other", 1, 1),)


async def test_only_runs_of_the_principal_in_the_workspace_count(teams: Teams) -> None:
    await teams.add(task(("general", "done")))
    await teams.add(task(("general", "failed")), principal="token")
    await teams.add(task(("general", "failed")), workspace="/other")
    await teams.add(task(("general", "failed"), ("general", "failed")), workspace="")
    assert (await teams.records())["general"].done == 1
    assert (await teams.records("token"))["general"].tasks == 1
    assert (await teams.records(workspace="/other"))["general"].tasks == 1
    assert (await teams.records(workspace=""))["general"].tasks == 2


async def test_only_teams_that_have_ended_count(teams: Teams) -> None:
    await teams.add(task(("general", "done")), ended=False)
    await teams.add(task(("general", "done")), flow="planner")
    assert await teams.records() == {}


async def test_the_newest_tasks_count_and_older_ones_do_not(teams: Teams) -> None:
    await teams.add(*[task(("general", "failed"), kind="edit")] * 3, task(("reader", "failed")))
    for _ in range(MAX_TASKS // 10):
        await teams.add(*[task(("general", "done"), kind="search")] * 10)
    found = await teams.records()
    assert found["general"].kinds == (KindRecord("search", MAX_TASKS, MAX_TASKS),)
    assert found["reader"].tasks == 1  # seldom used, so that its oldest still counts


@pytest.mark.parametrize(
    "outcome",
    [
        "no JSON",
        "{}",
        '{"output": null}',
        '{"output": "text"}',
        '{"output": 5}',
        '{"output": {"tasks": 5}}',
        '{"output": {"tasks": [{"tries": [{"agent": 5}]}]}}',
        '{"output": [1]}',
    ],
)
async def test_a_run_that_can_not_be_read_counts_as_if_it_were_not_there(
    teams: Teams, place: Place, outcome: str
) -> None:
    await teams.add(task(("general", "done")))
    await teams.add(task(("general", "done")))
    place.rows("update run set outcome = ? where n = 2", outcome)
    assert (await teams.records())["general"].tasks == 1


async def test_a_try_whose_account_is_gone_does_not_count(teams: Teams, place: Place) -> None:
    await teams.add(task(("general", "done"), ("general", "done")))
    place.rows("update account set name = 'elsewhere' where name = 'task-1/try-2'")
    assert (await teams.records())["general"].tasks == 1


async def test_a_cancelled_team_has_no_tasks_to_tell_of(teams: Teams, place: Place) -> None:
    await teams.add(task(("general", "done")))
    place.rows("""update run set outcome = '{"stop_reason": "cancelled", "status": "cancelled"}'""")
    assert await teams.records() == {}


@pytest.mark.state_file("it reads a plan of SQLite's")
async def test_what_is_read_does_not_grow_with_all_runs_that_ever_were(teams: Teams, place: Place) -> None:
    await teams.add(task(("general", "done")))
    plan = " ".join(str(row[-1]) for row in place.rows(f"explain query plan {agent_records._ENDED_TEAMS}", "local", ""))
    assert "run_place" in plan
    assert "B-TREE" not in plan


TRIED = st.builds(
    TriedTask,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["edit", "search", "other"]),
    st.booleans(),
    st.integers(0, 50),
    st.integers(0, 10**9),
    st.integers(0, 10**12),
)


@law
@given(st.lists(TRIED, max_size=300))
def test_a_record_is_a_function_of_the_newest_tasks(tried: list[TriedTask]) -> None:
    found = make_records(tried)
    assert [each.agent for each in found] == sorted({each.agent for each in tried})
    for record in found:
        own = [each for each in tried if each.agent == record.agent][:MAX_TASKS]
        assert record.tasks == sum(each.tasks for each in record.kinds) == len(own)
        assert record.done == sum(each.done for each in record.kinds) == sum(each.is_done for each in own)
        for name, value in (("rounds", record.rounds), ("tokens", record.tokens), ("nano_usd", record.nano_usd)):
            figures = sorted(getattr(each, name) for each in own)
            assert value in figures
            assert sum(figure < value for figure in figures) <= (len(figures) - 1) // 2
            assert sum(figure > value for figure in figures) <= len(figures) // 2


def test_of_an_agent_s_tasks_the_first_so_many_that_are_given_count() -> None:
    old, new = (TriedTask("a", "edit", is_done, 1, 1, 0) for is_done in (False, True))
    (record,) = make_records([*[new] * (MAX_TASKS - 1), old, old])
    assert (record.tasks, record.done) == (MAX_TASKS, MAX_TASKS - 1)


async def test_the_list_of_agents_has_their_records(teams: Teams, place: Place) -> None:
    await teams.add(task(("general", "done"), kind="edit"), workspace=str(place.workspace))
    await teams.add(task(("gone", "done")), workspace=str(place.workspace))
    async with App.open(place.settings(), via="command") as app:
        found = {each.agent.name: each for each in (await app.agents.list_all(PERSON)).agents}
    assert found["general"].as_json()["record"] == {
        "tasks": 1,
        "done": 1,
        "kinds": [{"kind": "edit", "tasks": 1, "done": 1}],
        "median": {"rounds": 2, "total_tokens": 100, "usd": 0.0},
    }
    assert found["file_manager"].record is None


def test_a_line_of_a_record_has_its_figures_and_costs_only_where_there_are_some() -> None:
    kinds = (KindRecord("analyse", 30, 29), KindRecord("search", 11, 8))
    record = AgentRecord("reader", 41, 37, kinds, 4, 8_100, 21_000_000)
    text = "37 of 41 tasks done (analyse 29 of 30, search 8 of 11); median 4 rounds, 8,100 tokens"
    assert record.line == f"{text}, $0.0210"
    assert AgentRecord("reader", 41, 37, kinds, 4, 8_100, 0).line == text
