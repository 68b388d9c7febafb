"""`kairos-mcp tools …` as real processes: what they list and decide, which files they write, what they start."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, rests
from support.registry import Installation, tool_listing

from kairos_mcp.app.app import App
from kairos_mcp.cli.session import PERSON
from kairos_mcp.cli.tools import import_tools
from kairos_mcp.core.errors import UnknownTool
from kairos_mcp.settings.settings import Flags

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


def tools(installation: Installation) -> dict[str, dict[str, Any]]:
    return {
        tool["name"] + ("" if tool["state"] == "offered" else "?"): tool
        for tool in installation("tools", "list", "--json").json["tools"]
    }


async def meet_server(installation: Installation, *then: dict[str, Any]) -> None:
    """Start the server and ask it once; with other tools, start it again: the call that starts it is refused."""
    settings = installation.place.settings(servers=(installation.server(),))
    async with App.open(settings, via="mcp") as app:
        await app.tools.list_all()
    if then:
        installation.lists(*then)
        async with App.open(settings, via="mcp") as app:
            report = await rests(app, await app.runs.start_call("x__echo", {"text": "hi"}, ME))
        assert report.output["is_error"]


def test_the_list_has_ours_and_theirs(installation: Installation) -> None:
    installation.write_config()
    first = tools(installation)
    assert {name: first[name]["effect"] for name in ("read_file", "x__echo", "x__write")} == {
        "read_file": "read",
        "x__echo": "read",
        "x__write": "irreversible",
    }
    assert first["x__echo"]["address"] == "x/echo"


async def test_a_changed_definition_waits_until_its_pin_is_approved(installation: Installation) -> None:
    installation.write_config()
    await meet_server(installation, tool_listing("echo", "Says it, and sends it on."), tool_listing("write"))
    assert installation.log_lines("call") == []
    waiting = [each["text"] for each in installation("doctor", "--json").json["findings"] if each["matter"] == "tools"]
    assert any("echo" in text for text in waiting)
    started = len(installation.log_lines("start"))

    looked = installation("tools", "approve", "x/echo", "--json")
    (pin,) = [each["pin"] for each in looked.json["definitions"] if each["state"] == "pending"]
    diff = looked.json["diff"].splitlines()
    assert looked.code == 3
    assert '-  "description": "Says it.",' in diff
    assert '+  "description": "Says it, and sends it on.",' in diff
    other = pin[:-1] + ("0" if pin[-1] != "0" else "1")
    assert installation("tools", "approve", "x/echo", "--pin", other).code == 2
    assert installation("tools", "approve", "x/echo", "--pin", pin).code == 0
    assert len(installation.log_lines("start")) == started
    called = installation("tools", "call", "x__echo", '{"text": "hi"}', "--json")
    assert (called.code, called.json["flow"], called.json["output"]["content"]) == (0, "call", "hi")
    assert installation.place.rows("select count(*) from run") == [(2,)]


async def test_an_edited_command_line_asks(installation: Installation) -> None:
    installation.write_config()
    async with App.open(installation.place.settings(servers=(installation.server(),)), via="mcp") as app:
        assert (await rests(app, await app.runs.start_call("x__echo", {"text": "hi"}, ME))).output["content"] == "hi"

    edited = installation.place.settings(servers=(installation.server(env=(("MODE", "a"),)),))
    async with App.open(edited, via="mcp") as app:
        with pytest.raises(UnknownTool, match="approval"):
            await app.runs.start_call("x__echo", {"text": "hi"}, ME)
        sheet = await app.tools.details("x/echo")
        assert "MODE" in " ".join(sheet.remarks)
        await app.tools.decide("x/echo", "approved", sheet.definitions[0].pin, PERSON)
        assert (await rests(app, await app.runs.start_call("x__echo", {"text": "hi"}, ME))).output["content"] == "hi"
    assert len(installation.log_lines("call")) == 2


async def test_what_a_person_removed_is_not_called(installation: Installation) -> None:
    installation.write_config()
    await meet_server(installation)
    assert installation("tools", "remove", "x/write").code == 0
    assert installation("tools", "call", "x__write", "{}").code == 2
    assert installation.log_lines("call") == []


def test_a_call_by_hand_passes_the_gate(installation: Installation) -> None:
    installation.write_config()
    target = installation.place.root / "w"
    waits = installation("tools", "call", "x__write", json.dumps({"text": str(target)}), "--json")
    assert (waits.code, waits.json["status"]) == (3, "input_required")
    assert not target.exists()
    assert installation.log_lines("call") == []


@pytest.mark.parametrize(
    "words",
    [("tools", "call", "nothing"), ("tools", "call", "read_file", "[]"), ("tools", "import", "f", "--operation", "x")],
)
def test_a_wrong_name_or_no_object_is_a_wrong_use(installation: Installation, words: tuple[str, ...]) -> None:
    said = installation(*words)
    assert (said.code, said.out) == (2, "")


def test_show_has_the_whole_schema(installation: Installation) -> None:
    shown = installation("tools", "show", "read_file", "--json").json
    assert shown["tool"]["input_schema"]["properties"]["path"]
    assert shown["definitions"] == []


def test_servers_of_another_program_are_printed_and_written_only_on_request(installation: Installation) -> None:
    theirs = installation.place.workspace / ".mcp.json"
    theirs.write_text(
        json.dumps({"mcpServers": {"files": {"command": "npx", "args": ["a"], "env": {"K": "${SECRET}"}}}})
    )
    printed = installation("tools", "import", ".mcp.json")
    assert tomllib.loads(printed.out)["servers"]["files"]["env"] == {}  # a person removes the # before it
    assert "files starts npx a" in printed.err
    assert "K asks for your env:SECRET" in printed.err
    assert not installation.config.exists()
    written = installation("tools", "import", ".mcp.json", "--write")
    assert written.code == 0
    assert stat.S_IMODE(installation.config.stat().st_mode) == 0o600
    assert tomllib.loads(installation.config.read_text())["servers"]["files"]["command"] == "npx"
    before = installation.config.read_bytes()
    assert installation("tools", "import", ".mcp.json", "--write").code == 2  # it is there already
    assert installation.config.read_bytes() == before
    assert sorted(path.name for path in installation.config.parent.iterdir() if path.name.startswith(".kairos")) == []


def test_a_server_that_settings_can_not_hold_is_named_and_the_others_are_written(installation: Installation) -> None:
    theirs = {
        "good": {"command": "npx", "args": ["a"]},
        "nowhere": {"command": "npx", "cwd": ""},
        "header": {"url": "https://x.test/mcp", "headers": {"bad name": "x"}},
        "half": {"command": "npx", "args": ["\ud83d"]},
        "text": "npx",
        "other": {"url": "https://y.test/mcp"},
    }
    (installation.place.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": theirs}))
    written = installation("tools", "import", ".mcp.json", "--write", "--json")
    assert written.code == 0
    assert sorted(tomllib.loads(installation.config.read_text())["servers"]) == ["good", "other"]
    notes = json.loads(written.out)["notes"]
    assert [note.split(": ")[:2] for note in notes] == [
        [name, "not imported"] for name in sorted(theirs.keys() - {"good", "other"})
    ]


KEYS = ("ghp_" + "a1B2" * 9, "hunter2plain", "pgword77", "k3yInQuery", "h3aderValue9")
HELD = {
    "a": {"command": "npx", "args": ["--token", KEYS[0], "--password", KEYS[1], "-e", f"PGPASSWORD={KEYS[2]}"]},
    "b": {"url": f"https://x.test/mcp?api_key={KEYS[3]}", "headers": {"X-Org": "acme", "X-Api-Key": KEYS[4]}},
}


def test_no_key_of_a_server_is_printed_by_import_or_doctor(installation: Installation) -> None:
    theirs = installation.place.workspace / ".mcp.json"
    theirs.write_text(json.dumps({"mcpServers": HELD}))
    printed = installation("tools", "import", ".mcp.json")
    assert [key for key in KEYS if key in printed.out + printed.err] == []
    assert tomllib.loads(printed.out)["servers"]["b"]["headers"]["X-Org"] == "acme"
    assert "X-Org" not in printed.err.partition("note:")[2]
    written = installation("tools", "import", ".mcp.json", "--write", "--json")
    assert [key for key in KEYS if key in written.out + written.err] == []
    assert [key for key in KEYS if key not in installation.config.read_text()] == []
    for words in ((), ("--all",), ("--json",)):
        shown = installation("doctor", "--offline", *words)
        assert [key for key in KEYS if key in shown.out + shown.err] == []


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("claude_desktop_config.json", {"mcpServers": {"files": {"command": "npx", "args": ["a"]}}}),
        (".vscode/mcp.json", {"servers": {"files": {"command": "npx", "args": ["a"]}}}),
        (".cursor/mcp.json", {"mcpServers": {"files": {"command": "npx", "args": ["a"]}}}),
    ],
)
def test_each_program_s_file_is_known_by_its_name(
    installation: Installation, capsys: Any, path: str, content: dict[str, Any]
) -> None:
    file = installation.place.workspace / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    assert import_tools(str(file), as_json=True, flags=Flags(home=str(installation.place.home))) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["names"] == ["files"]
    assert tomllib.loads(said["toml"])["servers"]["files"]["args"] == ["a"]


@pytest.mark.sandbox
def test_what_tools_say_of_themselves_is_imported_as_comments_that_a_person_confirms(
    installation: Installation,
) -> None:
    log, listing = (
        installation.place.workspace / "log",
        installation.place.workspace / "listing.json",
    )  # what its sandbox shows
    looks, sets = {"readOnlyHint": True}, {"readOnlyHint": False, "idempotentHint": True}
    listing.write_text(
        json.dumps(
            [tool_listing("look", annotations=looks), tool_listing("set.it", annotations=sets), tool_listing("echo")]
        )
    )
    program, peer, *_ = installation.argv
    server = {"command": program, "args": [peer, f"log={log}", f"listing={listing}"]}
    (installation.place.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": server}}))
    assert "look" not in installation("tools", "import", ".mcp.json").out
    assert not log.exists()  # without being told to, nothing is started
    words = ("tools", "import", ".mcp.json", "--effects", "--write")
    with installation.terminal(*words, HOME=os.environ["HOME"]) as person:  # where this interpreter may lie
        assert f"files starts {program} {peer}" in person.shows("[y/N] ").replace("\n", "")
        assert not log.exists()
        person.types("y")
        assert person.ends() == 0
        assert "approved" not in person.text
    assert tomllib.loads(installation.config.read_text())["servers"]["files"] == server  # nothing of it counts yet
    assert not (installation.place.home / "kairos.db").exists()  # nor is anything pinned
    confirmed = installation.config.read_text().replace("# [servers.", "[servers.").replace('# "', '"')
    assert tomllib.loads(confirmed)["servers"]["files"]["effects"] == {"look": "read", "set.it": "idempotent"}


def test_a_server_that_does_not_start_is_imported_without_suggestions(installation: Installation) -> None:
    (installation.place.workspace / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"files": {"command": "/nowhere/x"}}})
    )
    with installation.terminal("tools", "import", ".mcp.json", "--effects", "--write") as person:
        person.shows("[y/N] ")
        person.types("y")
        assert "files" in person.shows("written to")
        assert person.ends() == 0
    assert tomllib.loads(installation.config.read_text())["servers"] == {"files": {"command": "/nowhere/x"}}


@pytest.mark.parametrize("answer", ["n", "", None])
def test_no_server_of_others_is_started_unless_a_person_has_seen_what_it_is(
    installation: Installation, answer: str | None
) -> None:
    """`answer`: what is typed; None: nobody is there, as where a model calls the command."""
    started = installation.place.workspace / "started"
    server = {"command": "/bin/touch", "args": [str(started)], "env": {"K": "${PATH}"}}
    (installation.place.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": server}}))
    words = ("tools", "import", ".mcp.json", "--effects", "--write")
    if answer is None:
        for more in ((), ("--json",)):
            said = installation(*words, *more)
            assert (said.code, said.out) == (2, "")
            assert f"x starts /bin/touch {started}" in said.err
            assert "K asks for your env:PATH" in said.err
    else:
        with installation.terminal(*words) as person:
            person.shows("K asks for your env:PATH")
            person.shows("[y/N] ")
            person.types(answer)
            assert person.ends() != 0
    assert not started.exists()
    assert not installation.config.exists()


def test_a_file_of_settings_that_would_break_stays_as_it_was(installation: Installation) -> None:
    installation.place.home.mkdir()
    installation.config.write_text('servers = { y = { command = "y" } }\n')
    theirs = installation.place.workspace / ".mcp.json"
    theirs.write_text(json.dumps({"mcpServers": {"files": {"command": "npx"}}}))
    before = installation.config.read_bytes()
    said = installation("tools", "import", ".mcp.json", "--write")
    assert said.code == 2
    assert installation.config.read_bytes() == before
    assert installation("tools", "import", "a.txt").code == 2


def test_an_operation_of_a_document_becomes_a_tool_that_is_listed(installation: Installation, capsys: Any) -> None:
    document = installation.place.workspace / "pets.json"
    document.write_text(json.dumps(DOCUMENT))
    assert import_tools(str(document), openapi=True, as_json=True, flags=Flags()) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["operations"]] == ["getPet"]
    assert import_tools(str(document), openapi=True, operation=["getPet"], flags=Flags()) == 0
    assert tomllib.loads(capsys.readouterr().out)["http_tools"][0]["name"] == "getPet"
    assert (
        installation("tools", "import", "pets.json", "--openapi", "--operation", "getPet", "--reads", "--write").code
        == 0
    )
    assert tools(installation)["getPet"]["effect"] == "read"


def test_doctor_names_servers_without_a_sandbox_and_tries_each_once(installation: Installation) -> None:
    installation.write_config()
    said = [each["text"] for each in installation("doctor", "--json").json["findings"] if each["matter"] == "servers"]
    assert [text.startswith("UNSAFE: x ") for text in said].count(True) == 1
    assert (len(installation.log_lines("start")), installation.log_lines("call")) == (1, [])
    assert installation.place.rows("select count(*) from definition") == [(0,)]


def test_the_state_folder_is_not_the_only_place_for_settings(installation: Installation, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("default_rounds = 5")
    theirs = installation.place.workspace / ".mcp.json"
    theirs.write_text(json.dumps({"mcpServers": {"files": {"command": "npx"}}}))
    assert installation("tools", "import", ".mcp.json", "--write", "--config", str(other)).code == 0
    assert tomllib.loads(other.read_text()) == {"default_rounds": 5, "servers": {"files": {"command": "npx"}}}
