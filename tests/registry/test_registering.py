"""What an agent proposes and a person approves: real servers, the real command, a real local service."""

from __future__ import annotations

import asyncio
import http.server
import json
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, PERSON, open_checked_app, place_in, rests, says
from support.registry import PEER, Installation

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import ApprovalsFull, BadArguments, Denied, EgressDenied, KairosError, TooLarge, UnknownTool
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.store.tool_pins import MAX_PROPOSED
from kairos_mcp.tools import builtin_tools
from kairos_mcp.tools.tool import call_tool

PET = {
    "kind": "http_tool",
    "name": "pet",
    "description": "A pet by its id.",
    "url": "https://pets.example/pets/{id}",
    "parameters": [{"name": "id", "in": "path"}],
    "effect": "read",
}


class Pets:
    """A local service that tells of pets, and what it was asked."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None]] = []
        heard = self.heard

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append((self.path, self.headers["X-Api-Key"]))
                body = json.dumps({"pet": self.path.rpartition("/")[2]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.port = self.server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"


@pytest.fixture
def pets() -> Iterator[Pets]:
    made = Pets()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


def lists(installation: Installation, pets: Pets) -> None:
    """A person has listed the local service."""
    installation.place.home.mkdir(parents=True, exist_ok=True)
    installation.config.write_text(f'private_hosts = ["{pets.host}"]\n')


def spec(**changes: Any) -> dict[str, Any]:
    return {**PET, **changes}


def approve_words(proposed: Mapping[str, Any]) -> list[str]:
    """The words of the command that approves, behind the program's own."""
    return shlex.split(proposed["approve"].partition("kairos_mcp ")[2])


async def person(installation: Installation, *words: str) -> Any:
    """What a person's command says, while the apps of the test go on."""
    said = await asyncio.to_thread(installation, *words)
    assert said.code == 0, said.err
    return said


async def test_a_proposal_is_called_only_once_a_person_approved_it_in_every_open_server(
    installation: Installation, pets: Pets
) -> None:
    """One proposes, a person approves by the command that the answer names, another server calls it: none restarted."""
    lists(installation, pets)
    line = {"tool_calls": [{"name": "pet", "arguments": {"id": "9"}}]}
    proposer, other = (
        installation.place.settings(),
        installation.place.settings(line, says("done")),
    )
    async with App.open(proposer, via="mcp") as one, open_checked_app(other) as two:
        assert (await two.tools.search("pet", None, None, None))["tools"] == []
        result = await one.tools.propose(spec(url=f"http://{pets.host}/pets/{{id}}"), ME)
        assert result["status"] == "pending"
        for app in (one, two):
            with pytest.raises(UnknownTool, match="waits for a person"):
                await app.runs.start_call("pet", {"id": "7"}, ME)
        assert pets.heard == []
        approve = approve_words(result)
        assert "approved: registered:pet" in (await person(installation, *approve)).out
        report = await rests(two, await two.runs.start_call("pet", {"id": "7"}, ME))
        assert '{"pet": "7"}' in report.output["content"]
        (found,) = (await one.tools.search("pet", None, None, None))["tools"]
        assert (found["name"], found["effect"]) == ("pet", "read")
        run_id = (await two.runs.start(PlannerRequest("ask for a pet"), ME)).run_id
        report = await rests(two, run_id)
        assert [call["ok"] for call in report.calls] == [True]
        again = await one.tools.propose(spec(url=f"http://{pets.host}/pets/{{id}}"), ME)
        assert again["status"] == "approved"
    assert [path for path, _ in pets.heard] == ["/pets/7", "/pets/9"]


async def test_a_call_of_it_is_approved_and_made_by_a_process_that_never_saw_it(
    installation: Installation, pets: Pets
) -> None:
    lists(installation, pets)
    async with App.open(installation.place.settings(), via="mcp") as app:
        result = await app.tools.propose(spec(url=f"http://{pets.host}/pets/{{id}}", effect="irreversible"), ME)
        await person(installation, *approve_words(result))
        run_id = await app.runs.start_call("pet", {"id": "7"}, ME)
        assert [item["kind"] for item in (await rests(app, run_id)).waiting] == ["approval"]
        assert pets.heard == []
    said = await person(installation, "approve", run_id, "call-1/approval", "--json")
    assert json.loads(said.out)["output"]["is_error"] is False
    assert [path for path, _ in pets.heard] == ["/pets/7"]


async def test_what_a_person_removes_ends_in_runs_that_were_offered_it(installation: Installation, pets: Pets) -> None:
    lists(installation, pets)
    ask = ToolSpec("ask_person", "Asks.", {"type": "object"}, source="caller")
    lines = ({"tool_calls": [{"name": "ask_person", "arguments": {}}]}, {"tool_calls": [{"name": "pet", "arguments": {"id": "7"}}]}, says("done"))  # fmt: skip  # noqa: E501
    async with open_checked_app(installation.place.settings(*lines)) as app:
        result = await app.tools.propose(spec(url=f"http://{pets.host}/pets/{{id}}"), ME)
        await person(installation, *approve_words(result))
        run_id = (await app.runs.start(PlannerRequest("go", caller_tools=(ask,)), ME)).run_id
        await rests(app, run_id)
        begun = (await app._context.factory.registry(app._context.factory.find_workspace(None))).find("pet")
        assert begun is not None
        await person(installation, "tools", "remove", "registered:pet")
        ctx = ToolContext(run_id, time.monotonic() + 10, lambda _ref: None)
        late = await asyncio.to_thread(call_tool, begun, {"id": "8"}, ctx)  # a call that had passed every look before
        assert late.code == "tool_not_offered"
        await app.answers.submit(run_id, {"round-1/call-1": {"content": "go on"}}, ME)
        report = await rests(app, run_id)
        assert (report.status, [call["ok"] for call in report.calls]) == ("completed", [True, False])
        with pytest.raises(UnknownTool, match="removed"):
            await app.runs.start_call("pet", {"id": "1"}, ME)
        with pytest.raises(Denied):
            await app.tools.propose(spec(url=f"http://{pets.host}/pets/{{id}}"), ME)
    assert pets.heard == []


@pytest.mark.sandbox
async def test_a_registered_server_is_started_once_it_is_approved_and_its_tools_are_pinned(
    installation: Installation,
) -> None:
    log, listing = (
        installation.place.workspace / "log",
        installation.place.workspace / "listing.json",
    )  # what its sandbox shows
    listing.write_text(installation.listing.read_text())
    args = [str(PEER), f"log={log}", f"listing={listing}"]
    proposed = {
        "kind": "server",
        "name": "theirs",
        "command": sys.executable,
        "args": args,
        "effects": {"echo": "read"},
    }
    async with open_checked_app(installation.place.settings()) as app:
        result = await app.tools.propose(proposed, ME)
        assert not log.exists()
        shown = (await person(installation, "tools", "show", "registered:theirs")).out
        assert str(listing) in shown
        assert "sandbox" in shown
        await person(installation, *approve_words(result))
        report = await rests(app, await app.runs.start_call("theirs__echo", {"text": "hi"}, ME))
        assert report.output["content"] == "hi", report
        rows = {line.name: line.state for line in (await app.tools.list_all())[0]}
        assert (rows["theirs"], rows["theirs__echo"], rows["theirs__write"]) == ("registered", "offered", "offered")
        await person(installation, "tools", "remove", "registered:theirs")
        with pytest.raises(UnknownTool):
            await app.runs.start_call("theirs__echo", {"text": "hi"}, ME)
    assert log.read_text().count("start") == 1


async def test_a_proposed_GET_reads_once_a_person_has_approved_it_and_a_POST_does_not(
    installation: Installation,
) -> None:
    async with open_checked_app(installation.place.settings()) as app:
        for name, method in (("look", "GET"), ("make", "POST")):
            proposed = {key: value for key, value in spec(name=name, method=method).items() if key != "effect"}
            result = await app.tools.propose(proposed, ME)
            shown = (await person(installation, "tools", "show", f"registered:{name}")).out
            assert ("it counts as reading" in shown) == (method == "GET")
            assert name not in {line.name for line in (await app.tools.list_all())[0] if line.state == "offered"}
            await person(installation, *approve_words(result))
        effects = {line.name: line.effect for line in (await app.tools.list_all())[0]}
        assert (effects["look"], effects["make"]) == ("read", "irreversible")


async def test_a_GET_that_was_approved_when_it_was_shown_as_irreversible_stays_so(installation: Installation) -> None:
    async with open_checked_app(installation.place.settings()) as app:
        await app.tools.propose(spec(), ME)
        installation.place.rows(
            "update definition set body = replace(body, '\"effect\":\"read\",', ''), state = 'approved'"
        )
        assert "effect" not in installation.place.rows("select body from definition")[0][0]
    async with open_checked_app(installation.place.settings()) as app:
        assert {line.name: line.effect for line in (await app.tools.list_all())[0]}["pet"] == "irreversible"


async def test_a_changed_proposal_waits_again_and_the_old_one_goes_on(installation: Installation, pets: Pets) -> None:
    lists(installation, pets)
    url = f"http://{pets.host}/pets/{{id}}"
    async with open_checked_app(installation.place.settings()) as app:
        result = await app.tools.propose(spec(url=url), ME)
        await person(installation, *approve_words(result))
        changed = await app.tools.propose(spec(url=url, description="A pet, and your keys."), ME)
        assert changed["pin"] != result["pin"]
        sheet = await app.tools.details("registered:pet")
        assert '-  "description": "A pet by its id.",' in sheet.diff.splitlines()
        report = await rests(app, await app.runs.start_call("pet", {"id": "3"}, ME))
        assert not report.output["is_error"]
        await person(installation, *approve_words(changed))
        assert (await app.tools.details("pet")).offered["description"] == "A pet, and your keys."


def test_a_person_is_shown_all_of_it_and_no_command_approves_what_was_not_looked_at(installation: Installation) -> None:
    async def propose() -> dict[str, Any]:
        async with App.open(installation.place.settings(), via="mcp") as app:
            return await app.tools.propose(spec(headers={"X-Api-Key": "env:PETS_KEY"}), ME)

    result = asyncio.run(propose())
    looked = installation("tools", "approve", "registered:pet")
    assert looked.code == 3
    for part in ("GET https://pets.example/pets/{id}", "env:PETS_KEY", "without asking", result["pin"]):
        assert part in looked.out
    (line,) = [each for each in installation("tools", "list", "--json").json["tools"] if each["name"] == "pet"]
    assert (line["state"], line["address"]) == ("new", "registered:pet")
    assert installation("tools", "approve", "registered:pet", "--pin", "0" * 16).code == 2
    shown = installation("tools", "show", "registered:pet", "--home", str(installation.place.home))
    copied = shlex.split(shown.out.strip().splitlines()[-1])  # a line to copy has the options that this one had
    assert copied[-7:-1] == ["tools", "remove", "--home", str(installation.place.home), "registered:pet", "--pin"]
    assert installation(*copied[copied.index("tools") :]).code == 0
    assert installation.place.rows("select state, by from definition where name = 'pet'") == [("removed", "local")]


BAD: dict[str, tuple[dict[str, Any], type[KairosError], str]] = {
    "no kind": ({"name": "x"}, BadArguments, "kind"),
    "unknown key": (spec(colour="red"), BadArguments, "colour"),
    "unknown key of a server": ({"kind": "server", "name": "x", "command": "y", "shell": True}, BadArguments, "shell"),
    "no sandbox": ({"kind": "server", "name": "x", "command": "y", "sandbox": False}, BadArguments, "sandbox"),
    "elsewhere": ({"kind": "server", "name": "x", "command": "y", "cwd": "/"}, BadArguments, "cwd"),
    "both ways": ({"kind": "server", "name": "x", "command": "y", "url": "https://y.example"}, BadArguments, "command"),
    "wrong type": (spec(timeout_s="soon"), BadArguments, "timeout_s"),
    "a name that is none": (spec(name="../pet"), BadArguments, "name"),
    "a name with a server's mark": (spec(name="files__pet"), BadArguments, "__"),
    "a server's name that is none": ({"kind": "server", "name": "a__b", "command": "y"}, BadArguments, "name"),
    "a literal key": (spec(headers={"Authorization": "Bearer abcDEF1234567890"}), BadArguments, "key"),
    "a literal key in a header of another name": (spec(headers={"X-My-Token": "hunter2"}), BadArguments, "X-My-Token"),
    "a key by its shape": (spec(description="Use sk-proj-" + "a1B2" * 6), BadArguments, "description"),
    "a key in the address": (spec(url="https://pets.example/{id}?api_key=abc"), BadArguments, "url"),
    "a key as a variable": ({"kind": "server", "name": "x", "command": "y", "env": {"API_KEY": "a"}}, BadArguments, "env"),  # noqa: E501
    "a key as an option": ({"kind": "server", "name": "x", "command": "y", "args": ["--api-key", "a"]}, BadArguments, "args"),  # noqa: E501
    "a file as a key": (spec(headers={"X-Api-Key": "file:/home/me/.ssh/id"}), BadArguments, "file"),
    "a key over http": (spec(url="http://pets.example/{id}", headers={"X-Api-Key": "env:K"}), BadArguments, "https"),
    "a header of ours": (spec(headers={"Host": "other.example"}), BadArguments, "host"),
    "loopback": (spec(url="http://127.0.0.1:9/{id}"), EgressDenied, "private_hosts"),
    "a private network": (spec(url="http://10.0.0.7/{id}"), EgressDenied, "not public"),
    "a cloud's keys": (spec(url="http://169.254.169.254/{id}"), EgressDenied, "credentials"),
    "a server on loopback": ({"kind": "server", "name": "y", "url": "http://localhost:9/mcp"}, EgressDenied, "not public"),  # noqa: E501
    "a scheme of ours": (spec(url="file:///etc/{id}"), BadArguments, "url"),
    "huge": (spec(description="x" * 40_000), TooLarge, "bytes"),
    "unseen": (spec(description="A pet.\u200b\u202eevil"), BadArguments, "invisible character"),
    "a tool of the app": (spec(name="read_file"), BadArguments, "already"),
    "one of ours that is off": (spec(name="http_fetch"), BadArguments, "already"),
    "our own interface": (spec(name="run_control"), BadArguments, "already"),
    "a server that speaks for another": ({"kind": "server", "name": "x", "command": "y"}, BadArguments, "already"),
    "a POST that only reads": (spec(method="POST"), BadArguments, "read"),
    "a remote schema": (spec(url="https://pets.example/", parameters=[{"name": "id", "in": "json", "schema": {"$ref": "https://e.example/s"}}], method="POST", effect="irreversible"), BadArguments, "schema"),  # noqa: E501
}  # fmt: skip


async def test_a_bad_proposal_is_refused_with_the_place_and_leaves_nothing(installation: Installation) -> None:
    """Shadowing, private addresses, keys, sizes, types: each is told where it is wrong, and no key is repeated."""
    async with App.open(installation.place.settings(servers=(installation.server(),)), via="mcp") as app:
        for case, (given, error, word) in BAD.items():
            with pytest.raises(KairosError) as refused:
                pytest.fail(f"{case}: {await app.tools.propose(given, ME)}")
            result = str(refused.value)
            assert refused.type is error, (case, result)
            assert word in result, (case, result)
            assert len(result) < 700, case
            assert "hunter2" not in result
            assert "abcDEF1234567890" not in result
    assert installation.place.rows("select count(*) from definition where source = 'registered'") == [(0,)]


async def test_the_name_of_a_built_in_tool_is_taken_without_a_workspace_too(installation: Installation) -> None:
    names = [tool.spec.name for tool in builtin_tools(installation.place.workspace, read_bytes=1)]
    async with App.open(installation.place.settings(workspaces=()), via="mcp") as app:
        for name in names:
            with pytest.raises(BadArguments):
                pytest.fail(f"{name}: {await app.tools.propose(spec(name=name), ME)}")
        await app.tools.propose(spec(name="of_my_own"), ME)
    assert installation.place.rows("select count(*) from definition where source = 'registered'") == [(1,)]


async def test_sixteen_proposals_wait_at_most_and_a_changed_one_takes_the_place_of_its_own(
    installation: Installation,
) -> None:
    async with App.open(installation.place.settings(), via="mcp") as app:
        for n in range(MAX_PROPOSED):
            await app.tools.propose(spec(name=f"pet_{n}"), ME)
        with pytest.raises(ApprovalsFull):
            await app.tools.propose(spec(name="one_more"), ME)
        assert (await app.tools.propose(spec(name="pet_3", description="Another."), ME))["status"] == "pending"
        assert (await app.tools.propose(spec(name="pet_3", description="Another."), ME))["status"] == "pending"
        await app.tools.decide("registered:pet_4", "removed", None, PERSON)
        await app.tools.propose(spec(name="one_more"), ME)
    counted = installation.place.rows(
        "select count(*) from definition where source = 'registered' and state = 'pending'"
    )
    assert counted == [(MAX_PROPOSED,)]


async def test_a_name_that_was_taken_meanwhile_is_not_approved(installation: Installation) -> None:
    async with App.open(installation.place.settings(), via="mcp") as app:
        result = await app.tools.propose({"kind": "server", "name": "x", "command": "echo"}, ME)
    installation.write_config()
    refused = installation(*approve_words(result))
    assert (refused.code, "already" in refused.err) == (2, True)


async def test_a_secret_goes_to_the_service_by_its_name_alone(
    installation: Installation, pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "Pq7-registered-9xK2v"
    monkeypatch.setenv("PETS_KEY", key)
    lists(installation, pets)
    given = spec(url=f"http://{pets.host}/pets/{{id}}", headers={"X-Api-Key": "env:PETS_KEY"})
    async with open_checked_app(installation.place.settings()) as app:
        result = await app.tools.propose(given, ME)
        await person(installation, *approve_words(result))
        await rests(app, await app.runs.start_call("pet", {"id": "7"}, ME))
    assert pets.heard == [("/pets/7", key)]
    stored = b"".join(file.read_bytes() for file in installation.place.home.rglob("*") if file.is_file())
    assert key.encode() not in stored


def test_the_app_opens_without_a_state_file_and_makes_none(tmp_path: Path) -> None:
    place = place_in(tmp_path / "p")

    async def search() -> None:
        async with App.open(place.settings(), via="mcp") as app:
            await app.tools.search("read", None, None, None)

    asyncio.run(search())
    assert not place.db.exists()
