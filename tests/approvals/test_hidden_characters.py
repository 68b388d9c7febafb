"""What nobody sees is not written unasked, whatever the rules: invisible and direction-changing characters."""

from __future__ import annotations

from typing import Any

import pytest
from support.app import ME, rests, says

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.hidden_text import adds_hidden_characters, has_hidden_characters
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.tool_intents import recall

ALLOWED = (GateRule("*", "allow"), GateRule("*", "allow", effect="checked"))
WRITING = ("edit_file", "write_file", "plan_edits", "apply_edit_plan")


async def asks(app: App, name: str, given: dict[str, Any]) -> bool:
    """Whether a person is asked about this call, where rules allow everything."""
    waiting = (await rests(app, await app.runs.start_call(name, given, ME))).waiting
    return [item["name"] for item in waiting] == [name]


HIDDEN = ("\u200b", "\u202e", "\u2066", "\x1b", "\ufeff", "\U000e0041", "\u2800", "a\rb", "\xad")


async def test_a_write_or_an_edit_that_brings_what_nobody_sees_asks_though_a_rule_allows_it(place):
    async with App.open(place.settings(gate=ALLOWED), via="mcp") as app:
        for hidden in HIDDEN[:7]:
            assert await asks(app, "write_file", {"path": "new.txt", "content": f"x{hidden}y\n"}), ascii(hidden)
        for hidden in HIDDEN[-3:]:
            given = {"path": "a.txt", "old_string": "alpha", "new_string": f"x{hidden}y"}
            assert await asks(app, "edit_file", given), ascii(hidden)
        edits = [{"path": "a.txt", "old_string": "alpha", "new_string": "\u202ealpha"}]
        planned = await run_call(app, "plan_edits", {"edits": edits})
        assert await asks(app, "apply_edit_plan", {"plan_id": planned["data"]["plan_id"]})
    assert not (place.workspace / "new.txt").exists()
    assert (place.workspace / "a.txt").read_text() == "alpha\n"


async def test_what_is_seen_is_written_as_the_rule_says(place):
    text = "plain, grüße, 世界, ✔️ 👩‍💻 1️⃣ ❤️\n\tindented\n"
    (place.workspace / "dos.txt").write_bytes(b"a\r\nb\r\n")
    (place.workspace / "nbsp.txt").write_text("a\u00a0b\nc\n")
    async with App.open(place.settings(gate=ALLOWED), via="mcp") as app:
        assert not await asks(app, "write_file", {"path": "new.txt", "content": text})
        assert not await asks(app, "edit_file", {"path": "dos.txt", "old_string": "a", "new_string": "c"})
        assert not await asks(app, "edit_file", {"path": "nbsp.txt", "old_string": "a\xa0b", "new_string": "d\xa0e"})
    assert (place.workspace / "new.txt").read_text() == text
    assert (place.workspace / "dos.txt").read_bytes() == b"c\r\nb\r\n"


@pytest.mark.parametrize(
    ("before", "after", "brings"),
    [
        ("a\u200bb\n", "a\u200bc\n", False),
        ("a\u200bb\n", "a\u200b\u200bb\n", True),
        ("a\u200bb\nc\n", "a\u200bb\nc\u200b\n", True),
        ("x\u202ey\n", "x\u202ez\n", True),
        ("x\u202ey\n", "x\u202ey\nmore\n", False),
        ("", "\ufeffx", True),
        ("", "a\ufe0f", True),
        ("", "a\u200db", True),
    ],
)
def test_only_what_a_change_brings_counts(before: str, after: str, brings: bool) -> None:
    assert adds_hidden_characters(before, after) == brings


def test_a_tool_of_somebody_else_that_writes_a_file_is_asked_about_too() -> None:
    theirs = ToolSpec("x__do", "", {"type": "object"}, source="mcp:x#1")
    gate = Gate((GateRule("x__do", "allow"),), Scopes().scope_of)
    for given in ({"path": "docs/a", "content": "a\u200bb"}, {"files": {"docs/a": ["\u202e"]}}):
        assert gate.judge(GatedCall(theirs, given)).decision == "ask"
    assert gate.judge(GatedCall(theirs, {"message": "a\u200bb c"})).decision == "allow"
    assert has_hidden_characters("\u202e")


async def run_call(app: App, name: str, given: dict[str, Any], caller: Caller = ME) -> dict[str, Any]:
    run_id = await app.runs.start_call(name, given, caller)
    await app.runs.wait([run_id], until="rest", wait_s=20, caller=caller)
    output = (await app.runs.report(run_id, caller)).output
    assert isinstance(output, dict)
    return output


async def test_a_plan_of_a_single_call_is_applied_by_another_single_call_and_by_nothing_else(place):
    edits = [{"path": "a.txt", "old_string": "alpha", "new_string": "omega"}]
    async with App.open(place.settings(gate=ALLOWED), via="mcp") as app:
        plan = {"plan_id": (await run_call(app, "plan_edits", {"edits": edits}))["data"]["plan_id"]}
        assert (await run_call(app, "apply_edit_plan", plan, Caller("somebody-else")))["data"]["code"] == "not_found"
    turn = {"content": "go", "tool_calls": [{"name": "apply_edit_plan", "arguments": plan}]}
    async with App.open(place.settings(turn, says("done"), gate=ALLOWED), via="mcp") as app:
        await rests(app, (await app.runs.start(PlannerRequest("apply", tools=WRITING), ME)).run_id)
        assert (place.workspace / "a.txt").read_text() == "alpha\n"
        assert not (await run_call(app, "apply_edit_plan", plan))["is_error"]
        assert (place.workspace / "a.txt").read_text() == "omega\n"
        assert (await run_call(app, "apply_edit_plan", plan))["data"]["code"] == "stale_file"


async def test_a_single_call_finds_nothing_of_another_but_its_plans(place):
    edits = [{"path": "a.txt", "old_string": "alpha", "new_string": "omega"}]
    async with App.open(place.settings(gate=ALLOWED), via="mcp") as app:
        for _ in range(2):
            await run_call(app, "plan_edits", {"edits": edits})
        (first,), (second,) = place.rows("select n from run order by n")
        ((plan,),) = place.rows("select name from tool_intent where run = ?", first)
        other = "insert into tool_intent(run, name, body) values (?, 'taken-out call-1', 'of the first')"
        await app._store.submit(lambda session: session.rows(other, (first,)))
        with app._store.read_session() as session:
            assert recall(session, second, plan) is not None
            assert recall(session, first, "taken-out call-1") == "of the first"
            assert recall(session, second, "taken-out call-1") is None


async def test_a_path_with_a_character_that_nobody_sees_is_refused_for_that_reason(place):
    async with App.open(place.settings(gate=ALLOWED), via="mcp") as app:
        for path in ("a\nb.txt", "a\x07.txt", "\u202etxt.a", "docs/\u200bAGENTS.md"):
            for name, given in (
                ("write_file", {"content": "x"}),
                ("edit_file", {"old_string": "a", "new_string": "b"}),
            ):
                refused = await run_call(app, name, {"path": path, **given})
                assert refused["is_error"]
                assert "invisible character (U+" in refused["content"]
                assert "server" not in refused["content"]
    assert sorted(each.name for each in place.workspace.iterdir()) == ["a.txt", "b.txt"]
    assert place.rows("select count(*) from approval") == [(0,)]
