"""The prompts, as a host shows them: what they say, what completes their arguments, what is refused; in both eras."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from support.app import ME, Place, says, start_run
from support.sampling_clients import ERAS, provide_app

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.argument_completion import MAX_VALUES
from kairos_mcp.server.mcp_server import build_server, list_tools
from kairos_mcp.server.prompts import PROMPTS
from kairos_mcp.server.resources import OUTSIDE, TEMPLATES
from kairos_mcp.server.sender import set_principal
from kairos_mcp.settings.table_values import GateRule


@asynccontextmanager
async def open_app_and_client(place: Place, era: str, *lines: Any, **changes: Any) -> AsyncIterator[tuple[App, Client]]:
    settings = place.settings(*lines, **changes)
    async with (
        App.open(settings, via="mcp") as app,
        Client(build_server(provide_app(app), settings), mode=ERAS[era]) as client,
    ):
        yield app, client


def call_in(text: str) -> tuple[str, dict[str, Any]]:
    """The tool that a prompt names first, and its arguments."""
    line = next(line for line in text.splitlines() if line.startswith("1. Call `"))
    return line.split("`")[1], json.loads(line.partition("with: ")[2])


async def complete(client: Client, ref: Any, name: str, value: str, known: dict[str, str] | None = None) -> list[str]:
    return (await client.complete(ref, {"name": name, "value": value}, known)).completion.values


def prompt(name: str) -> wire.PromptReference:
    return wire.PromptReference(name=name)


def template(uri: str) -> wire.ResourceTemplateReference:
    return wire.ResourceTemplateReference(uri=uri)


async def test_the_call_that_a_prompt_leads_to_is_one_that_the_server_takes(place: Place, era: str) -> None:
    async with open_app_and_client(place, era, says("Done.")) as (app, client):
        listed = (await client.list_prompts()).prompts
        assert [each.name for each in listed] == ["plan", "run", "team", "ooda", "inbox"]
        assert all(each.title and each.description for each in listed)
        run_id = await start_run(app)
        given = {"goal": "Count\nthe files.", "agent": "", "tools": "read_file, search_files", "path": "a.txt",
                 "continues": run_id, "route": "caller"}  # fmt: skip
        made = await client.get_prompt("run", given)
        text, report = (message.content for message in made.messages)
        assert isinstance(text, wire.TextContent)
        tool, arguments = call_in(text.text)
        assert (tool, arguments) == (
            "planner_run",
            {"goal": "Count\nthe files.", "tools": ["read_file", "search_files"], "context": "Begin with a.txt.",
             "continues": run_id, "route": "caller"},
        )  # fmt: skip
        assert (await client.call_tool(tool, arguments)).structured_content["status"] == "input_required"
        assert isinstance(report, wire.EmbeddedResource)
        embedded = json.loads(report.resource.text)
        assert (embedded["note"], [run["run_id"] for run in embedded["runs"]]) == (OUTSIDE, [run_id])
        for name, goal in (("plan", {"agents": "general"}), ("team", {})):
            (message,) = (await client.get_prompt(name, {"goal": "g", **goal})).messages
            tool, arguments = call_in(message.content.text)
            assert arguments == {"goal": "g"} | ({"agents": ["general"]} if goal else {})
            assert tool in {each.name for each in list_tools("all").tools}
        (message,) = (await client.get_prompt("ooda", {"mandate": "links"})).messages
        assert call_in(message.content.text) == ("ooda_run", {"mandate_id": "links"})


async def test_the_inbox_prompt_embeds_what_waits_in_brief(place: Place, era: str) -> None:
    edit = {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}
    line = {"tool_calls": [{"name": "edit_file", "arguments": edit}]}
    async with open_app_and_client(place, era, line, says("Done.")) as (app, client):
        run_id = await start_run(app, tools=("edit_file",))
        _, embedded = (message.content for message in (await client.get_prompt("inbox")).messages)
        (row,) = json.loads(embedded.resource.text)["runs"]
        assert (row["run_id"], row["waiting"]) == (run_id, [{"key": "round-1/call-1/approval", "kind": "approval"}])
        assert "omega" not in embedded.resource.text
        assert await complete(client, prompt("inbox"), "run", "run-") == [run_id]


async def test_a_host_may_fill_the_text_in_itself(place: Place, era: str) -> None:
    """It gives each argument a placeholder, and puts what its user typed in place of those that the text holds."""
    async with open_app_and_client(place, era) as (_, client):
        for kind in PROMPTS:
            names = [each.name for each in kind.arguments]
            made = await client.get_prompt(kind.name, {name: f"${n}" for n, name in enumerate(names, 1)})
            text = made.messages[0].content.text
            required = {each.name: each for each in kind.arguments if each.is_required}
            assert [names[int(n) - 1] for n in re.findall(r"\$(\d+)", text)] == list(required)
            if required:
                expected = {each.tool_argument or name: f"${names.index(name) + 1}" for name, each in required.items()}
                assert call_in(text) == (kind.tool, expected)


async def test_a_wrong_prompt_is_refused_with_what_there_is(place: Place, era: str) -> None:
    async with open_app_and_client(place, era) as (_, client):
        wrong: list[tuple[str, dict[str, str], str]] = [
            ("walk", {}, "There are: plan, run, team, ooda, inbox"),
            ("run", {}, "needs goal. It takes: goal"),
            ("run", {"goal": " "}, "needs goal"),
            ("run", {"goal": "g", "gaol": "x"}, "has no argument 'gaol'"),
            ("run", {"goal": "g", "route": "sideways"}, "`route`"),
            ("plan", {"goal": "g", "route": "sideways"}, "It takes: goal, agents, route."),
            ("run", {"goal": "g", "continues": "run-000000000000"}, "There is no run"),
            ("ooda", {}, "needs mandate"),
        ]
        for name, given, message in wrong:
            with pytest.raises(MCPError) as refusal:
                await client.get_prompt(name, given)
            assert refusal.value.code == wire.INVALID_PARAMS
            assert message in refusal.value.error.message
        with pytest.raises(MCPError, match="cursor"):
            await client.list_prompts(cursor="x")


async def test_a_prompt_is_listed_with_its_tool(place: Place, era: str) -> None:
    async with open_app_and_client(place, era, tools="lean") as (_, client):
        assert [each.name for each in (await client.list_prompts()).prompts] == ["run", "inbox"]


async def test_names_ids_paths_and_enum_values_complete(place: Place, era: str) -> None:
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs" / "guide.md").write_text("x")
    (place.workspace / "docs" / "secret.md").write_text("x")
    hidden = (GateRule("*", "deny", paths=("docs/secret.md",)),)
    async with open_app_and_client(place, era, says("Done."), gate=hidden) as (app, client):
        run_id = await start_run(app)
        await app.mandates.save({"id": "links", "goal": "g"}, ME)
        run = prompt("run")
        assert await complete(client, run, "agent", "code") == ["code_analyzer"]
        assert await complete(client, prompt("team"), "agents", "general, FILE_M") == ["general, file_manager"]
        assert await complete(client, run, "tools", "read_file,search_f") == ["read_file,search_files"]
        assert await complete(client, run, "route", "s") == ["sampling", "scripted"]
        assert await complete(client, run, "continues", run_id[:6]) == [run_id]
        assert await complete(client, run, "path", "") == ["a.txt", "b.txt", "docs/"]
        assert await complete(client, run, "path", "docs/") == ["docs/guide.md"]
        assert await complete(client, run, "path", "../") == []
        assert await complete(client, run, "path", "/etc/") == []
        assert await complete(client, run, "goal", "any") == []
        assert await complete(client, prompt("ooda"), "mandate", "li") == ["links"]
        assert await complete(client, template("kairos://runs/{id}/diff"), "id", "") == [run_id]
        assert await complete(client, template("kairos://mandates/{id}"), "id", "") == ["links"]
        assert await complete(client, template("kairos://schema/{name}"), "name", "m") == ["mandate"]
        assert "planner-loop" in await complete(client, template("skill://{name}/SKILL.md"), "name", "")
        file = template("skill://{name}/{+path}")
        assert await complete(client, file, "path", "", {"name": "mandates"}) == ["SKILL.md"]
        assert await complete(client, file, "path", "") == []

        for ref, name, message in (
            (prompt("walk"), "goal", "There are: plan"),
            (run, "gaol", "It has: goal, agent"),
            (template("kairos://nothing/{id}"), "id", "There are: kairos://runs/{id}"),
            (template("kairos://runs/{id}"), "name", "It has: id"),
        ):
            with pytest.raises(MCPError) as refusal:
                await complete(client, ref, name, "")
            assert refusal.value.code == wire.INVALID_PARAMS
            assert message in refusal.value.error.message


async def test_no_more_values_are_sent_than_the_protocol_has_room_for(place: Place, era: str) -> None:
    for number in range(MAX_VALUES + 5):
        (place.workspace / f"file-{number:03}.txt").write_text("")
    async with open_app_and_client(place, era) as (_, client):
        found = (await client.complete(prompt("run"), {"name": "path", "value": "file-"})).completion
        assert (len(found.values), found.total, found.has_more) == (MAX_VALUES, MAX_VALUES + 5, True)


async def test_a_principal_completes_its_own(place: Place) -> None:
    async with open_app_and_client(place, "2026-07-28") as (app, client):
        hers = (await app.runs.start(PlannerRequest("hers", route="caller"), Caller("alice"))).run_id
        await app.mandates.save({"id": "hers", "goal": "g"}, Caller("alice"))
        for principal, ids, mandates in (("alice", [hers], ["hers"]), ("bob", [], [])):
            set_principal(principal)
            assert await complete(client, prompt("run"), "continues", "") == ids
            assert await complete(client, prompt("ooda"), "mandate", "") == mandates
        with pytest.raises(MCPError, match="There is no run"):
            await client.get_prompt("run", {"goal": "g", "continues": hers})
        set_principal(LOCAL)


def test_whatever_has_a_name_completes() -> None:
    from kairos_mcp.server.argument_completion import OF_URI

    assert set(OF_URI) == {(kind.name, name) for kind in TEMPLATES for name in kind.variables}
    free = {"goal"}
    assert all(each.names for kind in PROMPTS for each in kind.arguments if each.name not in free)
