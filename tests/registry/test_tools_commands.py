"""`kairos-mcp tools …` as real processes: what they list and decide, which files they write, what they start."""

from __future__ import annotations

import json
import stat
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, rests
from support.registry import Desk, listed

from kairos_mcp.app.app import App
from kairos_mcp.cli.session import PERSON
from kairos_mcp.cli.tools import import_tools
from kairos_mcp.core.errors import UnknownTool
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.settings.settings import Flags
from kairos_mcp.store.tool_pins import DefinitionTable
from kairos_mcp.tools.mcp_servers.definition import read_listing

DOCUMENT = {
    "openapi": "3.0.0",
    "info": {"title": "pets", "version": "1"},
    "servers": [{"url": "https://pets.example"}],
    "paths": {
        "/pets/{id}": {
            "get": {
                "operationId": "getPet",
                "summary": "One pet.",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            }
        }
    },
}


def tools(desk: Desk) -> dict[str, dict[str, Any]]:
    return {
        tool["name"] + ("" if tool["state"] == "offered" else "?"): tool
        for tool in desk("tools", "list", "--json").json["tools"]
    }


async def met(desk: Desk, *then: dict[str, Any]) -> None:
    """The server was met; then it was started again, listed other tools, and the call that started it was refused."""
    settings = desk.place.settings(servers=(desk.server(),))
    async with App.open(settings, via="mcp") as app:
        await app.tools.list_all()
    if then:
        desk.lists(*then)
        async with App.open(settings, via="mcp") as app:
            report = await rests(app, await app.runs.start_call("x__echo", {"text": "hi"}, ME))
        assert report.output["is_error"]


def test_the_list_has_ours_and_theirs(desk: Desk) -> None:
    desk.configured()
    first = tools(desk)
    assert {name: first[name]["effect"] for name in ("read_file", "x__echo", "x__write")} == {
        "read_file": "read",
        "x__echo": "read",
        "x__write": "irreversible",
    }
    assert first["x__echo"]["address"] == "x/echo"


async def test_a_changed_definition_waits_until_its_pin_is_approved(desk: Desk) -> None:
    desk.configured()
    await met(desk, listed("echo", "Says it, and sends it on."), listed("write"))
    assert desk.logged("call") == []
    waiting = [each["text"] for each in desk("doctor", "--json").json["findings"] if each["matter"] == "tools"]
    assert any("echo" in text for text in waiting)
    started = len(desk.logged("start"))

    looked = desk("tools", "approve", "x/echo", "--json")
    (pin,) = [each["pin"] for each in looked.json["definitions"] if each["state"] == "pending"]
    diff = looked.json["diff"].splitlines()
    assert looked.code == 3
    assert '-  "description": "Says it.",' in diff
    assert '+  "description": "Says it, and sends it on.",' in diff
    other = pin[:-1] + ("0" if pin[-1] != "0" else "1")
    assert desk("tools", "approve", "x/echo", "--pin", other).code == 1
    assert desk("tools", "approve", "x/echo", "--pin", pin).code == 0
    assert len(desk.logged("start")) == started
    called = desk("tools", "call", "x__echo", '{"text": "hi"}', "--json")
    assert (called.code, called.json["flow"], called.json["output"]["content"]) == (0, "call", "hi")
    assert desk.place.rows("select count(*) from run") == [(2,)]


async def test_doctor_names_what_was_adopted_and_an_edited_command_line_asks(desk: Desk) -> None:
    desk.configured()
    reached = canonical_json([list(desk.argv), None, None])
    earlier = f"x@{sha256(reached.encode()).hexdigest()[:16]}"  # as pins were before the names of variables counted
    definition = read_listing("x", json.loads(desk.listing.read_text()), ("echo",)).definitions["echo"]
    async with App.open(desk.place.settings(), via="mcp") as app:
        DefinitionTable(app._store).record_listing(earlier, {"echo": (definition.hash, definition.body)}, 1)

    found = desk("doctor", "--json").json["findings"]
    assert [each for each in found if each["text"].startswith("x: ") and "adopted" in each["text"]]
    async with App.open(desk.place.settings(servers=(desk.server(),)), via="mcp") as app:
        assert (await rests(app, await app.runs.start_call("x__echo", {"text": "hi"}, ME))).output["content"] == "hi"

    edited = desk.place.settings(servers=(desk.server(env=(("MODE", "a"),)),))
    async with App.open(edited, via="mcp") as app:
        with pytest.raises(UnknownTool, match="approval"):
            await app.runs.start_call("x__echo", {"text": "hi"}, ME)
        assert not any("adopted" in note for note in await app.tools.source_notes())
        sheet = await app.tools.details("x/echo")
        assert "MODE" in " ".join(sheet.remarks)
        await app.tools.decide("x/echo", "approved", sheet.definitions[0].pin, PERSON)
        assert (await rests(app, await app.runs.start_call("x__echo", {"text": "hi"}, ME))).output["content"] == "hi"
    assert len(desk.logged("call")) == 2


async def test_what_a_person_removed_is_not_called(desk: Desk) -> None:
    desk.configured()
    await met(desk)
    assert desk("tools", "remove", "x/write").code == 0
    assert desk("tools", "call", "x__write", "{}").code == 2
    assert desk.logged("call") == []


def test_a_call_by_hand_passes_the_gate(desk: Desk) -> None:
    desk.configured()
    target = desk.place.root / "w"
    waits = desk("tools", "call", "x__write", json.dumps({"text": str(target)}), "--json")
    assert (waits.code, waits.json["status"]) == (3, "input_required")
    assert not target.exists()
    assert desk.logged("call") == []


@pytest.mark.parametrize(
    "words",
    [("tools", "call", "nothing"), ("tools", "call", "read_file", "[]"), ("tools", "import", "f", "--operation", "x")],
)
def test_a_wrong_name_or_no_object_is_a_wrong_use(desk: Desk, words: tuple[str, ...]) -> None:
    said = desk(*words)
    assert (said.code, said.out) == (2, "")


def test_show_has_the_whole_schema(desk: Desk) -> None:
    shown = desk("tools", "show", "read_file", "--json").json
    assert shown["tool"]["input_schema"]["properties"]["path"]
    assert shown["definitions"] == []


def test_servers_of_another_program_are_printed_and_written_only_on_request(desk: Desk) -> None:
    theirs = desk.place.workspace / ".mcp.json"
    theirs.write_text(
        json.dumps({"mcpServers": {"files": {"command": "npx", "args": ["a"], "env": {"K": "${SECRET}"}}}})
    )
    printed = desk("tools", "import", ".mcp.json")
    assert tomllib.loads(printed.out)["servers"]["files"]["env"] == {"K": "env:SECRET"}
    assert not desk.config.exists()
    written = desk("tools", "import", ".mcp.json", "--write")
    assert written.code == 0
    assert stat.S_IMODE(desk.config.stat().st_mode) == 0o600
    assert tomllib.loads(desk.config.read_text())["servers"]["files"]["command"] == "npx"
    before = desk.config.read_bytes()
    assert desk("tools", "import", ".mcp.json", "--write").code == 2  # it is there already
    assert desk.config.read_bytes() == before
    assert sorted(path.name for path in desk.config.parent.iterdir() if path.name.startswith(".kairos")) == []


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("claude_desktop_config.json", {"mcpServers": {"files": {"command": "npx", "args": ["a"]}}}),
        (".vscode/mcp.json", {"servers": {"files": {"command": "npx", "args": ["a"]}}}),
        (".cursor/mcp.json", {"mcpServers": {"files": {"command": "npx", "args": ["a"]}}}),
    ],
)
def test_each_program_s_file_is_known_by_its_name(desk: Desk, capsys: Any, path: str, content: dict[str, Any]) -> None:
    file = desk.place.workspace / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    assert import_tools(str(file), as_json=True, flags=Flags(home=str(desk.place.home))) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["names"] == ["files"]
    assert tomllib.loads(said["toml"])["servers"]["files"]["args"] == ["a"]


@pytest.mark.sandbox
def test_what_tools_say_of_themselves_is_imported_as_comments_that_a_person_confirms(desk: Desk, capsys: Any) -> None:
    log, listing = desk.place.workspace / "log", desk.place.workspace / "listing.json"  # what its sandbox shows
    looks, sets = {"readOnlyHint": True}, {"readOnlyHint": False, "idempotentHint": True}
    listing.write_text(
        json.dumps([listed("look", annotations=looks), listed("set.it", annotations=sets), listed("echo")])
    )
    program, peer, *_ = desk.argv
    server = {"command": program, "args": [peer, f"log={log}", f"listing={listing}"]}
    (desk.place.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": server}}))
    assert "look" not in desk("tools", "import", ".mcp.json").out
    assert not log.exists()  # without being told to, nothing is started
    flags = Flags(home=str(desk.place.home), workspaces=(str(desk.place.workspace),))
    assert import_tools(str(desk.place.workspace / ".mcp.json"), effects=True, write=True, flags=flags) == 0
    assert "approved" not in capsys.readouterr().err
    assert tomllib.loads(desk.config.read_text())["servers"]["files"] == server  # nothing of it counts yet
    assert not (desk.place.home / "kairos.db").exists()  # nor is anything pinned
    confirmed = desk.config.read_text().replace("# [servers.", "[servers.").replace('# "', '"')
    assert tomllib.loads(confirmed)["servers"]["files"]["effects"] == {"look": "read", "set.it": "idempotent"}


def test_a_server_that_does_not_start_is_imported_without_suggestions(desk: Desk) -> None:
    (desk.place.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": {"command": "/nowhere/x"}}}))
    said = desk("tools", "import", ".mcp.json", "--effects")
    assert (said.code, tomllib.loads(said.out)["servers"]) == (0, {"files": {"command": "/nowhere/x"}})
    assert "files" in said.err


def test_a_file_of_settings_that_would_break_stays_as_it_was(desk: Desk) -> None:
    desk.place.home.mkdir()
    desk.config.write_text('servers = { y = { command = "y" } }\n')
    theirs = desk.place.workspace / ".mcp.json"
    theirs.write_text(json.dumps({"mcpServers": {"files": {"command": "npx"}}}))
    before = desk.config.read_bytes()
    said = desk("tools", "import", ".mcp.json", "--write")
    assert said.code == 2
    assert desk.config.read_bytes() == before
    assert desk("tools", "import", "a.txt").code == 2


def test_an_operation_of_a_document_becomes_a_tool_that_is_listed(desk: Desk, capsys: Any) -> None:
    document = desk.place.workspace / "pets.json"
    document.write_text(json.dumps(DOCUMENT))
    assert import_tools(str(document), openapi=True, as_json=True, flags=Flags()) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["operations"]] == ["getPet"]
    assert import_tools(str(document), openapi=True, operation=["getPet"], flags=Flags()) == 0
    assert tomllib.loads(capsys.readouterr().out)["http_tools"][0]["name"] == "getPet"
    assert desk("tools", "import", "pets.json", "--openapi", "--operation", "getPet", "--reads", "--write").code == 0
    assert tools(desk)["getPet"]["effect"] == "read"


def test_doctor_names_servers_without_a_sandbox_and_tries_each_once(desk: Desk) -> None:
    desk.configured()
    said = [each["text"] for each in desk("doctor", "--json").json["findings"] if each["matter"] == "servers"]
    assert [text.startswith("UNSAFE: x ") for text in said].count(True) == 1
    assert (len(desk.logged("start")), desk.logged("call")) == (1, [])
    assert desk.place.rows("select count(*) from definition") == [(0,)]


def test_the_state_folder_is_not_the_only_place_for_settings(desk: Desk, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("default_rounds = 5")
    theirs = desk.place.workspace / ".mcp.json"
    theirs.write_text(json.dumps({"mcpServers": {"files": {"command": "npx"}}}))
    assert desk("tools", "import", ".mcp.json", "--write", "--config", str(other)).code == 0
    assert tomllib.loads(other.read_text()) == {"default_rounds": 5, "servers": {"files": {"command": "npx"}}}
