"""Whole runs with tools of others: path rules, instructions and the server's own files hold for whatever form a path
is given in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, UNWATCHED, Place, meet_servers, place_in, rests, says
from support.downstream import PEER

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import GateRule, ServerSetting

PERSON = Caller(via="command", client="kairos-mcp")
KEY = "round-1/call-1/approval"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = place_in(tmp_path / "place")
    (place.workspace / "AGENTS.md").write_text("be kind\n")
    (place.workspace / "secrets").mkdir()
    (place.workspace / "secrets" / "key").write_text("k\n")
    return place


def server(place: Place, *more: str) -> ServerSetting:
    """A server whose tools take any arguments, and log that they were called."""
    listing = place.root / "listing.json"
    names = ("change", "echo", *more)
    listing.write_text(json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in names]))
    command = (sys.executable, str(PEER), f"log={place.root / 'log'}", f"listing={listing}")
    return ServerSetting("x", command, sandbox=False, effects=(("echo", "read"),))


def forms(place: Place, name: str) -> list[dict[str, Any]]:
    """A file of the workspace in the forms in which a tool of somebody else's may be given it."""
    path = place.workspace / name
    return [
        {"path": str(path)},
        {"path": f"../{place.workspace.name}/{name}"},
        {"text": f"file://{path}"},
        {"paths": ["a.txt", str(path)]},
        {"source": "a.txt", "destination": name},
        {"file_path": f"./{name}"},
        {"uri": path.as_uri()},
        {"options": {"target": [{"file": name}]}},
        {"text": f"a.txt/../{name}"},
        {"files": {name: "new text"}},
        {"text": name},
        {"path": str(path).replace("/", "%2F")},
    ]


def calling(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": "look", "tool_calls": [{"name": name, "arguments": arguments}]}


def logged_calls(place: Place) -> list[str]:
    log = place.root / "log"
    return [line for line in log.read_text().splitlines() if line.startswith("call")] if log.exists() else []


def codes(place: Place) -> list[str | None]:
    found = place.rows(
        "select body from answer join step on step.id = answer.step where step.kind = 'call' order by step.id"
    )
    return [json.loads(body).get("code") for (body,) in found]


async def run_with(app: App) -> str:
    run_id = (await (await meet_servers(app)).runs.start(PlannerRequest("use it", tools=("x__*",)), ME)).run_id
    await rests(app, run_id)
    return run_id


async def test_instructions_to_agents_are_asked_about_in_every_form_though_a_rule_allows_the_tool(place: Place) -> None:
    for number, arguments in enumerate(forms(place, "AGENTS.md")):
        settings = place.settings(
            calling("x__change", arguments),
            says("done"),
            servers=(server(place),),
            gate=(GateRule("x__change", "allow"),),
        )
        async with App.open(settings, via="mcp") as app:
            run_id = await run_with(app)
            report = await app.runs.report(run_id, ME)
        assert [item["kind"] for item in report.waiting] == ["approval"], (number, arguments)
        assert "touches" in report.waiting[0]["preview"]
    assert logged_calls(place) == []
    assert (place.workspace / "AGENTS.md").read_text() == "be kind\n"


async def test_a_deny_rule_on_paths_holds_in_every_form_for_what_reads_and_what_writes(place: Place) -> None:
    rules = (GateRule("x__*", "allow"), GateRule("x__change", "allow"), GateRule("*", "deny", ("secrets/**",)))
    for name in ("x__change", "x__echo"):
        calls = [{"name": name, "arguments": arguments} for arguments in forms(place, "secrets/key")]
        settings = place.settings(
            {"content": "look", "tool_calls": calls}, says("done"), servers=(server(place),), gate=rules
        )
        async with App.open(settings, via="mcp") as app:
            await run_with(app)
        assert set(codes(place)) == {"denied"}
    assert logged_calls(place) == []


async def test_the_servers_own_files_are_never_written_by_anybodys_tool(place: Place) -> None:
    (place.workspace / ".git").mkdir()
    (place.workspace / "link").symlink_to(place.home)
    own = [".git/hooks/x", str(place.home / "kairos.db"), "link/kairos.db", f"../{place.home.name}/new"]
    for path in own:
        settings = place.settings(
            calling("x__change", {"text": path}),
            says("done"),
            servers=(server(place),),
            gate=(GateRule("x__change", "allow"),),
        )
        async with App.open(settings, via="mcp") as app:
            await run_with(app)
    assert codes(place) == ["denied"] * len(own)
    assert logged_calls(place) == []


async def test_what_a_rule_allows_and_touches_nothing_else_is_called(place: Place) -> None:
    rules = (GateRule("x__change", "allow", ("docs/**",)),)
    settings = place.settings(
        calling(
            "x__change", {"path": "docs/a.md", "text": "/ and ~ may stand in a text", "link": "https://x.example/a"}
        ),
        calling("x__change", {"path": "docs/../a.txt"}),
        says("done"),
        servers=(server(place),),
        gate=rules,
        flow=UNWATCHED,
    )
    async with App.open(settings, via="mcp") as app:
        report = await app.runs.report(await run_with(app), ME)
    assert logged_calls(place) == ["call change"]
    assert [item["key"] for item in report.waiting] == ["round-2/call-1/approval"]


async def test_a_path_that_leads_elsewhere_since_a_person_approved_it_is_not_followed(place: Place) -> None:
    (place.workspace / "notes").symlink_to("a.txt")
    settings = place.settings(calling("x__change", {"path": "notes"}), says("done"), servers=(server(place),))
    async with App.open(settings, via="mcp") as app:
        run_id = await run_with(app)
        assert "a.txt" in (await app.runs.report(run_id, ME)).waiting[0]["preview"]
        (place.workspace / "notes").unlink()
        (place.workspace / "notes").symlink_to("AGENTS.md")
        await app.answers.decide(run_id, KEY, "approve", None, PERSON)
        await rests(app, run_id)
    assert (codes(place), logged_calls(place)) == (["stale_file"], [])


async def test_a_path_that_leads_elsewhere_between_the_gate_and_the_call_is_not_followed(place: Place) -> None:
    """The server has to be started again for the call, and its start makes the link lead to another file."""
    link = place.workspace / "notes"
    link.symlink_to("a.txt")
    command = server(place, "die").command
    swap = f"import os, runpy, sys\nif os.path.exists({str(place.root / 'log')!r}):\n"
    swap += f"    os.unlink({str(link)!r}); os.symlink('AGENTS.md', {str(link)!r})\n"
    swap += f"sys.argv[1:] = {list(command[2:])!r}; runpy.run_path({str(PEER)!r})"
    swapping = ServerSetting("x", (sys.executable, "-c", swap), sandbox=False)
    settings = place.settings(
        calling("x__die", {}),
        calling("x__change", {"path": "notes"}),
        says("done"),
        servers=(swapping,),
        gate=(GateRule("x__change", "allow"), GateRule("x__die", "allow")),
        flow=UNWATCHED,
    )
    async with App.open(settings, via="mcp") as app:
        await run_with(app)
    assert os.readlink(link) == "AGENTS.md"
    assert codes(place)[1] == "stale_file"
    assert logged_calls(place) == ["call die"]
