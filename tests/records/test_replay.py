"""`replay`: the first request that is not what was asked then is shown with what was asked instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.app import ASK, ME, Place, asks, reads, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.messages import Message, ToolCall
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.steps import CallTool, Flow, Gather, Step
from kairos_mcp.history.replay_check import Difference, RecordedEntry, Recording, ReplayReport, replay
from kairos_mcp.store import queries
from kairos_mcp.store.rows import decode_answer

LINES = (reads("a.txt", "b.txt"), reads("a.txt"), says("done"))


async def recording(place: Place, *lines: Any, **more: Any) -> Recording:
    """A run as its rows tell it."""
    async with App.open(place.settings(*(lines or LINES)), via="mcp") as app:
        run_id = await start_run(app, **more)
        with place.session() as session:
            run = queries.run_by_id(session, run_id)
            rows = queries.read_record(session, run.n)
        entries = [RecordedEntry(r.path, r.kind, r.digest, decode_answer(r.body) if r.body else None) for r in rows]
        return Recording(run_id, await app._context.factory.specs.load(run), entries, run.outcome)


Change = Callable[[Any], Any]


def change_steps(flow: Flow[Outcome], change: Change) -> Flow[Outcome]:
    """The flow as if its code had been changed: each step is what `change` makes of it."""
    answer: Any = None
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield change(step)


def differs(recorded: Recording, change: Change) -> Difference:
    loaded = replace(recorded.loaded, flow=lambda: change_steps(recorded.loaded.flow(), change))
    report = replay(replace(recorded, loaded=loaded))
    assert report.difference is not None
    return report.difference


def only(path: str, what: Callable[[Step], Step]) -> Change:
    def change(step: Any) -> Any:
        match step:
            case Gather(branches=branches):
                return replace(step, branches={name: change(branch) for name, branch in branches.items()})
            case _:
                return what(step) if step.name == path else step

    return change


async def test_a_run_is_identical_to_itself(place: Place) -> None:
    recorded = await recording(place)
    report = replay(recorded)
    assert (report.identical, report.steps, report.first_difference) == (True, 6, None)


async def test_a_message_that_is_worded_otherwise_is_shown(place: Place) -> None:
    recorded = await recording(place)
    said = Message("user", "Be quick.")
    found = differs(recorded, only("round-2", lambda s: replace(s, conversation=s.conversation.add(said))))
    assert (found.path, found.certain) == ("round-2", True)
    assert found.message == {"at": 6, "recorded": None, "asked": {"role": "user", "content": "Be quick."}}
    assert (found.recorded["messages"], found.asked["messages"]) == (5, 6)


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("reminder", "Mind the limit.", "reminder"),
        ("max_tokens", 17, "max_tokens"),
        ("tools", (), "tools"),
        ("output_schema", {"type": "object"}, "schema"),
    ],
)
async def test_what_differs_in_a_request_is_named_where_the_messages_are_the_same(
    place: Place, field: str, value: Any, shown: str
) -> None:
    recorded = await recording(place)
    if field == "tools":
        value = type(recorded.loaded.offered_tools)(())
    found = differs(recorded, only("round-2", lambda s: replace(s, **{field: value})))
    assert (found.path, found.certain, found.message) == ("round-2", True, None)
    assert found.text == f"{shown} differ"
    assert found.recorded[shown] != found.asked[shown]


async def test_a_call_with_other_arguments_is_shown_with_both(place: Place) -> None:
    recorded = await recording(place)
    other = ToolCall("round-1/call-2", "read_file", {"path": "c.txt"})
    found = differs(recorded, only("round-1/call-2", lambda s: CallTool(s.name, other)))
    assert (found.path, found.certain) == ("round-1/call-2", True)
    assert (found.recorded["arguments"], found.asked["arguments"]) == ({"path": "b.txt"}, {"path": "c.txt"})


async def test_another_kind_of_step_another_path_and_another_end_are_named(place: Place) -> None:
    recorded = await recording(place)
    found = differs(recorded, only("round-2", lambda s: replace(s, purpose="closing")))
    assert (found.path, found.text) == ("round-2", "kind differ")
    found = differs(recorded, only("round-2", lambda s: replace(s, name="turn-2")))
    assert found.path == "round-2"
    assert "turn-2" in found.text

    longer = replace(recorded, entries=recorded.entries[:-1])
    report = replay(longer)
    assert report.difference is not None
    assert (report.difference.path, "round-3" in report.difference.text) == ("outcome", True)
    outcome = json.loads(recorded.outcome or "")
    report = replay(replace(recorded, outcome=json.dumps({**outcome, "summary": "finished"})))
    assert report.difference is not None
    assert (report.difference.recorded, report.difference.asked) == ({"summary": "finished"}, {"summary": "done"})


async def test_a_flow_that_breaks_on_an_old_answer_is_a_difference_too(place: Place) -> None:
    def breaks(step: Any) -> Any:
        if getattr(step, "name", "") == "round-3":
            raise KeyError("new code")
        return step

    found = differs(await recording(place), breaks)
    assert "breaks" in found.text
    assert "new code" not in found.text


async def test_an_answer_that_was_changed_is_found_and_nothing_is_made_up(place: Place) -> None:
    recorded = await recording(place)
    entries = [
        replace(e, answer=replace(e.answer, content="gamma")) if e.path == "round-1/call-1" else e
        for e in recorded.entries
    ]
    report = replay(replace(recorded, entries=entries))
    assert report.difference is not None
    assert (report.difference.path, report.difference.certain) == ("round-2", False)


@pytest.mark.unreplayed
async def test_the_command_shows_both_sides(place: Place, kairos: Callable[..., Any]) -> None:
    async with App.open(place.settings(*LINES), via="mcp") as app:
        run_id = await start_run(app)
    same = kairos("replay", run_id)
    assert (same.code, "6 steps" in same.out) == (0, True)
    place.rows("update answer set body = replace(body, 'b.txt', 'c.txt') where body like '%tool_calls%b.txt%'")
    said = kairos("replay", run_id)
    assert said.code == 1
    assert "differs from its record at round-1/call-2" in said.out
    shown = kairos("replay", run_id, "--json").json
    assert (shown["identical"], shown["first_difference"]["path"]) == (False, "round-1/call-2")
    assert shown["first_difference"]["asked"]["arguments"] == {"path": "c.txt"}


async def test_a_run_of_an_older_version_says_how_to_go_on(place: Place, kairos: Callable[..., Any]) -> None:
    async with App.open(place.settings(*LINES), via="mcp") as app:
        run_id = await start_run(app)
    place.rows("update run set version = 0")
    said = kairos("replay", run_id)
    assert (said.code, said.out) == (1, "")
    assert f"run -i --continue {run_id}` goes on from it" in said.err
    assert kairos("show", run_id).code == 0
    assert kairos("export", run_id).code == 0
    async with App.open(place.settings(says("gone on")), via="mcp") as app:
        later = await app.runs.report(await start_run(app, "go on", continues=run_id), ME)
        assert later.summary == "gone on"


async def test_a_run_that_waits_replays_as_far_as_it_has_come(place: Place) -> None:
    recorded = await recording(place, asks("why"), caller_tools=(ASK,))
    report = replay(recorded)
    assert (report.identical, report.steps) == (True, 2)
    assert isinstance(report, ReplayReport)
