"""The result of an answer shows its caller only what is new; any other look, and any doubt, gives the item whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.app import ASK, ME, PERSON, Place, assert_all_lawful, place_in, reads, says
from support.reviewers import Person, accepts, connect_person
from support.sampling_clients import ConnectedClient, open_client
from support.statements import count_statements

from kairos_mcp.app.app import App
from kairos_mcp.views.cuts import size

KEY_LIKE = "sk-proj-abcDEF0123456789abcdef"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


async def answers(client: ConnectedClient, run: dict[str, Any], *turns: dict[str, Any]) -> dict[str, Any]:
    """The result of the last of these turns, each given as the answer of what waits."""
    for turn in turns:
        (item,) = run["waiting"]
        run = await answer(client, run["run_id"], item["key"], turn)
    return run


async def answer(client: ConnectedClient, run_id: str, key: str, turn: Any) -> dict[str, Any]:
    return await client.ask("run_continue", {"run_id": run_id, "answers": {key: turn}})


async def starts(client: ConnectedClient, **more: Any) -> dict[str, Any]:
    return await client.ask("planner_run", {"goal": "look around", "route": "caller", **more})


def has_whole_item(run: dict[str, Any]) -> bool:
    """Whether the one completion that waits is shown as the whole request."""
    (item,) = run["waiting"]
    return {"system", "messages", "tools"} <= item.keys() and "after" not in item and "unchanged" not in item


def is_whole(run: dict[str, Any]) -> bool:
    """Whether the result holds every key, and its one completion the whole request."""
    return {"goal", "usage", "calls", "degraded"} <= run.keys() and has_whole_item(run)


async def test_a_result_of_an_answer_holds_what_is_new_and_nothing_else(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        run = await answers(client, await starts(client), reads("a.txt"))
        turn = reads("b.txt", "b.txt")
        for number, call in enumerate(turn["tool_calls"], 1):
            call["id"] = f"mine-{number}"
        run = await answers(client, run, turn)
        (item,) = run["waiting"]
        calls, *results = item["messages"]
        assert item.keys() == {"key", "kind", "after", "messages", "unchanged"}
        assert (item["key"], item["after"], item["unchanged"]) == ("round-3", "round-2", ["system", "tools"])
        ids = ["round-2/call-1", "round-2/call-2"]
        assert calls == {"role": "assistant", "tool_calls": [{"id": each, "name": "read_file"} for each in ids]}
        assert [message["tool_call_id"] for message in results] == ids
        assert all("beta\nbeta" in message["content"] for message in results)
        assert results[-1]["content"].endswith("\n\n[round 3 of 5]")
        assert "alpha" not in json.dumps(run)
        assert [call["ref"] for call in run["calls"]] == ids
        assert run.keys() == {"run_id", "seq", "status", "rounds", "route", "calls", "waiting", "next"}
        assert (await answers(client, run, says("done")))["summary"] == "done"


async def test_text_and_structured_content_say_the_same(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        run = await starts(client)
        turn = reads("a.txt", "not.there", usage={"input_tokens": 0, "output_tokens": 1})
        given = {"run_id": run["run_id"], "answers": {"round-1": turn}}
        result = await client.sdk_client.call_tool("run_continue", given)
        text, body = result.content[0].text, result.structured_content
        head, items = text.rsplit("\nwaiting items: ", 1)
        assert json.loads(items) == body["waiting"]
        for told in (body["run_id"], body["status"], "2 rounds", f"seq {body['seq']}", body["next"]["why"]):
            assert told in head
        for call in body["calls"]:
            assert f"{call['ref']} {call['name']} {'ok' if call['ok'] else 'failed'} {call['ms']} ms" in head
        assert all(note in head for note in body["degraded"])
        await answers(client, body, says("done"))


async def test_a_note_is_shown_with_the_answer_that_it_came_with_and_not_again(place: Place, era: str) -> None:
    """In a whole look it stands as before, with those of the start."""
    async with open_client(place.settings(), era) as client:
        first = await client.ask("planner_run", {"goal": "look around"})
        assert [note.split(":")[0] for note in first["degraded"]] == ["route auto chose caller"]
        run = await answers(client, first, reads("a.txt", usage={"input_tokens": 0, "output_tokens": 1}))
        assert [note.split(":")[0] for note in run["degraded"]] == ["round-1"]
        run = await answers(client, run, reads("b.txt"))
        assert "degraded" not in run
        (seen,) = (await client.ask("run_status", {"run_ids": [run["run_id"]]}))["runs"]
        assert [note.split(":")[0] for note in seen["degraded"]] == ["route auto chose caller", "round-1"]
        ended = await answers(client, run, says("done", usage={"input_tokens": 0, "output_tokens": 1}))
        assert [note.split(":")[0] for note in ended["degraded"]] == ["round-3"]


async def test_every_other_look_gives_the_item_whole(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        run = await answers(client, await starts(client), reads("a.txt"))
        run_id = run["run_id"]
        assert not is_whole(run)
        for arguments in ({"run_ids": [run_id]}, {"run_ids": [run_id], "view": "full"}):
            (seen,) = (await client.ask("run_status", arguments))["runs"]
            assert is_whole(seen)
        assert is_whole(await starts(client))  # the same start once more
        assert is_whole(await client.ask("run_continue", {"run_id": run_id}))
        roles = [message["role"] for message in seen["waiting"][0]["messages"]]
        assert roles == ["user", "assistant", "tool"]
        await answers(client, run, says("done"))


async def test_what_somebody_else_answered_before_is_shown_whole(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        run = await answers(client, await starts(client), reads("a.txt"))
        await client.app.answers.submit(run["run_id"], {"round-2": reads("b.txt")}, ME)
        seen = await client.ask("run_continue", {"run_id": run["run_id"]})
        assert (seen["waiting"][0]["key"], is_whole(seen)) == ("round-3", True)
        await answers(client, seen, says("done"))


async def test_the_same_answer_again_gives_the_same_until_what_follows_is_answered(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        first = await starts(client)
        second = await answers(client, first, reads("a.txt"))
        assert await answer(client, first["run_id"], "round-1", reads("a.txt")) == second
        third = await answers(client, second, reads("b.txt"))
        again = await answer(client, first["run_id"], "round-1", reads("a.txt"))
        (item,) = again["waiting"]
        assert (item["key"], item["after"]) == ("round-3", "round-1")
        # What followed may have been answered by somebody else; the turn that this call brought was not.
        assert [message["role"] for message in item["messages"]] == ["assistant", "tool", "assistant", "tool"]
        assert [message.get("content") for message in item["messages"][::2]] == [None, "look"]
        assert item["messages"][2]["tool_calls"][0]["arguments"] == {"path": "b.txt"}
        ended = await answers(client, third, says("done"))
        assert ended.keys() == first.keys()
        assert (ended["summary"], ended["calls"], second["calls"][0]["name"]) == ("done", [], "read_file")
        (seen,) = (await client.ask("run_status", {"run_ids": [first["run_id"]]}))["runs"]
        assert [call["ref"] for call in seen["calls"]] == ["round-1/call-1", "round-2/call-1"]
        assert await answer(client, first["run_id"], "round-3", says("done")) == ended


async def test_a_client_that_lost_the_result_and_its_server_gets_the_same_from_another(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        first = await starts(client)
        second = await answers(client, first, reads("a.txt"))
    async with open_client(place.settings(), era) as client:
        again = await answer(client, first["run_id"], "round-1", reads("a.txt"))
        assert again == second
        await answers(client, again, says("done"))


async def test_a_call_that_asks_its_client_s_user_first_still_shows_only_what_is_new(place: Place, era: str) -> None:
    """From protocol 2026-07-28 on the client calls again with the user's word; before that it is asked meanwhile."""
    person = Person([accepts(decision="approve")])
    async with App.open(place.settings(), via="mcp") as app, connect_person(app, era, person) as client:
        run = await starts(client, tools=["read_file", "edit_file"])
        run = await answers(client, run, EDITS)
        assert (len(person.seen), (place.workspace / "a.txt").read_text()) == (1, "omega\n")
        assert run["waiting"][0]["after"] == "round-1"
        assert "mine" not in json.dumps(run)
        await answers(client, run, says("done"))
        await assert_all_lawful(app)


async def test_a_turn_of_which_a_word_was_masked_is_shown_whole(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        turn = reads("a.txt") | {"content": f"with {KEY_LIKE}"}
        run = await answers(client, await starts(client), turn)
        assert is_whole(run)
        assert run["waiting"][0]["messages"][1]["content"] == "with [secret]"
        again = await answer(client, run["run_id"], "round-1", turn)
        assert is_whole(again)
        await answers(client, run, says("done"))


async def test_after_a_compaction_the_item_is_whole_and_only_after_it(place: Place, era: str) -> None:
    for name in ("c.txt", "d.txt"):
        (place.workspace / name).write_text("".join(f"line {n} of {name}, {'word ' * 20}\n" for n in range(50)))
    async with open_client(place.settings(context_tokens=3_600), era) as client:
        run = await answers(client, await starts(client, tools=["read_file"]), reads("c.txt"))
        assert run["waiting"][0]["after"] == "round-1"
        run = await answers(client, run, reads("d.txt"))
        assert place.rows("select path from step where kind = 'compact'") == [("round-3/compact",)]
        assert (run["waiting"][0]["key"], has_whole_item(run)) == ("round-3", True)
        assert "line 1 of c.txt" not in json.dumps(run["waiting"])
        run = await answers(client, run, reads("a.txt"))
        assert run["waiting"][0]["after"] == "round-3"
        await answers(client, run, says("done"))


async def test_a_repair_and_a_closing_go_on_with_the_conversation(place: Place, era: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with open_client(place.settings(), era) as client:
        run = await answers(client, await starts(client, output_schema=schema), reads("a.txt"))
        assert run["waiting"][0]["unchanged"] == ["system", "tools", "schema"]
        run = await answers(client, run, says("no object"))
        (item,) = run["waiting"]
        (told,) = item.pop("messages")
        assert (told["role"], "no object" in told["content"]) == ("user", False)
        assert item == {
            "key": "output/repair-1",
            "kind": "completion",
            "after": "round-2",
            "tools": [],
            "unchanged": ["system", "schema"],
        }
        run = await answers(client, run, says("nor is this"))
        assert (run["waiting"][0]["key"], run["waiting"][0]["after"]) == ("output/repair-2", "output/repair-1")
        assert (await answers(client, run, says('{"n": 1}')))["output"] == {"n": 1}
        run = await answers(client, await starts(client, limits={"rounds": 1}), reads("a.txt"))
        (item,) = run["waiting"]
        assert (item["key"], item["after"], item["tools"]) == ("closing", "round-1", [])
        assert [message["role"] for message in item["messages"]] == ["assistant", "tool", "user"]
        await answers(client, run, says("one file"))


async def test_a_turn_without_calls_adds_the_correction_alone(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        first = await starts(client)
        for turn, told in ({"content": "half a", "finish": "length"}, "half a"), ({"content": ""}, "none"):
            run = await answers(client, await starts(client, key=told), turn)
            (message,) = run["waiting"][0]["messages"]
            assert (message["role"], run["waiting"][0]["after"]) == ("user", "round-1")
            assert told not in message["content"]
            await answers(client, run, says("done"))
        await answers(client, first, says("done"))


async def test_what_follows_the_caller_s_own_tool_is_new_to_whoever_says_that_it_wrote_the_turn(
    place: Place, era: str
) -> None:
    """`next` says it for them. Without that the item is whole: the turn was answered in another call."""
    tool = {"name": ASK.name, "description": ASK.description, "input_schema": ASK.input_schema, "effect": "read"}
    async with open_client(place.settings(), era) as client:
        calls = {"tool_calls": [{"name": ASK.name, "arguments": {}}]}
        run = await answers(client, await starts(client, caller_tools=[tool]), calls)
        result = {"run_id": run["run_id"], "answers": {"round-1/call-1": {"content": "so"}}}
        assert run["next"]["arguments"]["after"] == ["round-1"]
        whole = await client.ask("run_continue", result)
        assert (whole["waiting"][0]["key"], has_whole_item(whole)) == ("round-2", True)
        (item,) = (await client.ask("run_continue", {**result, "after": run["next"]["arguments"]["after"]}))["waiting"]
        assert (item["key"], item["after"]) == ("round-2", "round-1")
        assert [message["role"] for message in item["messages"]] == ["assistant", "tool"]
        await answers(client, whole, says("done"))


EDIT = {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}
EDITS = {"content": "mine", "tool_calls": [{"name": "edit_file", "arguments": EDIT}]}


async def looks(client: ConnectedClient, arguments: dict[str, Any]) -> dict[str, Any]:
    """The run as run_status shows it, with the next call."""
    body = await client.ask("run_status", arguments)
    (run,) = body["runs"]
    return {**run, "next": body["next"]}


async def test_what_a_person_let_go_on_elsewhere_is_shown_from_where_the_caller_was(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        run = await answers(client, await starts(client, tools=["read_file", "edit_file"]), EDITS)
        key = "round-1/call-1/approval"
        assert (run["waiting"][0]["key"], "usage" in run) == (key, False)
        look = run["next"]["arguments"]
        assert (run["next"]["tool"], look["after"]) == ("run_status", ["round-1", key])
        named = await looks(client, {"run_ids": look["run_ids"], "after": look["after"]})
        assert named["waiting"] == [{"key": key, "kind": "approval"}]
        assert named["next"]["arguments"]["after"] == look["after"]
        await client.app.answers.decide(run["run_id"], key, "approve", None, PERSON)
        seen = await looks(client, look)
        (item,) = seen["waiting"]
        assert (item["key"], item["after"], item["unchanged"]) == ("round-2", "round-1", ["system", "tools"])
        assert "mine" not in json.dumps(seen)
        assert [call["ref"] for call in seen["calls"]] == ["round-1/call-1"]
        assert await looks(client, look) == seen
        assert (await client.ask("run_continue", {"run_id": run["run_id"], "after": "round-1"})) == seen
        assert (await starts(client, tools=["read_file", "edit_file"], after="round-1"))["waiting"] == seen["waiting"]
        there = await looks(client, {"run_ids": [run["run_id"]], "after": "round-2"})
        assert there["waiting"] == [{"key": "round-2", "kind": "completion"}]
        assert is_whole(await looks(client, {"run_ids": [run["run_id"]], "after": ["round-9"]}))
        await answers(client, seen, says("done"))


async def test_a_caller_that_has_a_text_is_not_shown_it_again(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        first = await starts(client)
        (item,) = first["waiting"]
        ids = [item["system_id"], item["tools_id"]]
        assert [len(each) for each in ids] == [12, 12]
        (known,) = (await starts(client, known=ids))["waiting"]  # the same run: what is known is no part of a start
        assert known == {name: value for name, value in item.items() if name not in ("system", "tools")}
        (again,) = (await starts(client, known=ids[:1], key="another"))["waiting"]
        assert ("system" in again, again["tools"]) == (False, item["tools"])
        ((runs,),) = place.rows("select count(*) from run")
        assert runs == 2


ROUNDS = 9
TIMES = 1.6  # of what is new, at most, is what a host is shown


class Meter:
    """A caller's calls of one run, and how many characters a host's model is shown of each result."""

    def __init__(self, client: ConnectedClient) -> None:
        self.client = client
        self.shown: list[int] = []

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await self.client.sdk_client.call_tool(name, arguments)
        self.shown.append(max(len(result.content[0].text), size(result.structured_content)))
        body: dict[str, Any] = result.structured_content
        return body

    async def explore(self, names: list[str], **more: Any) -> dict[str, Any]:
        """The first result of a run that reads these files, one in each round, and then ends."""
        first = await self.call(
            "planner_run", {"goal": "Explore.", "route": "caller", "limits": {"rounds": len(names) + 2}, **more}
        )
        run = first
        for turn in (*map(reads, names), says("I have read them.")):
            (item,) = run["waiting"]
            run = await self.call("run_continue", {"run_id": run["run_id"], "answers": {item["key"]: turn}})
        assert run["status"] == "completed"
        return first


def lay_files(place: Place, count: int, chars: int) -> list[str]:
    names = [f"part-{n}.txt" for n in range(count)]
    for n, name in enumerate(names):
        line = f"Part {n}: {'a word and another ' * 4}\n"
        (place.workspace / name).write_text(line * (chars // len(line)))
    return names


async def test_nine_rounds_cost_a_host_little_more_than_what_is_new(place: Place, era: str) -> None:
    names = lay_files(place, ROUNDS, 2_250)
    read = sum((place.workspace / name).stat().st_size for name in names)
    assert 19_800 < read < 20_200
    async with open_client(place.settings(), era) as client:
        meter = Meter(client)
        (item,) = (await meter.explore(names))["waiting"]
        once = len(item["system"]) + size(item["tools"])
        assert sum(meter.shown) <= TIMES * (read + once), (sum(meter.shown), read, once)
        meter = Meter(client)
        await meter.explore(names, tools=["read_file"])
        shown = sum(meter.shown) - len(str(place.workspace))  # which the first result names
        assert shown <= TIMES * read, (shown, read)  # system and tool in it


async def test_a_round_costs_the_same_in_a_long_run(place: Place, era: str) -> None:
    names = lay_files(place, 40, 1_000)
    async with open_client(place.settings(context_tokens=1_000_000), era) as client:
        meter = Meter(client)
        with count_statements() as statements:
            run = await meter.call("planner_run", {"goal": "Go.", "route": "caller", "limits": {"rounds": 50}})
            each: list[int] = []
            for name in names:
                before, (item,) = statements.count, run["waiting"]
                run = await meter.call("run_continue", {"run_id": run["run_id"], "answers": {item["key"]: reads(name)}})
                each.append(statements.count - before)
        assert (
            max(meter.shown[30:]) <= max(meter.shown[1:8]) + 60
        )  # the figures and names of later rounds have more digits
        assert min(each[30:]) <= min(each[1:8]), each
        await answers(client, run, says("done"))


async def test_three_waiting_runs_are_listed_with_a_line_each(place: Place, era: str) -> None:
    async with open_client(place.settings(), era) as client:
        runs = [await starts(client, key=f"number {n}") for n in range(3)]
        result = await client.sdk_client.call_tool("run_status", {})
        text, body = result.content[0].text, result.structured_content
        assert [row["run_id"] for row in body["runs"]] == [run["run_id"] for run in reversed(runs)]
        assert all(row["waiting"] == [{"key": "round-1", "kind": "completion"}] for row in body["runs"])
        assert len(text.splitlines()) == 4  # and the call that comes next
        assert "in full" not in text
        assert max(len(text), size(body)) < 2_500
        for run in runs:
            await answers(client, run, says("done"))


SOURCE = "".join(
    f"def part_{n}(value):\n    '''Return the part number {n} of a value.'''\n    return value[{n}:{n + 1}]\n\n\n"
    for n in range(40)
)
CHECKS = """from parts import *

for n in range(40):
    assert globals()[f'part_{n}']('x' * 99) == 'x', n
print('40 passed')
"""
FIX_CHARS = 20_000  # at most, for a fix of one line with its tests


async def test_a_fix_of_one_line_with_its_tests_is_cheap_and_takes_two_decisions(place: Place, era: str) -> None:
    (place.workspace / "parts.py").write_text(SOURCE.replace("value[7:8]", "value[7:7]"))
    (place.workspace / "check.py").write_text(CHECKS)
    edit = {"path": "parts.py", "old_string": "value[7:7]", "new_string": "value[7:8]"}
    turns = [
        {"tool_calls": [{"name": "file_tree", "arguments": {}}]},
        reads("check.py", "parts.py"),
        {"tool_calls": [{"name": "edit_file", "arguments": edit}]},
        {"tool_calls": [{"name": "run_command", "arguments": {"argv": ["python3", "check.py"]}}]},
        says("part_7 returned nothing; it returns one character now, and all 40 checks pass."),
    ]
    person = Person([accepts(decision="approve")] * 2)
    tools = ["file_tree", "read_file", "edit_file", "run_command"]
    goal = {"goal": "python3 check.py fails. Mend it.", "route": "caller", "limits": {"rounds": 9}, "tools": tools}
    async with (
        App.open(place.settings(commands="bare"), via="mcp") as app,
        connect_person(app, era, person) as client,
    ):
        meter = Meter(client)
        run = await meter.call("planner_run", goal)
        for turn in turns:
            (item,) = run["waiting"]
            run = await meter.call("run_continue", {"run_id": run["run_id"], "answers": {item["key"]: turn}})
    assert (run["status"], len(person.seen)) == ("completed", 2)
    assert (place.workspace / "parts.py").read_text() == SOURCE
    assert sum(meter.shown) <= FIX_CHARS, meter.shown
