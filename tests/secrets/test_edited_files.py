"""A file that holds a key is changed elsewhere in it: what it held is kept until the call has its answer, no longer."""

from __future__ import annotations

import pytest
from support.app import ASK, Place, asks, open_checked_app, rests, says, start_run

from kairos_mcp.core.errors import Stale
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store import tool_intents

KEY = "zebra-9124-quagga-5577-okapi"  # of no known shape: no mask would take it out
LONG = "".join(f"line {n}\n" for n in range(40))  # so that no diff shows what stands below it
EDITS = [{"path": path, "old_string": "line 1\n", "new_string": "line one\n"} for path in ("keys.txt", "more.txt")]
WHOLE = {"path": "b.txt", "content": "all new\n"}
CALLS = [
    {"name": "edit_file", "arguments": EDITS[0]},
    {"name": "write_file", "arguments": WHOLE},
    {"name": "plan_edits", "arguments": {"edits": [edit | {"old_string": "line 2\n"} for edit in EDITS]}},
]
ALLOWED = (GateRule("edit_file", "allow"), GateRule("write_file", "allow"), GateRule("apply_edit_plan", "allow"))
TOOLS = ("edit_file", "write_file", "plan_edits", "apply_edit_plan")


def keys_in(place: Place) -> None:
    for name in ("keys.txt", "more.txt"):
        (place.workspace / name).write_text(f"{LONG}TOKEN_OF_MINE {KEY}\n" + f"{KEY}\n" * 2_000)


def kept_names(place: Place) -> list[str]:
    return [name for (name,) in place.rows("select name from tool_intent where name not like 'plan %'")]


def in_files(place: Place) -> list[str]:
    """The files of the state folder in which the key stands, byte by byte."""
    return [file.name for file in place.home.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


async def test_what_a_file_held_is_in_no_row_once_the_call_that_changed_it_has_its_answer(place: Place) -> None:
    keys_in(place)
    settings = place.settings({"tool_calls": CALLS}, asks("go on?"), says("done"), gate=ALLOWED)
    async with open_checked_app(settings) as app:
        report = await rests(app, await start_run(app, tools=TOOLS, caller_tools=(ASK,)))
        assert (report.status, [call["ok"] for call in report.calls][:3]) == ("input_required", [True] * 3)
        assert kept_names(place) == []
        assert (
            len(place.rows("select 1 from tool_intent")) == 1
        )  # the plan stays: it holds no file, and is still to be made
    assert "line one" in (place.workspace / "keys.txt").read_text()
    assert in_files(place) == []  # not in a page that is unused either


async def test_nothing_of_it_stays_where_the_change_failed_after_it_was_kept(place: Place) -> None:
    keys_in(place)
    settings = place.settings({"tool_calls": CALLS[:1]}, asks("go on?"), gate=ALLOWED)
    async with open_checked_app(settings) as app:
        with (place.workspace / "keys.txt").open("a"):  # who writes to it is waited for by nobody
            report = await rests(app, await start_run(app, tools=TOOLS, caller_tools=(ASK,)))
        assert [(call["name"], call["ok"]) for call in report.calls][:1] == [("edit_file", False)]
        assert "open for writing" in place.rows("select body from answer order by step")[1][0]
        assert kept_names(place) == []
    assert in_files(place) == []


async def test_a_call_that_has_its_answer_keeps_nothing_more(place: Place) -> None:
    """As a thread that was given up may try, which comes to its change after all."""
    settings = place.settings({"tool_calls": CALLS[:1]}, asks("go on?"), gate=ALLOWED)
    keys_in(place)
    async with open_checked_app(settings) as app:
        run_id = await start_run(app, tools=TOOLS, caller_tools=(ASK,))
    with place.session() as session:
        session.rows("begin")
        session.rows("update run set owner = 1, fence = 9")
        with pytest.raises(Stale):
            tool_intents.keep_text(session, 1, run_id, 1, 9, tool_intents.intent_name("round-1/call-1"), KEY)
        # The other one has no answer yet.
        tool_intents.keep_text(session, 1, run_id, 1, 9, tool_intents.intent_name("round-2/call-1"), KEY)
        session.rows("rollback")
