"""The table of who may decide what, tried cell by cell: at the real server, in dialogs, by commands, on the page."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from support import postgres
from support.app import ME, Place, rests, says
from support.page import served_page
from support.reviewers import KEY, Person, accepts, connect_person, open_asking_app, verdicts, waiting
from support.sampling_clients import ConnectedClient
from support.waiting import wait_until

from approvals.test_commands import ran
from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import (
    APPROVALS,
    KINDS,
    RIGHTS,
    WAYS,
    ApprovalsSetting,
    DecisionKind,
    DecisionWay,
    check_decision_right,
    decision_way,
    may_decide,
)
from kairos_mcp.core.errors import ApprovalRequired
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store import integrity
from kairos_mcp.store.accounts import unit_columns
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.store.tool_pins import REGISTERED
from kairos_mcp.tools.departure import LEFT

LOST = "round-1/call-1/settle"
COMMAND = {"name": "run_command", "arguments": {"argv": ["true"]}}
PET = {
    "kind": "http_tool",
    "name": "pet",
    "description": "A pet by its id.",
    "url": "https://pets.example/pets/{id}",
    "parameters": [{"name": "id", "in": "path"}],
    "effect": "read",
}
EVERYTHING = {"decision": "approve", "settlement": "already_done", "always": "project", "release": True, "pin": "x"}
CELLS = [(kind, way, setting) for kind in KINDS for way in WAYS for setting in APPROVALS]

Tried = Callable[[App, ConnectedClient, str], Awaitable[None]]


def lose_the_call(place: Place) -> None:
    """As if the server had died in the middle of the only call, after it had left."""
    place.rows("delete from answer where step >= (select id from step where kind = 'call')")
    place.rows("delete from step where id > (select id from step where kind = 'call')")
    place.rows("update run set outcome = null, ended_at = null, owner = 0")
    left = intent_name(LOST.removesuffix("/settle"))
    place.rows("insert into tool_intent(run, name, body) values (1, ?, ?)", left, LEFT)
    with place.session() as session:
        spent, held = integrity.sum_rows(session, 1)
        changed = ", ".join(f"{name} = ?" for name in unit_columns("spent", "held"))
        session.rows(f"update account set {changed} where scope = 'run'", (*spent, *held))


async def a_lost_call(place: Place) -> str:
    """A run whose call ended with its server, so that nobody knows what became of it."""
    settings = place.settings(
        {"tool_calls": [COMMAND]}, says("done"), gate=(GateRule("run_command", "allow"),), commands="bare"
    )
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("make it", tools=("run_command",)), ME)).run_id
        await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
    lose_the_call(place)
    return run_id


async def answers(client: ConnectedClient, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool says, an error as well; a refusal of the arguments by the protocol's own library counts as one."""
    result = await client.sdk_client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


# -- a kind of decision: what waits, how it is tried, and whether it was made --------------------------------------


def kairos(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return ran(*words, "--home", str(place.home))


def write_approvals_setting(place: Place, setting: ApprovalsSetting) -> None:
    """The same setting for the commands, which read the file."""
    place.home.mkdir(parents=True, exist_ok=True)
    (place.home / "kairos.toml").write_text(f'approvals = "{setting}"\ncommands = "bare"\n')


def decide_on_page(place: Place, setting: ApprovalsSetting, act: str, run_id: str = "", **fields: Any) -> None:
    """Do this on the page, about what it shows of the run; an act that there is not is refused."""
    write_approvals_setting(place, setting)
    with served_page(place.home, "--workspace", str(place.workspace)) as visitor:
        if run_id:
            item = visitor.waiting(run_id)
            fields |= {"run": run_id, "key": item["key"], "digest": item["digest"]}
        answer = visitor.acts(act, **fields)
        assert answer.status_code == (400 if act == "release" else 200), answer.text


async def approval(place: Place, way: DecisionWay, setting: ApprovalsSetting) -> bool:
    person = Person([accepts(**EVERYTHING)] * 9) if way == "dialog" else None
    async with open_asking_app(place, approvals=setting) as app, connect_person(app, "2025-11-25", person) as client:
        run_id = await waiting(app, place)
        if way == "command":
            assert kairos(place, "approve", "--no-drive", run_id, KEY).returncode == 0
        elif way == "page":
            decide_on_page(place, setting, "approve", run_id, name="ask_person")
        elif way == "dialog":
            await answers(client, "run_continue", run_id=run_id, wait_s=1)
        else:
            (item,) = (await rests(app, run_id)).waiting
            said = {KEY: {"decision": "approve", "digest": item["digest"]}}
            refused = await answers(client, "run_continue", run_id=run_id, answers=said, wait_s=1)
            assert refused.get("code") in (None, "approval_required")
        return verdicts(place)[0][0] == "approve"


async def settlement(place: Place, way: DecisionWay, setting: ApprovalsSetting) -> bool:
    run_id = await a_lost_call(place)
    person = Person([accepts(**EVERYTHING)] * 9) if way == "dialog" else None
    async with (
        App.open(place.settings(approvals=setting, commands="bare"), via="mcp") as app,
        connect_person(app, "2025-11-25", person) as client,
    ):
        (item,) = (await rests(app, run_id)).waiting
        assert item["key"] == LOST
        if way == "command":
            assert kairos(place, "settle", run_id, LOST, "already_done").returncode == 0
        elif way == "page":
            decide_on_page(place, setting, "settle", run_id, settlement="already_done")
        elif way == "dialog":
            await answers(client, "run_continue", run_id=run_id, wait_s=1)
        else:
            said = {"settlement": "already_done", "digest": item["digest"]}
            one = await answers(client, "run_control", run_id=run_id, action="settle", key=LOST, **said)
            other = await answers(client, "run_continue", run_id=run_id, answers={LOST: said}, wait_s=1)
            assert {one.get("code"), other.get("code")} <= {None, "approval_required"}
            assert one.get("code") == other.get("code")
        return bool(place.rows("select 1 from inbox where kind = 'settle'"))


async def registration(place: Place, way: DecisionWay, setting: ApprovalsSetting) -> bool:
    write_approvals_setting(place, setting)
    person = Person([accepts(**EVERYTHING)] * 9) if way == "dialog" else None
    async with (
        App.open(place.settings(approvals=setting), via="mcp") as app,
        connect_person(app, "2025-11-25", person) as client,
    ):
        response = await answers(client, "registry_register", spec=PET)
        assert response["status"] == "pending", response
        if way == "command":
            words = ("approve", f"{REGISTERED}:pet", "--pin", response["pin"])
            assert kairos(place, "tools", *words).returncode == 0
        elif way == "page":
            (pinned,) = place.rows("select hash from definition where name = 'pet'")
            decide_on_page(place, setting, "tool_approve", address=f"{REGISTERED}:pet", pin=pinned[0])
        else:  # no tool takes the word, and none shows a dialog for it
            address = f"{REGISTERED}:pet"
            for tool, given in (
                ("registry_register", {"spec": PET | {"state": "approved"}}),
                ("registry_register", {"spec": PET, "approve": response["pin"]}),
                ("registry_call", {"name": "pet", "arguments": {}}),
                ("run_control", {"run_id": address, "action": "approve", "key": response["pin"]}),
            ):
                assert "code" in await answers(client, tool, **given), tool
            assert person is None or not person.seen
        return place.rows("select state from definition where name = 'pet'") == [("approved",)]


async def rule(place: Place, way: DecisionWay, setting: ApprovalsSetting) -> bool:
    """Whether what was approved with `always` is let through the second time."""
    person = Person([accepts(**EVERYTHING), accepts(decision="deny")]) if way == "dialog" else None
    lines = (writes("a.txt", "one\n"), writes("a.txt", "two\n"), says("done"))
    async with (
        App.open(place.settings(*lines, approvals=setting), via="mcp") as app,
        connect_person(app, "2025-11-25", person) as client,
    ):
        run = await answers(client, "planner_run", goal="make it", tools=["write_file"], wait_s=5)
        if way == "dialog":  # under "person" none is shown
            assert len(person.seen) == (0 if setting == "person" else 2)
        elif way == "command":
            assert kairos(place, "approve", run["run_id"], KEY, "--always", "project").returncode == 0
            await app.runs.wait([run["run_id"]], until="done", wait_s=20, caller=ME)
        elif way == "page":
            decide_on_page(place, setting, "approve", run["run_id"], always="project")
            await app.runs.wait([run["run_id"]], until="done", wait_s=20, caller=ME)
        else:
            (item,) = run["waiting"]
            said = {KEY: {"decision": "approve", "digest": item["digest"], "always": "project"}}
            assert (await answers(client, "run_continue", run_id=run["run_id"], answers=said))[
                "code"
            ] == "bad_arguments"
        return bool(place.rows("select 1 from approval where through = 'rule'"))


def writes(path: str, content: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "write_file", "arguments": {"path": path, "content": content}}]}


async def release(place: Place, way: DecisionWay, setting: ApprovalsSetting) -> bool:
    async with open_asking_app(place, approvals=setting) as app:
        run_id = await waiting(app, place)
    with stopped_owner(place) as number:
        person = Person([accepts(**EVERYTHING)] * 9) if way == "dialog" else None
        async with (
            App.open(place.settings(approvals=setting), via="mcp") as app,
            connect_person(app, "2025-11-25", person) as client,
        ):
            if way == "command":
                assert kairos(place, "status", "--release", str(number)).returncode == 0
            elif way == "page":
                decide_on_page(place, setting, "release", owner=number)
            elif way == "argument":
                for action in ("release", "settle"):
                    given = {"run_id": run_id, "action": action, "key": str(number)}
                    assert (await answers(client, "run_control", **given))["code"] == "bad_arguments"
                with pytest.raises(ApprovalRequired):
                    await app.control.release(number, ME)
            else:
                await answers(client, "run_continue", run_id=run_id, wait_s=1)
                assert not any("release" in json.dumps(each.requested_schema) for each in person.seen)
            return place.rows("select owner from run") != [(number,)]


@contextlib.contextmanager
def stopped_owner(place: Place) -> Iterator[int]:
    """The number of a server that owns the run and was stopped."""
    with subprocess.Popen([sys.executable, "-c", OWNS, str(place.home)], stdout=subprocess.PIPE) as server:
        number = int(server.stdout.readline())
        place.rows("update run set owner = ?, fence = fence + 1", number)
        server.send_signal(signal.SIGSTOP)
        wait_until(lambda: os.waitpid(server.pid, os.WUNTRACED | os.WNOHANG) != (0, 0))
        yield number
        server.kill()


OWNS = """
import sys, time
from pathlib import Path
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.file_store import LockFile
home = Path(sys.argv[1])
ownership, connection = LockFile(home), SqliteSession(str(home / "kairos.db"))
print(ownership.register(connection, "mcp", 0), flush=True)
connection.close()
time.sleep(600)
"""

TRIED: dict[DecisionKind, Callable[[Place, DecisionWay, ApprovalsSetting], Awaitable[bool]]] = {
    "approval": approval,
    "settlement": settlement,
    "registration": registration,
    "rule": rule,
    "release": release,
}


@pytest.mark.parametrize(("kind", "way", "setting"), CELLS)
async def test_every_cell_of_the_table_is_what_each_way_of_deciding_does(
    place: Place, kind: DecisionKind, way: DecisionWay, setting: ApprovalsSetting
) -> None:
    if kind == "release" and postgres.is_chosen():
        pytest.skip("of the store in a file: a server that was stopped keeps its runs there alone")
    assert await TRIED[kind](place, way, setting) == may_decide(kind, way, setting)


# -- the table itself ---------------------------------------------------------------------------------------------


def test_a_model_decides_only_where_the_host_is_trusted_and_a_person_always_can_by_command() -> None:
    for kind in KINDS:
        assert all(setting == "host" for setting in APPROVALS if may_decide(kind, "argument", setting))
        assert not may_decide(kind, "dialog", "person")
        assert not RIGHTS[kind] or all(may_decide(kind, "command", setting) for setting in APPROVALS)


def test_a_settlement_has_the_rights_of_an_approval() -> None:
    assert RIGHTS["settlement"] == RIGHTS["approval"]


@pytest.mark.parametrize("through", ["mcp", "", "ELICITATION", "http", "a way of tomorrow"])
def test_what_nobody_knows_counts_as_an_argument(through: str) -> None:
    assert decision_way(through) == "argument"


def test_a_refusal_names_the_command_and_the_dialog_only_where_there_is_one() -> None:
    for setting, dialog in (("ask", True), ("person", False)):
        with pytest.raises(ApprovalRequired) as refused:
            check_decision_right(
                "settlement", "argument", setting, "kairos-mcp settle RUN KEY already_done", run_id="r"
            )
        assert refused.value.run_id == "r"
        assert "kairos-mcp settle RUN KEY already_done" in refused.value.hint
        assert ("dialog" in refused.value.hint) == dialog
