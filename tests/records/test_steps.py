"""The steps of a run as they are shown: whoever lays each frame over what they know has the run as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.app import ME, PERSON, Place, few, law, place_in, reads, rests, says, start_run
from support.cycles import MANDATE, PAGE, cycle, edit
from support.sampling_clients import MODERN, connect_client

from kairos_mcp.app.app import App
from kairos_mcp.app.run_steps import StepsQuery
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.store import queries
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.schema import migrate
from kairos_mcp.views.steps import TEXT_CHARS, ShownSteps

Steps = dict[str, JsonObject]
Event = tuple[str, tuple[Any, ...]]

TEAM = {
    "analysis": "Both.",
    "strategy": "decomposed",
    "tasks": [
        {"id": name, "agent": "general", "description": f"Do {name}.", "depends_on": []} for name in ("one", "two")
    ],
}
TEAM_SCRIPT = (
    {"for": "plan", "content": json.dumps(TEAM), "finish": "stop"},
    {"for": "task-1/try-1/round-1", **reads("a.txt")},
    {"for": "task-1/try-1/round-2", **says("One is fine.")},
    {"for": "task-2/try-1/round-1", **says("Two is fine.")},
    {"for": "synthesis", **says("All is fine.")},
)
EDIT = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}}
PLANNER_SCRIPT = (reads("a.txt", "b.txt"), reads("gone.txt"), says("done"))


def laid_over(known: Steps, steps: Sequence[JsonObject]) -> Steps:
    return known | {step["path"]: step for step in steps}


def steps_of(shown: ShownSteps, seq: int | None = None) -> list[JsonObject]:
    return [step for _, step in shown.since(seq)]


def place_at(root: Path) -> Place:
    return place_in(root / "place")


async def record_run(root: Path, kind: str) -> Place:
    """The place of an ended run."""
    place = place_at(root)
    async with App.open(place.settings(*(TEAM_SCRIPT if kind == "team" else PLANNER_SCRIPT)), via="mcp") as app:
        if kind == "team":
            run_id = (await app.runs.start(TeamRequest("Look at both."), ME)).run_id
            await rests(app, run_id)
        else:
            await start_run(app)
    return place


class Replayed:
    """The rows of an ended run, inserted again one by one into a store of their own: the run as it was at any time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.events = sorted(self._list_events(), key=lambda event: event[0])

    def _list_events(self) -> Iterator[tuple[tuple[int, int], Event]]:
        for mark, at in self._place.rows("select id, at from step"):
            yield (at, 2 * mark), ("step", (mark,))
        for mark, *times in self._place.rows("select step, answer.at, step.at from answer join step on id = step"):
            yield (max(times), 2 * mark + 1), ("answer", (mark,))

    def _rows(self, table: str, condition: str = "", *bindings: int) -> list[tuple[Any, ...]]:
        return self._place.rows(f"select {', '.join(self._place.columns(table))} from {table} {condition}", *bindings)

    def begin(self) -> SqliteSession:
        session = SqliteSession(":memory:")
        migrate(session)
        session.execute("pragma foreign_keys = off")
        for table in ("account", "run", "text", "approval", "attempt"):
            for row in self._rows(table):
                session.rows(f"insert or ignore into {table} values ({', '.join('?' * len(row))})", row)
        return session

    def go_on(self, session: SqliteSession, events: Sequence[tuple[tuple[int, int], Event]]) -> None:
        for _, (table, key) in events:
            name = "id" if table == "step" else "step"
            ((*row, _),) = self._rows(table, f"where {name} = ?", *key)
            values = ", ".join("?" * len(row))
            session.rows(f"insert into {table} values ({values}, (select seq + 1 from run where n = 1))", row)


@pytest.fixture(scope="module", params=["planner", "team"])
def replayed_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    place = asyncio.run(record_run(tmp_path_factory.mktemp("steps"), request.param))
    return Replayed(place)


@given(data=st.data())
@settings(law, max_examples=10)  # each reads the run again and again
def test_any_split_of_a_run_into_frames_gives_the_run_as_it_is(replayed_run: Replayed, data: st.DataObject) -> None:
    events = replayed_run.events
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=6)))
    session = replayed_run.begin()
    run = queries.run_by_number(session, 1)
    shown = ShownSteps(run)
    known: Steps = {}
    states: list[tuple[int, Steps]] = []  # what somebody knew who looked then
    seq: int | None = None
    for start, end in pairwise([0, *cuts, len(events)]):
        replayed_run.go_on(session, events[start:end])
        shown.read(session)
        known, seq = laid_over(known, steps_of(shown, seq)), shown.seq
        states.append((seq, known))
    whole = ShownSteps(run)
    whole.read(session)
    assert list(known.values()) == steps_of(whole)
    assert len(known) == sum(event[0] == "step" for _, event in events)
    for looked_at, then in states:
        assert laid_over(then, steps_of(shown, looked_at)) == known
        assert steps_of(whole, looked_at) == steps_of(shown, looked_at)  # of a server that was started since
    assert steps_of(shown, seq) == []
    session.close()


@given(chars=st.integers(200, 2_000), data=st.data())
@few
def test_pages_of_a_run_that_goes_on_miss_nothing(replayed_run: Replayed, chars: int, data: st.DataObject) -> None:
    events = replayed_run.events
    session = replayed_run.begin()
    shown = ShownSteps(queries.run_by_number(session, 1))
    at = data.draw(st.integers(1, len(events)))
    replayed_run.go_on(session, events[:at])
    shown.read(session)
    first, after, known = shown.seq, 0, {}
    while page := shown.since(None, after)[:2]:
        known = laid_over(known, [step for _, step in page])
        after = page[-1][0]
        replayed_run.go_on(session, events[at : at + 1])
        at += 1
        shown.read(session)
    known = laid_over(known, steps_of(shown, first))
    assert known == {step["path"]: step for step in steps_of(shown)}
    session.close()


async def test_steps_say_what_was_asked_for_and_what_came_of_it(tmp_path: Path) -> None:
    long = "x" * (TEXT_CHARS + 5)
    place = place_at(tmp_path)
    lines = (reads("a.txt", "gone.txt"), {"content": "change it", "tool_calls": [EDIT]}, says(long))
    async with App.open(place.settings(*lines), via="mcp") as app:
        run_id = await start_run(app, tools=("read_file", "edit_file"))
        frame = await app.records.frame(run_id, StepsQuery(max_chars=100_000), ME)
        found = {step["path"]: step for step in frame["steps"]}
        assert list(found) == ["round-1", "round-1/call-1", "round-1/call-2", "round-2", "round-2/call-1"]
        assert found["round-1"]["calls"] == ["read_file", "read_file"]
        assert found["round-1"]["text"] == "look"
        assert found["round-1/call-1"]["arguments"] == {"path": "a.txt"}
        assert (found["round-1/call-1"]["state"], found["round-1/call-2"]["state"]) == ("ok", "failed")
        assert found["round-1/call-2"]["code"] == "not_found"
        assert found["round-2/call-1"]["state"] == "open"
        assert found["round-2/call-1"]["name"] == "edit_file"
        (waiting,) = frame["run"]["waiting"]
        assert "-alpha" in waiting["preview"]
        assert "+omega" in waiting["preview"]

        await app.answers.decide(run_id, waiting["key"], "approve", "be careful", PERSON, drive=False)
        (decided,) = (await app.records.frame(run_id, StepsQuery(frame["seq"]), ME))["steps"]
        assert (decided["state"], decided["decided"][0]["said"]) == ("open", "approve")
        await rests(app, run_id)
        changed = await app.records.frame(run_id, StepsQuery(frame["seq"], max_chars=100_000), ME)
        assert [step["path"] for step in changed["steps"]] == ["round-2/call-1", "round-3"]
        edit, last = changed["steps"]
        assert edit["state"] == "ok"
        (decision,) = edit["decided"]
        assert (decision["said"], decision["through"], decision["note"]) == ("approve", "command", "be careful")
        assert (len(last["text"]), last["chars"]) == (TEXT_CHARS + 1, len(long))
        assert changed["run"]["status"] == "completed"
        assert changed["run"]["waiting"] == []
    async with App.open(place.settings(), via="mcp") as other:  # which has never looked at it
        again = await other.records.frame(run_id, StepsQuery(frame["seq"], max_chars=100_000), ME)
        assert again["steps"] == changed["steps"]
        assert (await other.records.frame(run_id, StepsQuery(changed["seq"]), ME))["steps"] == []


async def test_a_step_that_waits_is_seen_once_it_came(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app, connect_client(app, MODERN) as client:
        run = await client.ask("planner_run", {"goal": "look", "route": "caller"})
        seen = {"run_id": run["run_id"], "view": "steps"}
        before = await client.ask("run_trace", seen)
        await client.ask("run_continue", {"run_id": run["run_id"], "answers": {"round-1": reads("a.txt")}})
        changed = await client.ask("run_trace", {**seen, "since": before["seq"]})
        states = [(step["path"], step["state"]) for step in changed["steps"]]
        assert states == [("round-1", "ok"), ("round-1/call-1", "ok"), ("round-2", "open")]


async def test_steps_of_cycles_name_their_tools(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs/index.md").write_text(PAGE)
    async with (
        App.open(place.settings(*cycle(edit("oen.md", "one.md"))), via="mcp") as app,
        connect_client(app, MODERN) as client,
    ):
        run_id = (await client.ask("ooda_run", {"mandate": MANDATE, "cycles": 1}))["run_id"]
        frame = await app.records.frame(run_id, StepsQuery(max_chars=100_000), ME)
        names = {step["path"]: step["name"] for step in frame["steps"] if step["kind"] == "call"}
        assert "read_mandate" in names.values()
        assert names["cycle-1/observe/call-2"] == "read_file"
        assert names["cycle-1/act/call-1"] == "edit_file"
        assert frame["run"]["mandate"] == "links"
        assert "tow.md" in frame["run"]["waiting"][0]["preview"]


async def test_a_call_waits_for_a_change_and_pages_are_bounded(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    for name in range(12):
        (place.workspace / f"{name}.txt").write_text(f"number {name}\n")
    looks = [reads(f"{name}.txt", f"{name + 1}.txt") for name in range(0, 12, 2)]
    lines = (*looks, {"content": "change it", "tool_calls": [EDIT]}, says("done"))
    async with App.open(place.settings(*lines), via="mcp") as app, connect_client(app, MODERN) as client:
        arguments = {"goal": "look", "tools": ["read_file", "edit_file"], "limits": {"rounds": 20}}
        run_id = (await client.ask("planner_run", arguments))["run_id"]
        known: Steps = {}
        page = await client.ask("run_trace", {"run_id": run_id, "view": "steps", "max_chars": 600})
        pages = 1
        known = laid_over(known, page["steps"])
        while page["next_cursor"]:
            more = {"run_id": run_id, "view": "steps", "max_chars": 600, "cursor": page["next_cursor"]}
            page, pages = await client.ask("run_trace", more), pages + 1
            assert len(json.dumps(page["steps"])) < 700
            known = laid_over(known, page["steps"])
        assert pages > 3
        assert len(known) == 6 * 3 + 2
        seen = {"run_id": run_id, "view": "steps", "since": page["seq"]}
        assert (await client.ask("run_trace", seen))["steps"] == []
        (item,) = page["run"]["waiting"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app.answers.decide, run_id, item["key"], "deny", "no", PERSON)
            news = await client.ask("run_trace", {**seen, "wait_s": 20})
        assert news["seq"] > page["seq"]
        assert "round-7/call-1" in {step["path"] for step in news["steps"]}


async def test_since_and_wait_are_refused_where_they_mean_nothing(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    async with App.open(place.settings(says("done")), via="mcp") as app, connect_client(app, MODERN) as client:
        run_id = (await client.ask("planner_run", {"goal": "look"}))["run_id"]
        wrong: list[dict[str, Any]] = [{"since": 3}, {"view": "calls", "wait_s": 1}, {"view": "steps", "wait_s": 1}]
        wrong += [{"view": "steps", "cursor": cursor} for cursor in ("x", "3", "3.", "-1.2", "3.x")]
        for arguments in wrong:
            result = await client.sdk_client.call_tool("run_trace", {"run_id": run_id, **arguments})
            assert result.structured_content is not None
            assert result.structured_content["code"] == "bad_arguments"
