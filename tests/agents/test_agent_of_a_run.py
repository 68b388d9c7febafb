"""A planner run of an agent: its prompt, its tools, its model and its rounds, and its name on all that the run does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.app import ME, PERSON, Place, answer_run, reads, rests, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments, ConfigError, UnknownAgent
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.folders import packaged_folder
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule

MORE = "request_more_rounds"


def put_agent(place: Place, text: str = "", **keys: str) -> None:
    """Write the user's agent `mine`."""
    lines = {"name": "mine", "description": "Does it.", **keys}
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    head = "".join(f"{key}: {value}\n" for key, value in lines.items())
    (folder / "mine.md").write_text(text or f"---\n{head}---\nYou are mine.\n")


async def item_of(app: App, run_id: str) -> dict[str, Any]:
    """What the run's first completion asks."""
    (item,) = (await app.runs.report(run_id, ME)).waiting
    return item


def spec_of(place: Place) -> dict[str, Any]:
    ((text,),) = place.rows("select spec from run")
    return json.loads(text)


def edits(path: str) -> dict[str, Any]:
    arguments = {"path": path, "old_string": "alpha", "new_string": "omega"}
    return {"tool_calls": [{"name": "edit_file", "arguments": arguments}]}


async def test_the_model_is_given_the_agent_s_prompt_and_its_tools(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        item = await item_of(app, await start_run(app, agent="code_analyzer", route="caller"))
    text = (packaged_folder("config") / "agents" / "code_analyzer.md").read_text()
    assert item["system"] == text.split("---\n", 2)[2].strip()
    assert {tool["name"] for tool in item["tools"]} == {
        *("list_files", "file_tree", "read_file", "search_files", "read_result", "read_skill", "request_more_rounds")
    }
    assert spec_of(place)["agent"] == "code_analyzer"


@pytest.mark.parametrize(("limits", "offered"), [({}, True), ({"model_calls": 9}, True), ({"rounds": 4}, False)])
async def test_an_agent_may_ask_for_more_rounds_than_its_own_but_not_past_those_that_the_caller_gave(
    place: Place, limits: dict[str, int], offered: bool
) -> None:
    put_agent(place, tools="[read_file]", max_rounds="3")
    async with App.open(place.settings(), via="mcp") as app:
        item = await item_of(app, await start_run(app, agent="mine", route="caller", limits=Limits(**limits)))
    assert (MORE in [tool["name"] for tool in item["tools"]]) is offered
    assert spec_of(place).get("grants_rounds", False) is offered


async def test_a_run_without_an_agent_is_as_before(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await start_run(app)
    assert "agent" not in spec_of(place)
    assert [json.loads(sent).get("agent") for (sent,) in place.rows("select sent from step")] == [None]


@pytest.mark.parametrize(
    ("keys", "limits", "rounds"),
    [
        ({}, {}, 10),
        ({"max_rounds": "3"}, {}, 3),
        ({"max_rounds": "3"}, {"rounds": 7}, 7),
        ({"max_rounds": "500"}, {}, 100),
    ],
)
async def test_its_rounds_are_those_of_its_file_unless_the_caller_says(
    place: Place, keys: dict[str, str], limits: dict[str, int], rounds: int
) -> None:
    put_agent(place, **keys)
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, agent="mine", route="caller", limits=Limits(**limits))
        report = await app.runs.report(run_id, ME)
    assert report.remaining["rounds"] == rounds - 1
    assert any("100 allowed" in note for note in report.degraded) == (rounds == 100)


async def test_tools_only_narrows_what_the_agent_has(place: Place) -> None:
    put_agent(place, tools="[read_file, 'edit_*']")
    async with App.open(place.settings(), via="mcp") as app:
        item = await item_of(app, await start_run(app, agent="mine", route="caller", tools=("*_file",)))
        assert [tool["name"] for tool in item["tools"]] == ["read_file", "edit_file", MORE]
        with pytest.raises(BadArguments, match="'write_file' is no tool of the agent mine"):
            await start_run(app, agent="mine", tools=("read_file", "write_file"))


async def test_what_is_not_among_its_tools_is_refused_when_it_is_called(place: Place) -> None:
    put_agent(place, tools="[read_file]")
    allow = GateRule("*", "allow")
    async with App.open(place.settings(edits("a.txt"), says("done"), gate=(allow,)), via="mcp") as app:
        report = await rests(app, await start_run(app, agent="mine"))
    assert report.status == "completed"
    assert [call["ok"] for call in report.calls] == [False]
    assert (place.workspace / "a.txt").read_text() == "alpha\n"


async def test_every_step_is_the_agent_s_for_rules_of_the_gate(place: Place) -> None:
    put_agent(place, tools="[edit_file, read_file]")
    rules = (GateRule("edit_file", "allow", agent="mine"), GateRule("read_file", "deny", ("b.txt",), agent="m*"))
    async with App.open(place.settings(edits("a.txt"), reads("b.txt"), says("done"), gate=rules), via="mcp") as app:
        report = await rests(app, await start_run(app, agent="mine"))
        (place.workspace / "a.txt").write_text("alpha\n")
        other = await rests(app, await start_run(app, "again", tools=("edit_file", "read_file")))
    assert [call["ok"] for call in report.calls] == [True, False]
    assert other.status == "input_required"  # nobody else may edit unasked


async def test_what_it_used_is_its_own_in_the_day_s_account(place: Place) -> None:
    async with App.open(place.settings(says("one"), says("two")), via="mcp") as app:
        await start_run(app, agent="general")
        await start_run(app, "another", agent=None)
        shares = (await app.records.read_spending("day", ME))["by"]
    assert sorted((each["agent"] or "", each["attempts"]) for each in shares) == [("", 1), ("general", 1)]


async def test_it_is_still_the_agent_s_after_the_process_was_replaced(place: Place) -> None:
    put_agent(place, tools="[edit_file]")
    settings = place.settings(gate=(GateRule("edit_file", "allow", agent="mine"),))
    async with App.open(settings, via="mcp") as app:
        run_id = await start_run(app, agent="mine", route="caller")
    put_agent(place, "changed")  # what was frozen holds
    async with App.open(settings, via="mcp") as app:
        await answer_run(app, run_id, round_1=edits("a.txt"))
        assert (await item_of(app, run_id))["system"] == "You are mine."
    assert (place.workspace / "a.txt").read_text() == "omega\n"
    agents = {json.loads(sent).get("agent") for (sent,) in place.rows("select sent from step where kind <> 'call'")}
    assert agents == {"mine"}


async def test_one_that_is_disabled_starts_nothing_and_says_what_to_fix(place: Place) -> None:
    put_agent(place, tools="[red_file]")
    async with App.open(place.settings(), via="mcp") as app:
        with pytest.raises(ConfigError, match="The agent mine is disabled: No tool matches 'red_file'"):
            await start_run(app, agent="mine")
        with pytest.raises(UnknownAgent) as unknown:
            await start_run(app, agent="generall")
        with pytest.raises(BadArguments, match="agent and system"):
            await start_run(app, agent="general", system="You are another.")
        assert "general" in unknown.value.hint
    assert not place.db.exists() or place.rows("select count(*) from run") == [(0,)]


async def test_two_starts_that_differ_in_the_agent_are_two_runs(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        runs = [
            await app.runs.start(PlannerRequest("look", agent=agent, route="caller"), ME)
            for agent in (None, "general", "code_analyzer", "general")
        ]
    assert [run.attached for run in runs] == [False, False, False, True]
    assert runs[3].run_id == runs[1].run_id


@pytest.mark.parametrize(
    ("asked", "model", "note"),
    [
        (
            {},
            "openai:gpt-5",
            "agent mine: its model 'sonnet' names no provider; openai:gpt-5 is asked.",
        ),
        ({"model": "openai:o3"}, "openai:o3", None),
    ],
)
async def test_a_model_that_no_provider_has_is_a_hint_alone(
    place: Place, asked: dict[str, Any], model: str, note: str | None
) -> None:
    put_agent(place, model="sonnet")
    async with App.open(with_provider(place.settings()), via="mcp") as app:
        started_run = await app.runs.start(PlannerRequest("look", agent="mine", **asked), ME)
        report = await app.runs.report(started_run.run_id, ME)
        await app.control.cancel(started_run.run_id, ME)
    assert spec_of(place)["model"] == model
    assert [text for text in report.degraded if text.startswith("agent ")] == ([] if note is None else [note])


async def test_its_model_is_the_one_that_is_asked(place: Place) -> None:
    put_agent(place, model="openai:gpt-5-mini")
    async with App.open(with_provider(place.settings()), via="mcp") as app:
        run = await app.runs.start(PlannerRequest("look", agent="mine"), ME)
        await app.control.cancel(run.run_id, ME)
    assert spec_of(place)["model"] == "openai:gpt-5-mini"


@pytest.mark.slow
async def test_the_same_words_are_the_same_model_where_it_is_the_agent_s(place: Place) -> None:
    put_agent(place, model="openai:gpt-5-mini")
    settings = replace(with_provider(place.settings()), route="auto")
    async with App.open(settings, via="command") as app:
        run_id = await start_run(app, agent="mine")  # nobody answers: it is paused, to ask again later
        found = [
            await app.control.compare_model(run_id, PlannerRequest("look around", agent=agent), PERSON)
            for agent in ("mine", None)
        ]
        await app.control.cancel(run_id, ME)
    assert [each.action for each in found] == ["again", "another"]


@pytest.mark.slow
async def test_what_an_agent_s_model_lacks_is_known_before_there_is_a_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_agent(place, model="anthropic:claude-x")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    async with App.open(replace(with_provider(place.settings()), base_url=None), via="command") as app:
        with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
            await app.runs.check_model(PlannerRequest("look", agent="mine"))


@pytest.mark.unreplayed
async def test_a_damaged_prompt_of_an_agent_is_made_again_from_its_file(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = await start_run(app, agent="general", route="caller")
        whole = await item_of(app, run_id)
    place.rows("update text set body = 'x' where hash = ?", spec_of(place)["system_text"])
    async with App.open(place.settings(), via="mcp") as app:
        assert (await item_of(app, run_id))["system"] == whole["system"]


async def test_an_agent_of_the_workspace_is_used_as_it_is_named(place: Place) -> None:
    folder = place.workspace / ".claude" / "agents"
    folder.mkdir(parents=True)
    (folder / "reviewer.md").write_text(
        "---\nname: reviewer\ndescription: x\ntools: Read\ncolor: red\n---\nYou review.\n"
    )
    async with App.open(place.settings(claude_agents=True), via="mcp") as app:
        run_id = await start_run(app, agent="claude:reviewer", route="caller")
        item, report = await item_of(app, run_id), await app.runs.report(run_id, ME)
    assert [note for note in report.degraded if note.startswith("agent ")] == [
        "agent claude:reviewer: of .claude/agents/reviewer.md is left out: the key color."
    ]
    assert item["system"] == "You review."
    assert [tool["name"] for tool in item["tools"]] == ["read_file", "read_result", MORE]


def with_provider(settings: Settings) -> Settings:
    """The settings with a provider that nothing answers for."""
    return replace(settings, model="openai:gpt-5", base_url="http://127.0.0.1:9", route="provider")
