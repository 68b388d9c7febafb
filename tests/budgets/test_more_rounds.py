"""A loop asks for more rounds: what it did decides, and no sequence of requests passes what may be granted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from killed import MORE, MORE_TEAM, killed_after, requests, settings_for
from support.app import ME, PERSON, Place, answer_run, law, open_checked_app, outcome_of, rests, says, start_run
from support.branches import Team, branches_of, looks, open_team_app, put_reader
from support.daily_accounts import ZONE

from kairos_mcp.budget.more_rounds import (
    MAX_GRANTED_ROUNDS,
    MAX_GRANTS,
    MadeCall,
    Progress,
    grant_rounds,
    measure_progress,
)
from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.run_spec import TeamRequest
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.selection import count_different_words
from kairos_mcp.views.trace import TraceQuery

NAME = "request_more_rounds"
TOOLS = ("read_file", "edit_file", NAME)


def reading(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [looks(n) for n in numbers]


def grants_of(place: Place) -> list[tuple[int, Any]]:
    """What was granted, as the answers of the requests say, and why."""
    found = place.rows(
        "select cast(json_extract(body, '$.data.granted') as bigint), json_extract(body, '$.data.reason')"
        " from step join answer on step = step.id where by_route = 'budget' order by step.id"
    )
    return [(granted, reason) for granted, reason in found]


def cap_of(place: Place, run_id: str) -> Any:
    ((cap, spent),) = place.rows(
        "select cap_rounds, spent_rounds from account join run on account.id = account where run.id = ?", run_id
    )
    return cap, spent


@pytest.fixture
def many_lines(place: Place) -> Place:
    """A file of many lines: each look at another one finds something new."""
    (place.workspace / "a.txt").write_text("".join(f"line {n}\n" for n in range(400)))
    return place


async def test_a_run_that_makes_progress_is_granted_more_and_the_record_names_it(many_lines: Place) -> None:
    place = many_lines
    lines = [*reading(range(4)), requests(3), *reading(range(4, 30))]
    async with open_checked_app(place.settings(*lines, default_rounds=6)) as app:
        run_id = await start_run(app, tools=TOOLS)
        assert cap_of(place, run_id) == (9, 9)
        assert grants_of(place) == [(3, "4 calls since the start, none of them repeated")]
        assert place.rows("select kind, taken is not null from inbox") == [("grant", 1)]
        report = await app.runs.report(run_id, ME)
        assert [text for text in report.degraded if "granted" in text] == [
            "limits.rounds: 3 more were asked for and granted at round-5/call-1."
        ]
        events = (await app.records.trace(run_id, TraceQuery(grep="budget"), ME))["items"]
        assert [(event["ref"], event["by"], event["text"]) for event in events] == [
            (
                "round-5/call-1",
                "budget",
                "3 more rounds granted: 4 calls since the start, none of them repeated. 4 rounds left now.",
            )
        ]
        ((data,),) = place.rows(
            "select json_extract(body, '$.data') from step join answer on step = step.id where by_route = 'budget'"
        )
        assert data == '{"granted":3,"left":4,"reason":"4 calls since the start, none of them repeated"}'


@pytest.mark.parametrize(
    ("turns", "because"),
    [
        ([looks(0), looks(0)], "2 calls since the start, 1 of them repeated"),
        ([{**looks(0), "tool_calls": [{"name": "read_file", "arguments": {"path": "none.txt"}}]}], "showed anything"),
        ([], "showed anything"),
    ],
)
async def test_without_progress_nothing_is_granted_and_that_is_a_result_that_says_why(
    many_lines: Place, turns: list[dict[str, Any]], because: str
) -> None:
    place = many_lines
    async with open_checked_app(place.settings(*turns, requests(), says("done"), default_rounds=6)) as app:
        run_id = await start_run(app, tools=TOOLS)
        ((granted, reason),) = grants_of(place)
        assert granted == 0
        assert because in reason
        assert cap_of(place, run_id)[0] == 6
        assert place.rows("select body like '%\"is_error\":true%' from answer where by_route = 'budget'") == [(0,)]
    assert place.rows("select count(*) from inbox") == [(0,)]


async def test_what_is_new_counts_from_the_last_grant_and_the_third_request_gets_nothing(many_lines: Place) -> None:
    place = many_lines
    lines = [looks(0), requests(7), looks(0), requests(2), looks(1), looks(2), requests(7), looks(3), requests(1)]
    async with open_checked_app(place.settings(*lines, says("done"), default_rounds=6)) as app:
        run_id = await start_run(app, tools=TOOLS)
        assert [granted for granted, _ in grants_of(place)] == [7, 0, 3, 0]
        assert "no call since the last grant" in grants_of(place)[1][1]
        assert "7 were asked for" in grants_of(place)[2][1]
        assert "2 times and 10 rounds in all is the most" in grants_of(place)[3][1]
        assert cap_of(place, run_id)[0] == 6 + MAX_GRANTED_ROUNDS


async def test_an_edit_makes_the_same_call_no_repetition_as_long_as_it_shows_something_else(place: Place) -> None:
    (place.workspace / "a.txt").write_text("one\n")
    read = {"name": "read_file", "arguments": {"path": "a.txt"}}
    edits = [
        {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": old, "new_string": new}}
        for old, new in (("one", "two"), ("two", "six"))
    ]
    turns = [{"content": "", "tool_calls": [read, edit]} for edit in edits]
    settings = place.settings(*turns, requests(2), says("done"), gate=(GateRule("edit_file", "allow"),))
    async with open_checked_app(settings) as app:
        await start_run(app, tools=TOOLS)
    assert grants_of(place) == [(2, "4 calls since the start, none of them repeated")]


async def test_rounds_that_the_caller_limited_are_never_more_and_the_tool_is_not_offered(many_lines: Place) -> None:
    place = many_lines
    async with open_checked_app(place.settings(looks(0), requests(), *reading(range(1, 9)))) as app:
        run_id = await start_run(app, tools=TOOLS, limits=Limits(rounds=4))
        assert cap_of(place, run_id) == (4, 4)
        assert (
            f"tools: {NAME} is left out, since limits.rounds is given." in (await app.runs.report(run_id, ME)).degraded
        )
    assert place.rows("select count(*) from answer where body like '%was not offered%'") == [(1,)]
    assert grants_of(place) == []


@pytest.mark.parametrize("tools", [None, ("*",), ("read_*", "re*")])
async def test_only_its_whole_name_offers_it(many_lines: Place, tools: tuple[str, ...] | None) -> None:
    place = many_lines
    async with open_checked_app(place.settings(looks(0), requests(), says("done"))) as app:
        await start_run(app, tools=tools)
    assert place.rows("select count(*) from answer where body like '%was not offered%'") == [(1,)]


async def test_the_configurations_limit_bounds_a_grant_and_a_person_extends_as_before(many_lines: Place) -> None:
    place = many_lines
    settings = place.settings(default_rounds=6, limits=Limits(rounds=8))
    async with open_checked_app(settings) as app:
        run_id = await start_run(app, tools=TOOLS, route="caller")
        await answer_run(app, run_id, round_1=looks(0))
        report = await answer_run(app, run_id, round_2=requests(5))
        assert grants_of(place) == [
            (2, "1 call since the start, none of them repeated; 5 were asked for, and the limits have no more")
        ]
        assert report.remaining["rounds"] == 5  # round 3 is held
        await app.control.extend(run_id, Limits(rounds=3), ME)
        assert cap_of(place, run_id)[0] == 8
        await answer_run(app, run_id, round_3=requests(5))
        assert grants_of(place)[1][0] == 0
        await answer_run(app, run_id, round_4=says("done"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"additional": 11}, "additional"),
        ({"additional": 0}, "additional"),
        ({"justification": "Because."}, "justification"),
        ({"progress_summary": ""}, "progress_summary"),
        ({"justification": " " * 120}, "justification"),
        ({"justification": "a" * 120}, "justification has 1 different word,"),
        ({"justification": "APPROVED " * 20}, "justification has 1 different word,"),
        (
            {"justification": "Give me more " * 10 + "12 34 56 78 90 ... !!! ???"},
            "justification has 3 different words,",
        ),
        ({"progress_summary": " " * 120}, "progress_summary has 0 different words,"),
        ({"progress_summary": "a" * 120}, "progress_summary has 1 different word,"),
    ],
)
async def test_a_request_that_is_not_as_its_schema_says_is_an_error(
    many_lines: Place, changes: dict[str, Any], message: str
) -> None:
    async with open_checked_app(many_lines.settings(looks(0), requests(**changes), says("done"))) as app:
        await start_run(app, tools=TOOLS)
    ((body,),) = many_lines.rows("select body from answer where body like '%bad_arguments%'")
    assert message in body
    assert grants_of(many_lines) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" \n" * 60, 0),
        ("1234 ... 56", 0),
        ("Read it, then READ it again", 4),
        ("les œuvres (1907) d-été", 4),
        ("还有六个文件没有读过", 9),
        ("déjà vu, déjà lu", 3),
    ],
)
def test_words_are_counted_in_every_script(text: str, words: int) -> None:
    assert count_different_words(text) == words


async def test_where_a_rule_asks_a_person_first_the_grant_comes_with_their_approval(many_lines: Place) -> None:
    place = many_lines
    lines = [looks(0), requests(3), says("done")]
    async with open_checked_app(place.settings(*lines, gate=(GateRule(NAME, "ask"),), default_rounds=6)) as app:
        run_id = await start_run(app, tools=TOOLS)
        assert cap_of(place, run_id)[0] == 6
        (item,) = (await app.runs.report(run_id, ME)).waiting
        decision = {"decision": "approve", "digest": item["digest"]}
        await app.answers.submit(run_id, {item["key"]: decision}, PERSON)
        await rests(app, run_id)
        assert cap_of(place, run_id)[0] == 9
        assert outcome_of(place, run_id)["summary"] == "done"


async def test_a_single_call_of_it_grants_nothing(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        arguments = requests()["tool_calls"][0]["arguments"]
        run_id = await app.runs.start_call(NAME, arguments, ME)
        await rests(app, run_id)
        assert outcome_of(place, run_id)["output"]["data"]["granted"] == 0


# -- of a team -----------------------------------------------------------------------------------------------------


@pytest.mark.unreplayed
async def test_a_try_is_granted_what_its_task_and_the_team_have_left(many_lines: Place) -> None:
    """Two tasks of five rounds at most share 14: four are left for whoever asks."""
    place = many_lines
    team = Team(tasks=2, tries=1, limits=Limits(rounds=7), tried=Limits(rounds=4), side_by_side=1, synthesis=False)
    lines = [*reading(range(2)), requests(9), *reading(range(2, 60))]
    async with open_team_app(place.settings(*lines, time_zone=ZONE, default_rounds=14), team) as app:
        run_id = await start_run(app, tools=TOOLS)
        books = branches_of(place, run_id)
        assert books["task-1/try-1"].caps.rounds == 7 == books["task-1/try-1"].spent.rounds
        assert books["task-2/try-1"].caps.rounds == 4
        assert [granted for granted, _ in grants_of(place)] == [3]


@pytest.mark.unreplayed
async def test_a_tasks_tries_share_what_may_be_granted_and_what_others_may_still_use_is_not_given_away(
    many_lines: Place,
) -> None:
    """Three tasks share 60 rounds; the first is asked for twice, and the second waits for its turn."""
    place = many_lines
    team = Team(tasks=3, tries=2, limits=UNLIMITED, tried=Limits(rounds=3), side_by_side=1, synthesis=False)
    first = [looks(0), requests(4), *reading(range(1, 6)), says("closing")]
    again = [looks(10), requests(10), *reading(range(11, 16)), requests(1), *reading(range(20, 23)), says("closing")]
    lines = [*first, *again, *reading(range(30, 60))]
    async with open_team_app(place.settings(*lines, time_zone=ZONE, default_rounds=60), team) as app:
        run_id = await start_run(app, tools=TOOLS)
        books = branches_of(place, run_id)
        assert (books["task-1"].caps.rounds, books["task-2"].caps.rounds) == (60 // 2, (60 - 16) // 2)
        assert [books[f"task-1/try-{n}"].caps.rounds for n in (1, 2)] == [7, 9]
        assert [granted for granted, _ in grants_of(place)] == [4, 6, 0]


PARTS = ("first", "second")
READING = {
    "analysis": "Two parts of one file.",
    "strategy": "decomposed",
    "tasks": [{"id": part, "agent": "reader", "description": f"Read the {part} part."} for part in PARTS],
}


@pytest.mark.parametrize("limits", [{}, {"model_calls": 40}])
async def test_each_task_of_a_team_has_grants_of_its_own(many_lines: Place, limits: dict[str, int]) -> None:
    place = many_lines
    put_reader(place, max_rounds=3)
    turns = [looks(0), requests(4), looks(1), requests(9), looks(2), requests(1), looks(3), says("read")]
    lines = [{"for": f"task-1/try-1/round-{number}", **turn} for number, turn in enumerate(turns, 1)]
    lines += [{"for": "task-2/try-1/round-1", **says("nothing")}, {"for": "synthesis", **says("all of it")}]
    async with open_checked_app(place.settings(*lines)) as app:
        run_id = (await app.runs.start(TeamRequest("read it", READING, limits=Limits(**limits)), ME)).run_id
        report = await rests(app, run_id)
        assert (report.stop_reason, report.summary) == ("team_done", "all of it")
        assert [each for each, _ in grants_of(place)] == [4, 6, 0]
        books = branches_of(place, run_id)
        assert {book.caps.rounds for path, book in books.items() if path.endswith("try-1")} == {13, 3}


async def test_a_team_whose_rounds_the_caller_gave_grants_none(many_lines: Place) -> None:
    place = many_lines
    put_reader(place, max_rounds=3)
    async with open_checked_app(place.settings()) as app:
        request = TeamRequest("read it", READING, route="caller", limits=Limits(rounds=20))
        run_id = (await app.runs.start(request, ME)).run_id
        report = await rests(app, run_id)
        assert all(NAME not in [tool["name"] for tool in item.get("tools", ())] for item in report.waiting)
        await app.answers.submit(run_id, {"task-1/try-1/round-1": requests()}, ME)
        await rests(app, run_id)
    assert grants_of(place) == []


KILLS = [13, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 40) if n != 13)]


@pytest.mark.unreplayed
@pytest.mark.parametrize("commits", KILLS)
async def test_killed_after_any_commit_a_loop_has_its_answer_and_its_rounds_or_neither(
    place: Place, commits: int
) -> None:
    await killed_after(place, commits, "more")
    assert_caps_fit_answers(place)
    async with open_team_app(settings_for(place, asks_more=True), MORE_TEAM) as app:
        report = await rests(app, (await app.runs.start(MORE, ME)).run_id)
        assert (report.status, report.rounds) == ("completed", 2 * (3 + 4))
        assert_caps_fit_answers(place)
        assert [granted for granted, _ in grants_of(place) if granted] == [2] * 4


def assert_caps_fit_answers(place: Place) -> None:
    """Each cap is what it was, and what the answers of the requests below it say."""
    granted = place.rows(
        "select path, cast(json_extract(body, '$.data.granted') as bigint) from step join answer on step = step.id"
        " where by_route = 'budget'"
    )
    for (run_id,) in place.rows("select id from run"):
        for path, book in branches_of(place, run_id).items():
            if "/" in path:
                assert book.caps.rounds == 3 + sum(more for step, more in granted if step.startswith(f"{path}/"))


# -- the law -------------------------------------------------------------------------------------------------------

calls = st.builds(
    MadeCall,
    st.sampled_from((b"a", b"b", b"c")),
    st.sampled_from((b"1", b"2")),
    st.frozensets(st.sampled_from((b"x", b"y", b"z"))),
    st.booleans(),
)


@law
@given(st.lists(calls), st.lists(calls))
def test_only_what_is_new_and_mostly_not_repeated_is_progress(before: list[MadeCall], since: list[MadeCall]) -> None:
    found = measure_progress(before, since)
    assert found.calls == len(since)
    assert 0 <= found.repeats <= max(0, len(since) - len({call.call for call in since} - {c.call for c in before}))
    known = frozenset[bytes]().union(*(call.found for call in before))
    if frozenset[bytes]().union(*(call.found for call in since)) <= known:
        assert not found.finds_new
    assert measure_progress((*before, *since), since).finds_new is False


@law
@given(
    st.integers(1, 10), st.lists(st.integers(1, 10), max_size=3), st.none() | st.integers(0, 30), st.integers(-5, 30)
)
def test_a_grant_is_never_more_than_was_asked_for_nor_than_there_is_room(
    asked: int, earlier: list[int], left: int | None, room: int
) -> None:
    grant = grant_rounds(asked, earlier, left, room, lambda: Progress(3, 1, True))
    assert 0 <= grant.granted <= min(asked, max(0, room))
    assert sum(earlier) + grant.granted <= max(MAX_GRANTED_ROUNDS, sum(earlier))
    assert not (grant.granted and (len(earlier) >= MAX_GRANTS or left is None))
    assert grant_rounds(asked, [1, 1], left, room, lambda: Progress(3, 1, True)).granted == 0
    assert grant_rounds(asked, earlier, left, room, lambda: Progress(2, 1, True)).granted == 0
    assert grant_rounds(asked, earlier, left, room, lambda: Progress(2, 0, False)).granted == 0


def measure_too_early() -> Progress:
    raise AssertionError("what was done is looked at last")


@pytest.mark.parametrize(
    ("earlier", "left", "room", "because"),
    [
        ([], None, 5, "are not limited"),
        ([10], 3, 5, "10 were granted before"),
        ([1, 1], 3, 5, "2 were granted before"),
        ([], 3, 0, "have none left for it"),
    ],
)
def test_what_no_progress_could_change_is_refused_without_a_look(
    earlier: list[int], left: int | None, room: int, because: str
) -> None:
    grant = grant_rounds(3, earlier, left, room, measure_too_early)
    assert (grant.granted, grant.left) == (0, left)
    assert because in grant.reason


def test_where_nothing_around_is_limited_all_that_was_asked_for_is_granted() -> None:
    grant = grant_rounds(7, [2], 1, None, lambda: Progress(3, 1, True))
    assert grant == (7, 8, "3 calls since the last grant, 1 of them repeated")


def test_one_round_for_which_there_is_room_is_granted_too() -> None:
    grant = grant_rounds(7, [2], 0, 1, lambda: Progress(3, 1, True))
    assert (grant.granted, grant.left) == (1, 1)
    assert "7 were asked for" in grant.reason


FAILED = MadeCall(b"edit", b"stale")


def made_call(call: str, result: str, *, changes: bool = False) -> MadeCall:
    return MadeCall(call.encode(), result.encode(), frozenset((result.encode(),)), changes)


@pytest.mark.parametrize(
    ("since", "repeats"),
    [
        ([made_call("date", "one"), made_call("date", "two")], 1),  # it says something else each time
        ([made_call("test", "bad"), made_call("edit", "x", changes=True), made_call("test", "good")], 0),
        ([made_call("test", "bad"), made_call("edit", "x", changes=True), made_call("test", "bad")], 1),
        ([FAILED, made_call("edit", "x", changes=True)], 0),  # as of a file that another task had changed
        ([FAILED, FAILED], 1),
    ],
)
def test_a_call_repeats_one_before_unless_a_file_was_changed_and_it_shows_something_else(
    since: list[MadeCall], repeats: int
) -> None:
    assert measure_progress((), since).repeats == repeats
    assert not measure_progress(since, since[:1]).finds_new
    assert not measure_progress([made_call("date", "one")], [made_call("date", "two")]).finds_new
