"""A rule on paths holds for what a call finds, not only for what it names: runs over a gate, and what they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.app import Place, open_checked_app, place_in, rests, says, start_run

from kairos_mcp.settings.table_values import GateRule

LOOKS = (
    ("search_files", {"pattern": "alpha|hidden"}),
    ("search_files", {"pattern": "hidden", "path": "sub"}),
    ("list_files", {}),
    ("list_files", {"path": "sub"}),
    ("list_files", {"glob": "*.txt"}),
    ("file_tree", {"depth": 5}),
    ("read_file", {"path": "secret/plan.txt"}),
    ("read_file", {"path": "sub/deep/key.pem"}),
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = place_in(tmp_path / "p")
    for path in ("secret/plan.txt", "Secret2/x.txt", "sub/deep/key.pem", "sub/deep/open.txt"):
        file = place.workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("alpha hidden\n" if "open" not in path else "alpha\n")
    return place


async def run_looks(place: Place, *rules: GateRule, mandate: str | None = None) -> list[dict[str, Any]]:
    calls = [{"name": name, "arguments": given} for name, given in LOOKS]
    async with open_checked_app(place.settings({"tool_calls": calls}, says("done"), gate=rules)) as app:
        await rests(app, await start_run(app))
    found = place.rows("select body from answer join step on step.id = step where step.kind = 'call' order by step.id")
    return [json.loads(body) for (body,) in found]


async def test_a_denied_folder_and_denied_files_are_left_out_of_what_is_found_from_above(place: Place) -> None:
    rules = (GateRule("*", "deny", paths=("secret/**",)), GateRule("*", "deny", paths=("**/*.pem",)))
    results = await run_looks(place, *rules)
    for result in results[:6]:
        text = result["content"]
        assert not result.get("is_error"), text
        assert "plan.txt" not in text
        assert "key.pem" not in text
        assert "hidden" not in text.replace("Secret2/x.txt:1: alpha hidden", "")
    shown = [result["content"] for result in results]
    assert "sub/deep/open.txt:1: alpha" in shown[0]
    assert "Secret2/x.txt" in shown[0]
    assert "2 that a rule of the gate keeps from this call" in shown[0]
    assert "secret/" not in shown[2].split()
    assert [result.get("code") for result in results[6:]] == ["denied", "denied"]


async def test_what_a_person_would_be_asked_about_is_not_found_unasked(place: Place) -> None:
    rules = (GateRule("search_files", "ask", paths=("secret/**",)),)
    results = await run_looks(place, *rules)
    assert "plan.txt" not in results[0]["content"]
    assert "key.pem" in results[0]["content"]
    assert "secret/" in results[2]["content"].split()  # the rule is about searching alone


async def test_a_rule_on_another_tool_or_for_changes_alone_keeps_nothing_from_a_search(place: Place) -> None:
    rules = (
        GateRule("edit_file", "deny", paths=("secret/**",)),
        GateRule("*", "deny", paths=("**",), effect="irreversible"),
        GateRule("*", "allow", paths=("sub/**",)),
    )
    results = await run_looks(place, *rules)
    assert "secret/plan.txt:1" in results[0]["content"]
    assert "left out" not in results[2]["content"]
