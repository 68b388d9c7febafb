"""The grammar of steps' paths, from which views, replay and accounts read whose step it is."""

from __future__ import annotations

import pytest

from kairos_mcp.core.steps import call_path, enclosing_paths, last_part, round_of, sort_key, split_path, turn_of


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("round-3/call-2", [("round", 3), ("call", 2)]),
        ("cycle-10/act/call-1", [("cycle", 10), ("act", 0), ("call", 1)]),
        ("closing", [("closing", 0)]),
        ("", [("", 0)]),
        ("-3", [("-3", 0)]),
        ("call-", [("call-", 0)]),
        ("call-1234567890", [("call-1234567890", 0)]),
        ("call-²", [("call-²", 0)]),
        ("try-on-2", [("try-on", 2)]),
    ],
)
def test_a_path_is_a_list_of_names_with_ordinals(path: str, parts: list[tuple[str, int]]) -> None:
    assert list(split_path(path)) == parts
    assert last_part(path) == parts[-1]


def test_a_call_belongs_to_its_turn() -> None:
    assert turn_of(call_path("cycle-1/decide/read-2", 7)) == ("cycle-1/decide/read-2", 7)
    assert turn_of("round-3") == ("round-3", 0)
    assert turn_of("round-3/call-x") == ("round-3/call-x", 0)


def test_a_step_stands_in_every_path_above_it() -> None:
    assert list(enclosing_paths("a/b/c")) == ["a/b", "a"]
    assert list(enclosing_paths("a")) == []


def test_steps_are_ordered_as_they_come() -> None:
    mixed = ["closing", "round-10", "round-2/call-10", "output/repair-1", "round-2", "round-2/call-2"]
    came = ["round-2", "round-2/call-2", "round-2/call-10", "round-10", "output/repair-1", "closing"]
    assert sorted(mixed, key=sort_key) == came


def test_the_round_is_the_outermost_one() -> None:
    assert [round_of(path) for path in ("round-12/call-1", "task-1/round-4", "closing")] == [12, 4, 0]
