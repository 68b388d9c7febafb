"""Each phase as a tool of its own: what one gives, the next takes unchanged, over the real app in both eras."""

from __future__ import annotations

import json

import pytest
from support.cycles import (
    EDITS_ALLOWED,
    MANDATE,
    PAGE,
    Person,
    accepts,
    edit,
    judgement_line,
    noop,
    open_scripted_client,
    orientation_line,
    page,
)

PHASES = {"observe": None, "orient": "observation", "decide": "orientation", "act": "decision", "reflect": "act_result"}


def steps(place, run_id):
    return place.rows(
        "select path, kind from step join run on run.n = step.run where run.id = ? order by step.id", run_id
    )


async def test_each_phase_takes_the_output_of_the_one_before(place, era):
    (place.workspace / "docs" / "long.md").write_text("a line of a page\n" * 600)
    observe = [*MANDATE["observe"], {"tool": "read_file", "args": {"path": "docs/long.md"}}, "edit_file"]
    mandate = {
        **MANDATE,
        "observe": observe,
        "acceptance": [{"check": "file_contains", "path": "docs/index.md", "text": "one.md"}],
    }
    lines = (
        orientation_line() | {"for": "orient"},
        edit("oen.md", "one.md") | {"for": "decide"},
        judgement_line() | {"for": "reflect"},
    )
    given: dict = {}
    async with open_scripted_client(place, era, *lines, gate=EDITS_ALLOWED) as client:
        for name, argument in PHASES.items():
            took = {argument: given["output"]} if argument else {}
            given = await client.ask(f"ooda_{name}", {"mandate": mandate, **took})
            assert (given["status"], given["stop_reason"]) == ("completed", None), given
            if name == "observe":
                seen = {each["status"] for each in given["output"]["observations"]}
                assert seen == {"result", "skipped"}
                assert len(json.dumps(given)) > 3_000
            if name != "reflect":
                assert given["next"]["tool"] == f"ooda_{list(PHASES)[list(PHASES).index(name) + 1]}"
        assert given["output"]["assessment"] == "success"
        assert page(place) == PAGE.replace("oen.md", "one.md")
    flows = place.rows("select flow from run order by n")
    assert flows == [(f"ooda_{name}",) for name in PHASES]
    paths = [path for (path,) in place.rows("select path from step order by id")]
    assert paths == [
        *("observe/call-1", "observe/call-2", "observe/call-3"),
        *("orient", "decide/read-1/call-1", "decide", "act/call-1", "reflect/check-1", "reflect"),
    ]


async def test_the_next_call_of_a_phase_goes_on_with_its_mandate_workspace_and_route(place, era):
    """It names the run alone, which stands for all of them, however they were named."""
    other = place.root / "other"
    other.mkdir()
    folders = (place.workspace, other)
    async with open_scripted_client(place, era, orientation_line(), workspaces=folders) as client:
        await client.ask("mandate_save", {"mandate": MANDATE})
        for named in (
            {"mandate_id": "links"},
            {"mandate": {**MANDATE, "goal": "Something else."}, "route": "caller"},
            {"goal": "Mend the links.", "workspace": "other", "route": "caller"},
        ):
            observed = await client.ask("ooda_observe", named)
            assert observed["next"]["tool"] == "ooda_orient"
            assert observed["next"]["arguments"] == {"observation": observed["run_id"]}
            await client.ask("ooda_orient", observed["next"]["arguments"])
        refused = await client.sdk_client.call_tool("ooda_orient", {"observation": observed["output"]})
        assert refused.structured_content["code"] == "bad_arguments"
        elsewhere = {"observation": observed["run_id"], "workspace": "workspace"}
        refused = await client.sdk_client.call_tool("ooda_orient", elsewhere)
        assert refused.structured_content["code"] == "bad_arguments"
    what = "workspace, route, json_extract(spec, '$.asked_route'), json_extract(spec, '$.mandate_text')"
    rows = place.rows(f"select {what} from run order by n")
    assert rows[1::2] == rows[::2], "each orientation is of what its observation was of"
    assert [(folder, route) for folder, route, _, _ in rows[::2]] == [
        (str(place.workspace), "scripted"),
        (str(place.workspace), "caller"),
        (str(other), "caller"),
    ]


async def test_the_output_of_a_phase_may_be_given_as_its_json(place, era):
    async with open_scripted_client(place, era) as client:
        observed = await client.ask("ooda_observe", {"goal": "Mend.", "route": "caller"})
        plain = {"goal": "Mend.", "observation": observed["output"], "route": "caller"}
        given = await client.ask("ooda_orient", plain)
        same = await client.ask("ooda_orient", plain | {"observation": json.dumps(observed["output"])})
        assert same["run_id"] == given["run_id"]
        broken = plain | {"observation": '{"observations": ['}
        assert (await client.sdk_client.call_tool("ooda_orient", broken)).is_error


async def test_a_phase_takes_the_run_of_the_phase_before_in_place_of_its_output(place, era):
    lines = (orientation_line() | {"for": "orient"}, edit("oen.md", "one.md") | {"for": "decide"})
    async with open_scripted_client(place, era, *lines) as client:
        observed = await client.ask("ooda_observe", {"goal": "Mend."})
        oriented = await client.ask("ooda_orient", observed["next"]["arguments"])
        named = observed["next"]["arguments"]
        assert named == {"observation": observed["run_id"]}
        again = await client.ask("ooda_orient", {"goal": "Mend.", "observation": observed["output"], "route": "caller"})
        by_run = await client.ask("ooda_orient", {**named, "route": "caller"})
        assert again["run_id"] == by_run["run_id"], "the same start, however its input is named"
        decided = await client.ask("ooda_decide", oriented["next"]["arguments"])
        assert decided["output"]["action"] == "code_edit"
        waiting = await client.ask("ooda_act", decided["next"]["arguments"])
        assert waiting["output"]["status"] == "awaiting_approval"

        for given, code, told in (
            ("run-none", "unknown_run", "run-none"),
            (oriented["run_id"], "bad_arguments", "ooda_observe"),
            (by_run["run_id"], "bad_arguments", "not ended"),
        ):
            argument, tool = ("orientation", "ooda_decide") if "not ended" in told else ("observation", "ooda_orient")
            refused = await client.sdk_client.call_tool(tool, {"goal": "Mend.", argument: given})
            error = refused.structured_content
            assert (refused.is_error, error["code"]) == (True, code)
            assert told in f"{error['message']} {error['hint']}"
    inputs = place.rows("select json_extract(spec, '$.given_by') from run where flow != 'ooda_observe' order by n")
    assert [given_by for (given_by,) in inputs] == [
        observed["run_id"],
        observed["run_id"],
        oriented["run_id"],
        decided["run_id"],
    ]


async def test_an_output_is_whole_however_long_it_is(place, era):
    for n in range(8):
        (place.workspace / f"page-{n}.md").write_text("words of a page\n" * 200)
    observe = [{"tool": "read_file", "args": {"path": f"page-{n}.md"}} for n in range(8)]
    async with open_scripted_client(place, era, orientation_line() | {"for": "orient"}) as client:
        seen = await client.ask("ooda_observe", {"mandate": {"goal": "Read.", "observe": observe}})
        assert len(json.dumps(seen["output"])) > 12_000
        found = await client.ask("ooda_orient", {"goal": "Read.", "observation": seen["output"]})
        assert found["output"]["summary"] == "A link is broken."


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("ooda_orient", {"goal": "x", "observation": {}}),
        ("ooda_orient", {"goal": "x", "observation": {"status": "budget", "reason": "it was used up"}}),
        ("ooda_decide", {"goal": "x", "orientation": {"summary": "s"}}),
        ("ooda_act", {"goal": "x", "decision": {"action": "code_edit", "target": "a.txt"}}),
        ("ooda_reflect", {"goal": "x", "act_result": {"status": "awaiting_approval", "key": "k", "digest": "d"}}),
        ("ooda_observe", {"goal": "x", "mandate": {"goal": "y"}}),
        ("ooda_observe", {}),
        ("ooda_observe", {"goal": "x", "limits": {"rounds": 3}}),
        ("ooda_run", {"mandate": {**MANDATE, "max_cycle": 3}}),
        ("ooda_run", {"mandate": MANDATE, "cycles": 4}),
        ("mandate_save", {"mandate": {**MANDATE, "max_cycles": 11}}),
    ],
)
async def test_nothing_is_started_on_what_is_not_right(place, era, tool, arguments):
    async with open_scripted_client(place, era, orientation_line()) as client:
        result = await client.sdk_client.call_tool(tool, arguments)
        assert result.is_error
        assert result.structured_content["code"] == "bad_arguments"
    if place.db.exists():
        assert place.rows("select id from run union select id from mandate") == []


async def test_an_act_that_waits_says_so_and_goes_on_when_it_is_approved(place, era):
    lines = (orientation_line() | {"for": "orient"}, edit("oen.md", "one.md") | {"for": "decide"})
    async with open_scripted_client(place, era, *lines) as client:
        orientation = (await client.ask("ooda_orient", {"mandate": MANDATE, "observation": {"observations": []}}))[
            "output"
        ]
        decision = (await client.ask("ooda_decide", {"mandate": MANDATE, "orientation": orientation}))["output"]
        waits = await client.ask("ooda_act", {"mandate": MANDATE, "decision": decision})
        (item,) = waits["waiting"]
        assert waits["output"] == {"status": "awaiting_approval", "key": item["key"], "digest": item["digest"]}
        assert "+See [one](one.md)" in item["preview"]
        again = await client.ask("ooda_act", {"mandate": MANDATE, "decision": decision})
        assert again["run_id"] == waits["run_id"]
        assert page(place) == PAGE
    person = Person([accepts(decision="approve")])
    async with open_scripted_client(place, era, person=person) as client:
        acted = await client.ask("run_continue", {"run_id": waits["run_id"]})
        assert (acted["status"], acted["output"]["status"]) == ("completed", "applied")
        assert acted["output"]["decision"] == decision
        assert page(place) == PAGE.replace("oen.md", "one.md")


async def test_a_phase_that_gave_nothing_says_why_and_has_no_next(place, era):
    async with open_scripted_client(place, era, *[{"content": "no idea", "finish": "stop"}] * 3) as client:
        said = await client.ask("ooda_orient", {"goal": "x", "observation": {"observations": []}})
        assert (said["status"], said["output"]["status"], said["next"]) == ("failed", "parse_error", None)
        result = await client.sdk_client.call_tool("ooda_decide", {"goal": "x", "orientation": said["output"]})
        assert result.structured_content["code"] == "bad_arguments"
    assert [kind for _, kind in steps(place, said["run_id"])] == ["phase", "repair", "repair"]


async def test_a_phase_alone_reads_what_it_was_given_and_what_the_phase_before_kept(place, era):
    """The refs in an observation are those of the run that made it; a long orientation is kept where it is given."""
    (place.workspace / "long.md").write_text("a line of a page\n" * 600 + "the last line\n")
    observe = [{"tool": "read_file", "args": {"path": "long.md"}}]
    mandate = {"goal": "Read.", "observe": observe}
    standing = json.loads(orientation_line()["content"]) | {"summary": "s" * 3_000 + " the end"}
    asks = [{"ref": "observe/call-1", "grep": "last line"}, {"ref": "given", "grep": "the end"}, {"ref": "nothing"}]
    lines = (
        {"content": json.dumps(standing), "for": "orient"},
        {"tool_calls": [{"name": "read_result", "arguments": asked} for asked in asks], "for": "decide"},
        noop() | {"for": "decide/turn-2"},
    )
    async with open_scripted_client(place, era, *lines) as client:
        seen = await client.ask("ooda_observe", {"mandate": mandate})
        assert seen["output"]["observations"][0]["left_out"] > 0
        weighed = await client.ask("ooda_orient", {"mandate": mandate, "observation": seen["output"]})
        asked = await client.ask("run_trace", {"run_id": weighed["run_id"], "view": "messages"})
        assert '"ref": "observe/call-1"' in asked["items"][1]["content"]
        decided = await client.ask("ooda_decide", {"mandate": mandate, "orientation": weighed["output"]})
        assert decided["status"] == "completed"
        trace = await client.ask("run_trace", {"run_id": decided["run_id"], "view": "messages"})
        results = [each["content"] for each in trace["items"] if each.get("role") == "tool"]
    assert ["the last line" in results[0], "the end" in results[1], "not_found" in results[2]] == [True] * 3


async def test_a_ref_of_a_run_that_is_not_known_is_not_shown(place, era):
    """An observation that was changed is the output of no run: nothing could be read by the refs in it."""
    observed = {"tool": "file_tree", "arguments": {}, "status": "result", "content": "a", "left_out": 9}
    act_result = {
        "status": "applied",
        "decision": {"action": "run_tool", "tool": "tidy", "arguments": {}, "intent": "tidy"},
        "risk": "low",
        "effect": {"digest": "0" * 64, "said": "tidied"},
        "result": "done",
        "files": [],
    }
    given = {
        "orient": {"observation": {"observations": [observed | {"ref": "observe/call-1"}]}},
        "reflect": {"act_result": act_result | {"ref": "act/call-1"}},
    }
    async with open_scripted_client(place, era) as client:
        for phase, took in given.items():
            run = await client.ask(f"ooda_{phase}", {"goal": "Read.", "route": "caller", **took})
            (item,) = run["waiting"]
            assert "call-1" not in json.dumps(item["messages"])
            assert any("refs are left out" in note for note in run["degraded"])
    kept = [json.loads(body) for (body,) in place.rows("select body from text where body like '%\"status\":%'")]
    assert not any("call-1" in json.dumps(each) for each in kept)


async def test_a_turn_that_only_read_is_followed_by_what_is_new(place, era):
    arguments = {"mandate": MANDATE, "orientation": json.loads(orientation_line()["content"]), "route": "caller"}
    async with open_scripted_client(place, era) as client:
        run = await client.ask("ooda_decide", arguments)
        run = await answer(client, run, reads_of(1))
        (item,) = run["waiting"]
        assert (item["key"], item["after"], item["unchanged"]) == (
            "decide/turn-2",
            "decide",
            ["system", "tools", "schema"],
        )
        assert [message["role"] for message in item["messages"]] == ["assistant", "tool"]
        assert (await answer(client, run, noop()))["status"] == "completed"


async def test_an_item_says_that_tools_are_offered_no_more(place, era):
    arguments = {"mandate": MANDATE, "orientation": json.loads(orientation_line()["content"]), "route": "caller"}
    async with open_scripted_client(place, era) as client:
        run = await answer(client, await client.ask("ooda_decide", arguments), reads_of(20))
        (item,) = run["waiting"]
        assert (item["after"], item["tools"], item["unchanged"]) == ("decide", [], ["system", "schema"])
        assert (await answer(client, run, noop()))["status"] == "completed"


def reads_of(times):
    calls = [{"name": "search_files", "arguments": {"pattern": f"x{n}"}} for n in range(times)]
    return {"tool_calls": calls}


async def answer(client, run, turn):
    return await client.ask("run_continue", {"run_id": run["run_id"], "answers": {run["waiting"][0]["key"]: turn}})
