"""Cycles of a mandate over the real app and server: files, rows and statuses, in both eras."""

from __future__ import annotations

import pytest
from support.cycles import (
    EDITS_ALLOWED,
    MANDATE,
    MENDED,
    PAGE,
    Person,
    accepts,
    cycle,
    edit,
    gives,
    judgement_line,
    noop,
    open_scripted_client,
    orientation_line,
    page,
    resume_to_end,
)

WHOLE = PAGE.replace("oen", "one").replace("tow", "two").replace("trhee", "three")
FREE = {**MANDATE, "checkpoint_every": 3}


async def run_mandate(client, mandate=MANDATE, **more):
    return await client.ask("ooda_run", {"mandate": mandate, **more})


async def statuses(client):
    found = (await client.ask("mandate_list"))["mandates"]
    return {each["mandate_id"]: (each["status"], each.get("reason")) for each in found}


async def test_three_cycles_edit_a_file_each_after_a_persons_approval(place, era):
    person = Person([accepts(decision="approve")] * 3)
    async with open_scripted_client(place, era, *MENDED, person=person) as client:
        first = await run_mandate(client)
        assert (first["status"], first["output"]["mandate_status"]) == ("paused", "paused_at_checkpoint")
        assert first["next"]["arguments"] == {"run_id": first["run_id"], "action": "resume"}
        told, _, offered = first["next"]["why"].partition("If they want it to go on")
        assert "tell the user what was done (cycle 1: code_edit docs/index.md, applied, success" in told
        assert offered
        assert page(place) == PAGE.replace("oen", "one")
        await client.ask("run_control", {"run_id": first["run_id"], "action": "resume"})
        second = await client.ask("run_continue", {"run_id": first["run_id"]})
        await client.ask("run_control", {"run_id": first["run_id"], "action": "resume"})
        third = await client.ask("run_continue", {"run_id": first["run_id"]})
        assert second["output"]["mandate_status"] == "paused_at_checkpoint"
        assert (third["status"], third["stop_reason"]) == ("stopped", "max_cycles_reached")
        assert [each["status"] for each in third["output"]["cycles"]] == ["applied"] * 3
        assert page(place) == WHOLE
        assert await statuses(client) == {"links": ("terminated", "max_cycles_reached")}
    assert len(person.seen) == 3
    assert all("docs/index.md" in shown.message for shown in person.seen)
    names = {call["name"] for call in third["calls"]}
    assert {"edit_file", "read_file"} <= names


async def test_a_denial_with_feedback_leads_to_another_proposal(place, era):
    person = Person([accepts(decision="deny", feedback="not one.md, first.md"), accepts(decision="approve")])
    lines = (*cycle(edit("oen.md", "one.md")), *cycle(edit("oen.md", "first.md")))
    async with open_scripted_client(place, era, *lines, person=person) as client:
        done = await run_mandate(client, {**FREE, "max_cycles": 2})
        assert [each["status"] for each in done["output"]["cycles"]] == ["denied", "applied"]
        assert "not one.md, first.md" in done["output"]["cycles"][0]["act"]["reason"]
        assert page(place) == PAGE.replace("oen.md", "first.md")
        asked = await client.ask("run_trace", {"run_id": done["run_id"], "ref": "cycle-1/act/call-1"})
        assert "not one.md, first.md" in asked["text"]


async def test_a_second_call_attaches_and_does_not_resume(place, era):
    async with open_scripted_client(place, era, *MENDED, gate=EDITS_ALLOWED) as client:
        first = await run_mandate(client)
        again = await client.ask("ooda_run", {"mandate_id": "links", "cycles": 1})
        assert (again["run_id"], again["status"]) == (first["run_id"], "paused")
        assert any(note.startswith("attached") for note in again["degraded"])
        assert await statuses(client) == {"links": ("paused_at_checkpoint", None)}
        assert page(place) == PAGE.replace("oen", "one")
        done = await resume_to_end(client, again)
        assert done["stop_reason"] == "max_cycles_reached"
        assert page(place) == WHOLE
        fresh = await client.ask("ooda_run", {"mandate_id": "links", "cycles": 1, "route": "caller"})
        assert fresh["run_id"] != first["run_id"]
        assert "Names are swapped." in str(fresh["waiting"])
    assert place.rows("select count(*) from run") == [(2,)]


async def test_a_changed_goal_pauses_until_the_run_is_cancelled(place, era):
    async with open_scripted_client(place, era, *MENDED, gate=EDITS_ALLOWED) as client:
        first = await run_mandate(client)
        await client.ask("mandate_save", {"mandate": {**MANDATE, "goal": "Something else."}})
        await client.ask("run_control", {"run_id": first["run_id"], "action": "resume"})
        (report,) = (await client.ask("run_status", {"run_ids": [first["run_id"]], "until": "attention"}))["runs"]
        assert (report["status"], report["output"]["mandate_status"]) == ("paused", "paused_goal_drift")
        assert report["next"]["arguments"]["action"] == "cancel"
        assert await statuses(client) == {"links": ("paused_goal_drift", None)}
        await client.ask("run_control", {"run_id": first["run_id"], "action": "resume"})
        (report,) = (await client.ask("run_status", {"run_ids": [first["run_id"]], "until": "attention"}))["runs"]
        assert report["output"]["mandate_status"] == "paused_goal_drift"
        await client.ask("run_control", report["next"]["arguments"])
        (report,) = (await client.ask("run_status", {"run_ids": [first["run_id"]], "until": "done"}))["runs"]
        assert (report["status"], report["output"]["mandate_status"]) == ("cancelled", "interrupted")
        assert await statuses(client) == {"links": ("interrupted", "interrupted")}
    paths = [path for (path,) in place.rows("select path from step where path like 'cycle-2%' order by id")]
    assert paths == ["cycle-2/goal-1", "cycle-2/drift-1", "cycle-2/goal-2", "cycle-2/drift-2"]
    assert page(place) == PAGE.replace("oen", "one")


async def test_a_risk_above_the_budget_pauses_and_is_then_recorded_as_denied(place, era):
    (place.workspace / "AGENTS.md").write_text("Be kind.\n")
    risky = {"action": "create_file", "target": "prompts/new.md", "content": "x", "intent": "instruct"}
    mandate = {**FREE, "max_cycles": 1, "allowed_actions": ["create_file"]}
    async with open_scripted_client(place, era, orientation_line(), gives(risky), judgement_line()) as client:
        report = await run_mandate(client, mandate)
        assert report["output"]["mandate_status"] == "paused_risk_exceeded"
        await client.ask("run_control", report["next"]["arguments"])
        (done,) = (await client.ask("run_status", {"run_ids": [report["run_id"]], "until": "done"}))["runs"]
        assert [each["status"] for each in done["output"]["cycles"]] == ["denied"]
        assert not (place.workspace / "prompts").exists()


async def test_checks_judge_when_the_goal_is_reached(place, era):
    (place.workspace / "image.bin").write_bytes(b"\0\xff" * 700_000 + "GELB\u00e9".encode() + b"\0" * 100)
    checks = [
        {"check": "file_contains", "path": "docs/index.md", "text": "one.md"},
        {"check": "file_contains", "path": "image.bin", "text": "GELB\u00e9"},
        {"check": "file_exists", "path": "a.txt"},
    ]
    lines = (*cycle(edit("oen.md", "eins.md")), *cycle(edit("eins.md", "one.md")))
    async with open_scripted_client(place, era, *lines, gate=EDITS_ALLOWED) as client:
        done = await run_mandate(client, {**FREE, "acceptance": checks})
        holds = [[check["holds"] for check in each["reflection"]["checks"]] for each in done["output"]["cycles"]]
        assert holds == [[False, True, True], [True, True, True]]
        assert done["stop_reason"] == "goal_achieved"


@pytest.mark.state_file("it takes the file away in between")
async def test_two_cycles_that_fail_end_it_and_so_do_two_that_find_nothing_to_do(place, era):
    stale = [{"content": "nothing", "finish": "stop"}] * 3
    async with open_scripted_client(place, era, *stale, *stale) as client:
        done = await run_mandate(client, FREE)
        assert (done["status"], done["stop_reason"]) == ("stopped", "error_threshold")
        assert done["output"]["mandate_status"] == "terminated"
    place.home.joinpath("kairos.db").unlink()
    async with open_scripted_client(place, era, *cycle(noop()), *cycle(noop())) as client:
        for _ in range(4):  # run after run: what is kept needs nothing
            done = await run_mandate(client, FREE)
            assert (done["status"], done["stop_reason"]) == ("completed", "nothing_to_do")
            assert (done["output"]["mandate_status"], done["output"]["reason"]) == ("terminated", "nothing_to_do")


async def test_a_stretch_without_a_person_has_sixty_calls_and_five_minutes(place, era):
    async with open_scripted_client(place, era, *MENDED, gate=EDITS_ALLOWED) as client:
        first = await run_mandate(client)
        spent = first["usage"]["model_calls"]
        assert first["remaining"]["model_calls"] == 60 - spent
        assert 299 < first["remaining"]["seconds"] <= 300
        await client.ask("run_control", {"run_id": first["run_id"], "action": "resume"})
        (second,) = (await client.ask("run_status", {"run_ids": [first["run_id"]], "until": "attention"}))["runs"]
        assert second["remaining"]["model_calls"] == 60 - second["usage"]["model_calls"]  # it may have been a model
        limited = {**FREE, "id": "limited", "limits": {"model_calls": 2}}
        done = await run_mandate(client, limited)
        assert (done["status"], done["stop_reason"]) == ("stopped", "budget")
        assert done["output"]["mandate_status"] == "interrupted"
        assert (done["next"]["tool"], done["next"]["arguments"]) == ("ooda_run", {"mandate_id": "limited"})


async def test_a_mandates_own_tools_never_change_files(place, era):
    mandate = {**FREE, "tools": ["*"], "allowed_actions": ["run_tool"], "risk_budget": "medium"}
    sly = {"action": "run_tool", "tool": "write_file", "arguments": {"path": "x", "content": "y"}, "intent": "slip by"}
    async with open_scripted_client(place, era, orientation_line(), *[gives(sly)] * 3, gate=EDITS_ALLOWED) as client:
        done = await run_mandate(client, {**mandate, "max_cycles": 1})
        assert [each["status"] for each in done["output"]["cycles"]] == ["parse_error"]
        assert (done["status"], done["output"]["reason"]) == ("failed", "max_cycles_reached")
        assert any("edit_file" in note for note in done["degraded"])
    assert not (place.workspace / "x").exists()


async def test_what_flows_call_themselves_is_offered_to_nobody(place, era):
    async with open_scripted_client(place, era, orientation_line()) as client:
        for name in ("read_mandate", "check_file", "apply_edits"):
            result = await client.sdk_client.call_tool("registry_call", {"name": name, "arguments": {}})
            assert result.structured_content["code"] == "unknown_tool"
            started = await client.sdk_client.call_tool("planner_run", {"goal": "x", "tools": [name]})
            assert started.structured_content["code"] == "unknown_tool"


async def test_a_rule_of_the_gate_may_be_for_one_mandate(place, era):
    from kairos_mcp.settings.table_values import GateRule

    rules = (GateRule("edit_file", "allow", mandate="links"), GateRule("edit_file", "deny", mandate="other*"))
    lines = (*cycle(edit("oen.md", "one.md")),)
    async with open_scripted_client(place, era, *lines, gate=rules) as client:
        other = await run_mandate(client, {**FREE, "id": "other-1", "max_cycles": 1})
        ours = await run_mandate(client, {**FREE, "max_cycles": 1})
        assert [run["output"]["cycles"][0]["status"] for run in (other, ours)] == ["denied", "applied"]


async def test_a_mandate_is_saved_listed_and_found_again(place, era):
    async with open_scripted_client(place, era, orientation_line()) as client:
        saved = await client.ask("mandate_save", {"mandate": MANDATE})
        assert (saved["mandate_id"], saved["status"], saved["changed"]) == ("links", "created", True)
        assert not (await client.ask("mandate_save", {"mandate": MANDATE}))["changed"]
        unnamed = await client.ask("mandate_save", {"mandate": {"goal": "Tidy up."}})
        assert unnamed["mandate_id"] == f"m-{unnamed['digest'][:12]}"
        listed = await client.ask("mandate_list", {"status": "created"})
        assert [each["mandate_id"] for each in listed["mandates"]] == ["links", unnamed["mandate_id"]]
        assert (await client.ask("mandate_list", {"status": "terminated"}))["mandates"] == []
        missing = await client.sdk_client.call_tool("ooda_run", {"mandate_id": "nobody"})
        assert missing.structured_content["code"] == "unknown_mandate"
        absent = {"id": "later", "goal": "Tidy up.", "observe": ["nope"], "tools": ["zzz*", "read_file"]}
        report = (await client.ask("mandate_save", {"mandate": absent}))["degraded"]
        assert ["nope" in report[0], "zzz*" in report[1], len(report)] == [True, True, 2]
        looks = {"id": "looks", "goal": "Tidy up.", "observe": ["file_tree", "nope", "edit_file", "nope"]}
        report = (await client.ask("mandate_save", {"mandate": looks}))["degraded"]
        assert [("skipped" in note, "refused" in note) for note in report] == [(True, False)] * 2
        seen = (await client.ask("ooda_observe", {"mandate_id": "looks"}))["output"]["observations"]
        assert [each["status"] for each in seen] == ["result", "skipped", "skipped", "skipped"]
