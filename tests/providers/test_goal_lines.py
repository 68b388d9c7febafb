"""The lines of the workspace in the first message of the short prompts: those with the rarer words of the goal."""

from __future__ import annotations

import pytest
from support.app import Place, rests, says, start_run
from support.provider_server import Standin, talks

from kairos_mcp.app import start
from kairos_mcp.app.app import App
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.specs.short_prompts import (
    MAX_FILE_LINES,
    MAX_LINES_CHARS,
    FoundLines,
    add_goal_lines,
    choose_lines,
    goal_words,
)

HEADING = "## Lines of these files that hold words of the goal"


@pytest.fixture(autouse=True)
def has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a few files are not searched within what a start takes for it."""
    monkeypatch.setattr(start, "FILE_NAMES_S", 5.0)
    monkeypatch.setattr(start, "GOAL_LINES_S", 5.0)
    monkeypatch.setattr(start, "FILE_NAMES_GRACE_S", 10.0)


async def quoted_lines(place: Place, goal: str, *gate: GateRule, tools: tuple[str, ...] | None = None) -> list[str]:
    """The quoted lines that a run with the short prompts is shown of the files' texts."""
    async with App.open(place.settings(says("no"), says("no"), prompts="short", gate=gate), via="serve") as app:
        await rests(app, await start_run(app, goal, tools=tools))
    ((first,),) = place.rows("select body from text where body like '## Goal%'")
    _, _, lines = first.partition(HEADING)
    return [line.removeprefix("> ") for line in lines.splitlines() if line.startswith("> ")]


async def test_the_first_message_brings_the_lines_with_words_of_the_goal(place: Place) -> None:
    (place.workspace / "oven.py").write_text("import heat\n\nHEAT_OF_RYE = 245\n")
    (place.workspace / "plan.md").write_text("# Plan\n\nWheat is baked on Monday.\n")
    assert await quoted_lines(place, "How hot is the oven for rye?") == ["oven.py:3: HEAT_OF_RYE = 245"]


async def test_the_rarer_a_word_the_sooner_its_lines_are_taken(place: Place) -> None:
    (place.workspace / "a-oven.txt").write_text("".join(f"the oven is warm, says number {n}\n" for n in range(40)))
    (place.workspace / "z-rye.txt").write_text("Rye is baked at 245 degrees in the oven.\n")
    lines = await quoted_lines(place, "At how many degrees is rye baked in the oven?")
    assert lines[-1] == "z-rye.txt:1: Rye is baked at 245 degrees in the oven."
    assert len(lines) == 1 + MAX_FILE_LINES


async def test_a_word_that_fills_the_search_gives_way_to_the_others(place: Place) -> None:
    for n in range(8):
        (place.workspace / f"oven-{n}.txt").write_text("oven\n" * 200)
    (place.workspace / "z-rye.txt").write_text("rye: 245\n")
    assert await quoted_lines(place, "oven rye") == ["z-rye.txt:1: rye: 245"]


async def test_what_a_rule_hides_or_forbids_is_not_shown(place: Place) -> None:
    (place.workspace / "secret.txt").write_text("rye: 245\n")
    (place.workspace / "open.txt").write_text("rye: ask Mira\n")
    rule = GateRule("*", "deny", ("secret.txt",))
    assert await quoted_lines(place, "How hot for rye?", rule) == ["open.txt:1: rye: ask Mira"]


async def test_a_rule_against_searching_leaves_the_lines_out(place: Place) -> None:
    (place.workspace / "open.txt").write_text("rye: 245\n")
    assert await quoted_lines(place, "How hot for rye?", GateRule("search_files", "deny")) == []


async def test_a_run_that_may_not_search_is_shown_no_lines(place: Place) -> None:
    (place.workspace / "open.txt").write_text("rye: 245\n")
    assert await quoted_lines(place, "How hot for rye?", tools=("list_files",)) == []


async def test_a_value_of_an_env_file_stays_hidden(place: Place) -> None:
    (place.workspace / ".env.local").write_text("RYE=245\n")
    assert "245" not in "".join(await quoted_lines(place, "How hot for rye, 245?"))


async def test_a_search_for_which_there_is_no_time_is_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "GOAL_LINES_S", -1.0)
    (place.workspace / "open.txt").write_text("rye: 245\n")
    assert await quoted_lines(place, "How hot for rye?") == []


async def test_a_large_model_is_shown_no_lines(place: Place, server: Standin) -> None:
    (place.workspace / "open.txt").write_text("rye: 245\n")
    server.will(talks("no"))
    async with App.open(place.settings(model="openai:gpt-5", base_url=server.openai), via="serve") as app:
        await rests(app, await start_run(app, "How hot for rye?"))
    assert "245" not in str(server.bodies[0])


def test_words_that_say_nothing_are_left_out_and_endings_are_cut() -> None:
    assert goal_words("Which of the files mentions recipes, NoSuchLoaf or x?") == ("mentio", "recip", "nosuchlo")
    assert goal_words("What is in it?") == ()
    assert len(goal_words(" ".join(f"word{n}" for n in range(100)))) == 12


def test_the_lines_have_a_bound_whatever_is_found() -> None:
    found = FoundLines(tuple((f"file-{n}.txt", n, f"rye {n} " + "x" * 500) for n in range(40)))
    text = choose_lines(("rye",), found).text
    assert 800 < len(text) <= MAX_LINES_CHARS
    assert all(line.endswith("…") for line in text.splitlines())


@pytest.mark.parametrize(("is_partial", "says_so"), [(True, True), (False, False)])
def test_lines_of_a_search_that_ran_out_of_time_say_so(is_partial: bool, says_so: bool) -> None:
    found = FoundLines.of_result(
        ToolResult("a.txt:1: rye", data={"matches": 1, "stopped_at_most": False, "partial": is_partial})
    )
    message = add_goal_lines("## Goal", "$lines", choose_lines(("rye",), found))
    assert message.startswith("## Goal\n\n> a.txt:1: rye")
    assert ("not every file was searched" in message) is says_so
