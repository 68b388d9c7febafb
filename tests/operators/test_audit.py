"""Who decided and changed what, through what, and what they were shown: as an export and as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.app import ASK, ME, PERSON, UNWATCHED, Place, asks, rests, start_run
from support.operators import Command
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.cli.session import person_for
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.store.approvals import DialogView
from kairos_mcp.store.rules import RuleRequest

EDIT = {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}


def use(place: Place, act: Callable[[App], Awaitable[Any]], **changes: Any) -> Any:
    async def opened() -> Any:
        async with App.open(place.settings(flow=UNWATCHED, **changes), via="mcp") as app:
            return await act(app)

    return asyncio.run(opened())


def lines(command: Command, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command("audit", *words).splitlines()]


@both_stores
def test_decisions_rules_requests_tokens_and_settings_are_a_line_each(place: Place, command: Command) -> None:
    async def act(app: App) -> tuple[str, str]:
        run_id = await app.runs.start_call("edit_file", EDIT, ME)
        (item,) = (await rests(app, run_id)).waiting
        await app.answers.decide(run_id, item["key"], "approve", None, PERSON, rule=RuleRequest("project"))
        await rests(app, run_id)
        other = await start_run(app, caller_tools=(ASK,))
        await app.control.pause(other, PERSON)
        return run_id, other

    place.settings(asks("Which?"))
    approved, paused = use(place, act, script=place.script)
    command("rules", "remove", "1", "--all")
    use(place, lambda app: app.runs.start_call("read_file", {"path": "a.txt"}, ME), day=Limits(total_tokens=10))
    command("token", "add", "alice")
    command("token", "rotate", "alice")
    command("token", "revoke", "alice")
    told = lines(command)
    acts = [(each["what"], each["act"]) for each in told]
    assert {
        *(("approval", "approve"), ("rule", "add"), ("run", "pause"), ("rule", "remove"), ("settings", "change")),
        *(("token", "add"), ("token", "rotate"), ("token", "revoke")),
    } <= set(acts)
    by_act = {(each["what"], each["act"]): each for each in told}
    decided = by_act["approval", "approve"]
    assert (decided["run"], decided["who"], decided["through"]) == (approved, "local", "command")
    assert decided["about"].startswith("edit_file at ")
    assert decided["digest"]
    assert by_act["run", "pause"]["run"] == paused
    assert "day" in by_act["settings", "change"]["about"].split(" in ")[0].split(", ")
    assert (by_act["token", "revoke"]["about"], by_act["token", "revoke"]["through"]) == ("alice", "command")
    assert [each["at"] for each in told] == sorted(each["at"] for each in told)
    assert len({each["id"] for each in told}) == len(told)
    assert lines(command, "--since", "2999-01-01") == []


def test_what_an_operator_does_to_anothers_run_is_told_as_the_operators(place: Place, command: Command) -> None:
    anna = Caller("anna")

    async def act(app: App) -> None:
        run_id = await app.runs.start_call("edit_file", EDIT, anna)
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=anna)
        await app.control.pause(run_id, person_for("anna"))
        await app.control.resume(run_id, anna)
        (item,) = (await app.runs.report(run_id, anna)).waiting
        await app.answers.decide(run_id, item["key"], "deny", None, person_for("anna"), drive=False)

    use(place, act)
    told = [(each["act"], each["who"], each["through"], each["principal"]) for each in lines(command)]
    assert told == [
        ("pause", "local", "command", "anna"),
        ("resume", "anna", "mcp", "anna"),
        ("deny", "local", "command", "anna"),
    ]


def test_what_a_dialog_showed_stands_in_the_line(place: Place, command: Command) -> None:
    async def act(app: App) -> None:
        run_id = await app.runs.start_call("edit_file", EDIT, ME)
        (item,) = (await rests(app, run_id)).waiting
        await app.answers.decide(run_id, item["key"], "deny", "not that", PERSON, drive=False)

    use(place, act)
    from kairos_mcp.store.rows import encode

    place.rows("update approval set shown = ?", encode(DialogView("whole", "vscode", 3, 3, 1500)))
    (told,) = lines(command)
    assert (told["act"], told["note"], told["shown"]) == ("deny", "not that", "3 of 3 lines (vscode, 60x24) for 1.5 s")


async def test_the_stream_tells_each_act_once_and_goes_on(place: Place) -> None:
    async with App.open(place.settings(asks("Which?"), flow=UNWATCHED), via="mcp") as app:
        first = await start_run(app, caller_tools=(ASK,))
        await app.control.pause(first, PERSON)
        told: list[str] = []
        async with asyncio.timeout(20):
            async for entry in app.auditing.follow(0, poll_s=0.01):
                told.append(entry.act)
                if len(told) == 1:
                    await app.control.resume(first, PERSON)
                elif len(told) == 2:
                    await app.control.cancel(first, PERSON)
                else:
                    break
    assert told == ["pause", "resume", "cancel"]


def test_without_a_store_nothing_is_told_and_none_is_made(place: Place, command: Command) -> None:
    if place.has_tables():
        pytest.skip("a database is there")
    assert lines(command) == []
    command("token", "add", "alice")
    assert not place.db.exists()


def test_each_line_is_an_otlp_log_record_that_is_sent_until_it_is_taken(
    place: Place, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.telemetry import collector

    from kairos_mcp.telemetry import audit_records

    monkeypatch.setattr(audit_records, "AGAIN_S", 0)

    async def act(app: App) -> None:
        run_id = await app.runs.start_call("edit_file", EDIT, ME)
        (item,) = (await rests(app, run_id)).waiting
        await app.answers.decide(run_id, item["key"], "deny", "not that", PERSON, drive=False)

    use(place, act)
    command("token", "add", "alice")
    told = lines(command)
    with collector() as receiver:
        receiver.refusals = 1
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.environ()["OTEL_EXPORTER_OTLP_ENDPOINT"])
        assert command("audit", "--otlp") == ""
        assert command.code == 0
    assert [each["log.record.uid"] for each in receiver.logs] == [each["id"] for each in told]
    assert {each["event"] for each in receiver.logs} == {"kairos.audit"}
    denied = receiver.logs[0]
    assert (denied["kairos.audit.act"], denied["kairos.audit.note"], denied["kairos.audit.who"]) == (
        "deny",
        "not that",
        "local",
    )
    assert denied["at"] % 1_000_000 == 0
