"""A mandate's cycles are the same whoever thinks; and a command that judges them is approved once for a mandate."""

from __future__ import annotations

import json

import pytest
from support.app import asked_digests, assert_all_lawful
from support.cycles import EDITS_ALLOWED, MANDATE, MENDED, PAGE, cycle, noop, open_scripted_client, page
from support.reviewers import UNHURRIED, Person, accepts, connect_person
from support.sampling_clients import ClientModel

from kairos_mcp.app.app import App

FREE = {**MANDATE, "checkpoint_every": 3}
WHOLE = PAGE.replace("oen", "one").replace("tow", "two").replace("trhee", "three")


async def test_the_steps_are_the_same_on_every_route(place, era):
    asked, seen = {}, {}
    async with open_scripted_client(place, era, *MENDED, gate=EDITS_ALLOWED) as client:
        asked["scripted"] = await client.ask("ooda_run", {"mandate": FREE})
    (place.workspace / "docs" / "index.md").write_text(PAGE)
    async with open_scripted_client(place, era, gate=EDITS_ALLOWED) as client:
        run = await client.ask("ooda_run", {"mandate": {**FREE, "id": "by-caller"}, "route": "caller"})
        turns = iter(MENDED)
        while run["status"] == "input_required":
            (item,) = run["waiting"]
            run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {item["key"]: next(turns)}})
        asked["caller"] = run
    (place.workspace / "docs" / "index.md").write_text(PAGE)
    texts = [json.dumps({"final": line["content"]}) for line in MENDED]
    async with App.open(place.settings(gate=EDITS_ALLOWED), via="mcp") as app:
        async with connect_person(app, era, None, patience=UNHURRIED, model=ClientModel(texts)) as client:
            run = await client.ask("ooda_run", {"mandate": {**FREE, "id": "by-client"}, "route": "sampling"})
            if run["status"] == "input_required":  # eight rounds of one call are the most
                run = await client.ask("run_continue", run["next"]["arguments"])
            asked["sampling"] = run
        await assert_all_lawful(app)
    for route, run in asked.items():
        assert (run["stop_reason"], run["route"]) == ("max_cycles_reached", route), run
        assert [each["status"] for each in run["output"]["cycles"]] == ["applied"] * 3
        digests = asked_digests(place, run["run_id"])
        seen[route] = {path: digest for path, digest in digests.items() if "/goal-" not in path}
    assert seen["scripted"] == seen["caller"] == seen["sampling"]
    assert page(place) == WHOLE


async def test_a_command_that_judges_is_approved_once_for_a_version_of_the_mandate(place, era):
    check = {"check": "command_succeeds", "argv": ["grep", "-q", "three.md", "docs/index.md"]}
    mandate = {**FREE, "acceptance": [check]}
    person = Person([accepts(decision="approve")] * 2)
    bare = {"gate": EDITS_ALLOWED, "commands": "bare"}
    async with open_scripted_client(place, era, *MENDED, person=person, **bare) as client:
        done = await client.ask("ooda_run", {"mandate": mandate})
        holds = [each["reflection"]["checks"][0]["holds"] for each in done["output"]["cycles"]]
        assert (holds, done["stop_reason"]) == ([False, False, True], "goal_achieved")
        assert len(person.seen) == 1
        calls = (await client.ask("run_trace", {"run_id": done["run_id"], "view": "calls"}))["items"]
        assert [each["name"] for each in calls[:6]] == [
            *("read_mandate", "run_command", "file_tree", "read_file", "read_file", "edit_file")
        ]
        (place.workspace / "docs" / "index.md").write_text(PAGE)
        other = {**mandate, "goal": "Another goal.", "max_cycles": 1}
        again = await client.ask("ooda_run", {"mandate": other, "route": "scripted"})
        assert again["status"] in ("completed", "stopped", "failed")
        assert len(person.seen) == 2


async def test_a_mandate_whose_acceptance_holds_asks_no_model(place, era):
    check = {"check": "file_contains", "path": "docs/index.md", "text": "oen.md"}
    async with open_scripted_client(place, era) as client:  # without a script: a completion would wait for the caller
        done = await client.ask("ooda_run", {"mandate": {**MANDATE, "acceptance": [check]}, "route": "caller"})
        assert (done["status"], done["stop_reason"]) == ("completed", "goal_achieved")
        assert (done["usage"]["model_calls"], done["output"]["cycles"]) == (0, [])
    assert place.rows("select path, kind from step order by id") == [
        ("cycle-1/goal-1", "call"),
        ("start/check-1", "call"),
    ]


@pytest.mark.sandbox
async def test_an_approved_check_does_not_let_an_act_through(place, era):
    argv = ["touch", "made.txt"]
    mandate = {**FREE, "acceptance": [{"check": "command_succeeds", "argv": argv}], "risk_budget": "medium"}
    person = Person([accepts(decision="approve")])
    async with open_scripted_client(place, era, *cycle(noop()), person=person, commands="bare") as client:
        await client.ask("ooda_run", {"mandate": {**mandate, "max_cycles": 1}})
    async with open_scripted_client(place, era) as client:
        waits = await client.ask("registry_call", {"name": "run_command", "arguments": {"argv": argv}})
        assert [item["kind"] for item in waits["waiting"]] == ["approval"]
