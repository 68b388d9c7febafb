"""Many tools: a loop is shown few and finds the rest; a round does not pay for what it does not see."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kairos_mcp.core.errors import ToolNotOffered, UnknownTool
from kairos_mcp.core.messages import SEARCH, ToolResult, ToolSet, ToolSpec, discovered_tools
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import (
    MAX_DEFAULT_CHARS,
    MAX_DEFAULT_TOOLS,
    MAX_FOUND,
    MAX_SHOWN_TOOLS,
    MAX_SPEC_CHARS,
    LateTools,
    offer_tools,
    search_tool,
)
from kairos_mcp.tools.tool import call_tool

AROUND = ToolContext("run-1", time.monotonic() + 600, lambda _ref: None)
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def spec(name: str, effect: Any = "irreversible", **more: Any) -> ToolSpec:
    return ToolSpec(name, **{"description": f"Does {name}.", "input_schema": SCHEMA, "effect": effect, **more})


def crowd(n: int, **more: Any) -> list[ToolSpec]:
    return [spec(f"x__tool_{i}", source="mcp:x#1", **more) for i in range(n)]


OURS = [spec("read_file", "read"), spec("read_result", "read"), spec("edit_file", "checked")]


def names(specs: Any) -> list[str]:
    return [each.name for each in specs]


def search(behind: ToolSet, **arguments: Any) -> ToolResult:
    return call_tool(search_tool(behind), arguments, AROUND)


def test_few_tools_are_all_shown() -> None:
    granted = ToolSet([*OURS, *crowd(MAX_SHOWN_TOOLS - len(OURS))])
    offer = offer_tools(granted)
    assert (offer.shown is granted, len(offer.searchable), offer.notes) == (True, 0, ())


def test_beyond_forty_a_loop_gets_its_reads_and_a_search() -> None:
    offer = offer_tools(ToolSet([*OURS, *crowd(MAX_SHOWN_TOOLS)]))
    assert names(offer.shown) == ["read_file", "read_result", SEARCH]
    assert len(offer.searchable) == MAX_SHOWN_TOOLS + 1
    assert str(MAX_SHOWN_TOOLS + 3) in offer.notes[0]


def test_beyond_the_characters_too_and_reads_of_others_are_not_kept_where_they_are_the_crowd() -> None:
    long = offer_tools(ToolSet([*OURS, *crowd(10, description="d" * (MAX_SPEC_CHARS // 10))]))
    assert names(long.shown)[-1] == SEARCH
    reads = offer_tools(ToolSet([*OURS, *crowd(1000, effect="read")]))
    assert names(reads.shown) == ["read_file", "read_result", SEARCH]
    assert len(reads.searchable) == 1001


def test_of_a_run_that_names_no_tools_a_server_s_join_while_there_is_room() -> None:
    ours = [each for each in OURS if each.effect == "read"]
    small = [spec(f"y__look_{n}", "read", source=f"mcp:y#{n}") for n in range(4)]
    few = ToolSet([*ours, *small])
    assert offer_tools(few, is_default=True).shown is few
    crowded = offer_tools(ToolSet([*ours, *crowd(MAX_DEFAULT_TOOLS, effect="read"), *small]), is_default=True)
    assert names(crowded.shown) == ["read_file", "read_result", *names(small), SEARCH]
    assert len(crowded.searchable) == MAX_DEFAULT_TOOLS
    long = [spec(f"z__{n}", "read", source="mcp:z#1", description="d" * (MAX_DEFAULT_CHARS // 4)) for n in range(4)]
    assert names(offer_tools(ToolSet([*ours, *long, *small]), is_default=True).shown)[2:] == [*names(small), SEARCH]
    assert names(offer_tools(ToolSet([*ours, *long, *small])).shown) == names([*ours, *long, *small])


def test_what_a_search_finds_joins_the_offer_in_that_order() -> None:
    behind = offer_tools(ToolSet([*OURS, *crowd(50), spec("y__weather", description="Tells the weather.")])).searchable
    found = search(behind, query="weather")
    assert discovered_tools(found) == (behind.find("y__weather"),)
    many = search(behind, query="tool")
    assert len(discovered_tools(many)) == MAX_FOUND
    assert f"{50 - MAX_FOUND} more" in many.content
    named = search(behind, names=["x__tool_7", "edit_file", "nothing", "x__tool_7"])
    assert names(discovered_tools(named)) == ["x__tool_7", "edit_file"]
    assert "edit_file (checked)" in named.content


def test_nothing_beyond_what_the_run_may_use_is_ever_found() -> None:
    behind = offer_tools(ToolSet([*OURS, *crowd(50)])).searchable
    outside = search(behind, names=["read_file", "http_fetch"])
    assert discovered_tools(outside) == ()
    assert discovered_tools(search(behind, query="fetch")) == ()
    assert search(behind).code == "bad_arguments"
    assert discovered_tools(ToolResult("x")) == ()
    assert discovered_tools(ToolResult("x", data={"offer": None})) == ()


class Crowd:
    """A source with many tools; counts how often they are asked for."""

    name = "x"

    def __init__(self, n: int) -> None:
        self.version, self.asked = 1, 0
        self._tools = tuple(Tool(each, lambda *_: ToolResult("ran")) for each in crowd(n))

    def tools(self) -> tuple[Tool, ...]:
        self.asked += 1
        return self._tools

    def why_withheld(self, name: str) -> str | None:
        return "It waits." if name == "x__new" else None

    def may_match(self, globs: object) -> bool:
        return True

    is_starting = False

    def starting(self) -> tuple[Crowd, ...]:
        return (self,)

    def wait_ready(self, until: float) -> None:
        self.version += 1

    def notes(self) -> tuple[str, ...]:
        return ("x is slow.",)


def test_a_thousand_tools_cost_a_call_no_more_than_none() -> None:
    many, none = Crowd(1000), Crowd(0)
    ours = [Tool(each, lambda *_: ToolResult("ran")) for each in OURS]

    def seconds(source: Crowd) -> float:
        registry = ToolRegistry(ours, [source])
        registry.find("read_file")
        best = 1.0
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(200):
                registry.find("read_file")
                registry.resolve(OURS[0])
            best = min(best, time.perf_counter() - began)
        return best

    assert seconds(many) < 2 * seconds(
        none
    )  # the same dictionary, whatever is in it; the factor is the noise of a clock
    assert (many.asked, none.asked) == (1, 1)


def test_a_source_that_changes_is_seen_at_the_next_look() -> None:
    source = Crowd(3)
    registry = ToolRegistry([], [source])
    assert len(registry.specs) == 3
    source._tools = source._tools[:1]
    assert len(registry.specs) == 3
    registry.wait_ready(None)
    assert len(registry.specs) == 1
    assert registry.find("x__tool_2") is not None  # a call that was begun for it still finds it, and its reason
    assert registry.can_resolve(["x__new"])
    assert not registry.can_resolve(["x__nothing"])
    assert registry.notes(None) == ("x is slow.",)


def test_a_tool_that_is_withheld_is_named_with_its_reason() -> None:
    registry = ToolRegistry([], [Crowd(1)])
    with pytest.raises(UnknownTool, match="waits"):
        registry.select(["x__new"])
    with pytest.raises(ToolNotOffered, match="waits"):
        registry.resolve(spec("x__new"))


def test_sources_are_made_ready_side_by_side() -> None:
    all_there, passed = threading.Barrier(8, timeout=10), []

    class Slow(Crowd):
        def wait_ready(self, until: float) -> None:
            passed.append(all_there.wait())

    ToolRegistry([], [Slow(0) for _ in range(8)]).wait_ready(("x__*",))
    assert len(passed) == 8


class Starting(Crowd):
    """A server that is being started; keeps how long it was waited for."""

    is_starting = True

    def __init__(self, name: str) -> None:
        super().__init__(0)
        self.name = name
        self.waited: list[int] = []

    def may_match(self, globs: Any) -> bool:
        return globs is None or any(glob == "*" or glob.startswith(f"{self.name}__") for glob in globs)

    def wait_ready(self, until: float) -> None:
        self.waited.append(round(until - time.monotonic()))


@pytest.mark.parametrize(
    ("globs", "named", "waited"),
    [
        (None, (), (3, 3)),
        (("*",), (), (3, 3)),
        (("x__*",), (), (30, None)),
        (("x__echo",), (), (30, None)),
        (("*", "x__echo"), (), (30, 3)),
        (("y__[ab]",), (), (None, 30)),
        (("*__echo",), (), (None, None)),
        (("read_file",), (), (None, None)),
        (None, ("y__look",), (3, 30)),
        (("read_file",), ("y__look", "edit_file"), (None, 30)),
    ],
)
def test_a_source_that_is_named_by_a_tool_or_a_glob_is_waited_for_longer(
    globs: Any, named: tuple[str, ...], waited: tuple[int | None, int | None]
) -> None:
    x, y = Starting("x"), Starting("y")
    ToolRegistry([Tool(each, lambda *_: ToolResult("ran")) for each in OURS], [x, y]).wait_ready(globs, named)
    assert (x.waited, y.waited) == tuple([] if seconds is None else [seconds] for seconds in waited)


def test_a_glob_may_name_what_is_coming_and_nothing_else_that_is_not_there() -> None:
    registry = ToolRegistry([Tool(each, lambda *_: ToolResult("ran")) for each in OURS], [Starting("x")])
    assert names(registry.select(("read_file", "x__*"))) == ["read_file"]
    assert registry.starting_sources(("x__*",)) == ("x",)
    assert registry.starting_sources(("read_file",)) == ()
    for nothing in ("x__echo", "y__*", "nothing*"):
        with pytest.raises(UnknownTool):
            registry.select((nothing,))


def test_what_has_come_since_is_found_beside_what_was_behind() -> None:
    behind, came = ToolSet(crowd(3)), spec("y__weather", description="Tells the weather.")

    def look(*names: str, coming: tuple[str, ...] = (), **asked: Any) -> ToolResult:
        return call_tool(search_tool(behind, lambda: LateTools(ToolSet([came][: len(names)]), coming)), asked, AROUND)

    assert discovered_tools(look("y", query="weather")) == (came,)
    assert discovered_tools(look("y", names=["y__weather", "x__tool_1"])) == (came, behind.find("x__tool_1"))
    nothing = look(query="weather", coming=("y",))
    assert discovered_tools(nothing) == ()
    assert "y are not there yet" in nothing.content


def test_a_run_with_a_tool_called_as_the_search_begins_without_what_is_coming_and_says_so() -> None:
    mine = ToolSpec(SEARCH, "Mine.", {}, source="caller")
    offer = offer_tools(ToolSet([*OURS, mine]), ("x",))
    assert (offer.shown.find(SEARCH), offer.search, offer.finds_late_tools) == (mine, None, False)
    assert "x" in offer.notes[0]


def test_built_in_tools_come_first_then_those_of_each_source() -> None:
    registry = ToolRegistry([Tool(each, lambda *_: ToolResult("ran")) for each in OURS], [Crowd(2)])
    assert names(registry.specs) == ["read_file", "read_result", "edit_file", "x__tool_0", "x__tool_1"]
