"""Mandates as values: strict in, one canonical form out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.mandate import Mandate, goal_hash, parse_mandate
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import Scopes, plain_path_or_none

WHOLE: JsonObject = {
    "id": "links",
    "goal": "Mend the links.",
    "observe": ["file_tree", {"tool": "read_file", "args": {"path": "a.md", "start_line": None}}],
    "max_cycles": 10,
    "checkpoint_every": 3,
    "risk_budget": "medium",
    "allowed_actions": ["code_edit", "edit_plan", "create_file", "run_tool", "noop"],
    "decide_hints": {"prefer_scope": "docs/*", "max_edit_bytes": 100},
    "acceptance": [
        {"check": "file_exists", "path": "a.md"},
        {"check": "file_contains", "path": "a.md", "text": "whole"},
        {"check": "command_succeeds", "argv": ["make", "test"], "cwd": "sub"},
    ],
    "tools": ["search_*"],
    "workspace": "docs",
    "limits": {"usd": 0.5, "seconds": 90.0, "model_calls": 7},
    "schedule": {"rule": "0 9 * * 1-5", "time_zone": "Europe/Berlin", "catch_up": "bounded", "bound": 2},
}


_leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
_names = st.sampled_from(sorted(WHOLE)) | st.text(max_size=3)
_any_json = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4), max_leaves=8
)


def test_defaults_are_those_of_the_contract_and_are_spelled_out() -> None:
    mandate = parse_mandate({"goal": "x"})
    assert (mandate.max_cycles, mandate.checkpoint_every, mandate.risk_budget) == (3, 1, "low")
    assert mandate.max_edit_bytes == 4_096
    assert mandate.as_json()["decide_hints"] == {"max_edit_bytes": 4_096}


def test_every_key_is_read_and_given_back() -> None:
    mandate = parse_mandate(WHOLE)
    assert mandate.as_json() == WHOLE
    assert mandate.limits == Limits(nano_usd=500_000_000, milliseconds=90_000, model_calls=7)
    assert parse_mandate(mandate.as_json()) == mandate


def test_the_hash_is_of_what_is_meant_not_of_how_it_was_written() -> None:
    short = parse_mandate({"goal": "x"})
    long = parse_mandate({"id": "a", "observe": ["file_tree"], "goal": "x", "max_cycles": 3, "tools": None})
    assert short.digest == long.digest
    assert short.digest != parse_mandate({"goal": "x", "max_cycles": 2}).digest
    assert short.goal_hash == goal_hash("x")


WRONG: dict[str, Any] = {
    "no object": [{"goal": "x"}],
    "no goal": {},
    "blank goal": {"goal": " \n"},
    "unknown key": {"goal": "x", "colour": "red"},
    "unknown hint": {"goal": "x", "decide_hints": {"scope": "L2"}},
    "id with a slash": {"goal": "x", "id": "../a"},
    "no cycles": {"goal": "x", "max_cycles": 0},
    "eleven cycles": {"goal": "x", "max_cycles": 11},
    "cycles with a point": {"goal": "x", "max_cycles": 3.0},
    "cycles as text": {"goal": "x", "max_cycles": "3"},
    "cycles as truth": {"goal": "x", "max_cycles": True},
    "checkpoint too far": {"goal": "x", "checkpoint_every": 4},
    "high risk": {"goal": "x", "risk_budget": "high"},
    "unknown action": {"goal": "x", "allowed_actions": ["delete"]},
    "no action": {"goal": "x", "allowed_actions": []},
    "rounds": {"goal": "x", "limits": {"rounds": 3}},
    "null limit": {"goal": "x", "limits": {"usd": None}},
    "negative limit": {"goal": "x", "limits": {"seconds": -1}},
    "endless limit": {"goal": "x", "limits": {"usd": float("inf")}},
    "limit that is none": {"goal": "x", "limits": {"usd": float("nan")}},
    "look without tool": {"goal": "x", "observe": [{"args": {}}]},
    "look with more": {"goal": "x", "observe": [{"tool": "a", "why": "b"}]},
    "too many looks": {"goal": "x", "observe": ["a"] * 17},
    "check without kind": {"goal": "x", "acceptance": [{"path": "a"}]},
    "check without text": {"goal": "x", "acceptance": [{"check": "file_contains", "path": "a"}]},
    "check with more": {"goal": "x", "acceptance": [{"check": "file_exists", "path": "a", "text": "b"}]},
    "check outside": {"goal": "x", "acceptance": [{"check": "file_exists", "path": "/etc/passwd"}]},
    "check with a shell": {"goal": "x", "acceptance": [{"check": "command_succeeds", "argv": "make test"}]},
    "check without command": {"goal": "x", "acceptance": [{"check": "command_succeeds", "argv": []}]},
    "scope of the server": {"goal": "x", "decide_hints": {"prefer_scope": "L0"}},
    "scope outside": {"goal": "x", "decide_hints": {"prefer_scope": "../docs"}},
    "rule with seconds": {"goal": "x", "schedule": {"rule": "0 0 9 * * *"}},
    "rule of no day": {"goal": "x", "schedule": {"rule": "0 9 31 2 *"}},
    "rule of words": {"goal": "x", "schedule": {"rule": "every day at nine"}},
    "unknown zone": {"goal": "x", "schedule": {"rule": "0 9 * * *", "time_zone": "Mars/North"}},
    "bound without meaning": {"goal": "x", "schedule": {"rule": "0 9 * * *", "bound": 2}},
    "bound too far": {"goal": "x", "schedule": {"rule": "0 9 * * *", "catch_up": "bounded", "bound": 11}},
    "half a surrogate pair": {"goal": "\ud800"},
}


@pytest.mark.parametrize("case", WRONG)
def test_nothing_is_dropped_or_clamped(case: str) -> None:
    with pytest.raises(BadArguments) as refused:
        parse_mandate(WRONG[case])
    assert refused.value.message.startswith("mandate: ")
    assert refused.value.hint


def test_depth_is_refused_and_not_fallen_into() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"a": deep}
    with pytest.raises(BadArguments, match="deeper"):
        parse_mandate({"goal": "x", "observe": [deep]})


def test_absent_and_null_are_the_same_but_in_arguments_of_a_tool() -> None:
    nothing = {name: None for name in WHOLE if name != "goal"}
    assert parse_mandate({"goal": "x", **nothing}) == Mandate("x")
    assert parse_mandate({"goal": "x", "schedule": {"rule": "0 9 * * *", "bound": None}}).schedule is not None
    assert parse_mandate(WHOLE).observe[1].arguments["start_line"] is None


def test_to_do_nothing_is_always_allowed() -> None:
    assert parse_mandate({"goal": "x", "allowed_actions": ["create_file"]}).allowed_actions == ("create_file", "noop")


@given(_any_json)
@settings(max_examples=200, deadline=None)
def test_any_json_is_a_mandate_that_reads_back_or_bad_arguments(value: Any) -> None:
    try:
        mandate = parse_mandate(value if not isinstance(value, dict) else {"goal": "x", **value})
    except BadArguments:
        return
    assert parse_mandate(mandate.as_json()) == mandate


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("src/a.py", "L2"),
        ("AGENTS.md", "L1"),
        ("docs/agents.md", "L1"),
        (".claude/settings.json", "L1"),
        ("sub/.github/workflows/ci.yml", "L1"),
        ("prompts/planner.md", "L1"),
        ("src/prompts/planner.md", "L2"),
        (".git/config", "L0"),
        ("vendor/.GIT/hooks/x", "L0"),
        ("../a", "L0"),
        ("/etc/passwd", "L0"),
        ("a\\b", "L0"),
        ("", "L0"),
    ],
)
def test_a_path_has_a_scope_and_what_is_no_path_the_highest(path: str, scope: str) -> None:
    assert Scopes().scope_of(path) == scope


@given(st.text(max_size=20))
def test_a_plain_path_is_plain_and_stays_so(path: str) -> None:
    plain = plain_path_or_none(path)
    if plain is not None:
        assert plain_path_or_none(plain) == plain
        assert not plain.startswith("/")
        assert ".." not in plain.split("/")
