"""Functions of installed packages as tools: a real package on the path, a real entry point, real failures."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.downstream import WITHIN_S

from kairos_mcp.core.errors import ConfigError, UnknownTool
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.tool import StopSignal, ToolContext
from kairos_mcp.tools import tool
from kairos_mcp.tools.entry_points import EntryPointSource, build_tool
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_tool

MODULE = '''
import asyncio
import datetime
import enum
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from kairos_mcp.core.errors import NotFound
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.tools import ToolContext, tool


@dataclass
class Place:
    city: str
    zone: int = 0


@tool(effect="read", category="weather", timeout_s=5, examples=[{"city": "Graz"}])
def weather(city: str, days: Annotated[int, Field(ge=1, le=9)] = 1, unit: Literal["c", "f"] = "c") -> str:
    """Tells the weather of a city.

    For some days ahead.
    """
    return f"{city}: {days} days, in {unit}"


def typed(day: datetime.date, place: Place, tags: set[str] | None = None, model_dump: float = 0.5):
    """Takes what JSON can only spell."""
    return {"type": type(day).__name__, "city": place.city, "tags": sorted(tags or ()), "n": model_dump}


async def later(ctx: ToolContext, seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return ctx.run_id


def fails(how: str) -> object:
    """Fails."""
    match how:
        case "known":
            raise NotFound("There is no such city.", "Try Graz.")
        case "other":
            raise ValueError("/home/me/secret")
        case "exit":
            sys.exit(3)
        case "result":
            return ToolResult("its own", is_error=True)
        case "odd":
            return object()
        case "long":
            return "x" * 2_000_000
    return None


def bare(x):
    """No hint."""


def silent(x: int) -> str:
    return ""


def many(*x: int) -> str:
    """Any number."""


class Kind(enum.Enum):
    A = "a"
'''
POINTS = {
    **{name: f"brought.tools:{name}" for name in ("weather", "typed", "later", "fails")},
    "gone": "brought.tools:not_there",
    "missing": "brought.nowhere:x",
    "broken": "brought.broken:x",
    "leaves": "brought.leaves:x",
    "bare": "brought.tools:bare",
    "silent": "brought.tools:silent",
    "many": "brought.tools:many",
    "kind": "brought.tools:Kind",
    "x__weather": "brought.tools:weather",
}
GOOD = ["fails", "later", "typed", "weather"]


@pytest.fixture
def installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntryPointSource]:
    """A package that is installed: its modules and its metadata on the path."""
    package, record = tmp_path / "brought", tmp_path / "brought-1.0.dist-info"
    for folder in (package, record):
        folder.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text(MODULE)
    (package / "broken.py").write_text("raise RuntimeError('at import')\n")
    (package / "leaves.py").write_text("import sys; sys.exit(4)\n")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in POINTS.items())
    (record / "entry_points.txt").write_text(f"[kairos_mcp.tools]\n{lines}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed = EntryPointSource()
    assert installed.tools() == ()  # nothing is imported before somebody needs it
    installed.wait_ready(time.monotonic() + WITHIN_S)
    yield installed
    for name in [name for name in sys.modules if name.partition(".")[0] == "brought"]:
        del sys.modules[name]


def call_entry_point(installed: EntryPointSource, name: str, /, **arguments: Any) -> ToolResult:
    found = ToolRegistry([], [installed]).find(name)
    assert found is not None
    return call_tool(found, arguments, ToolContext("run-1", time.monotonic() + WITHIN_S, lambda _ref: None))


def test_a_function_is_a_tool_with_the_schema_of_its_hints(installed_package: EntryPointSource) -> None:
    found = ToolRegistry([], [installed_package]).find("weather")
    assert found is not None
    assert (found.spec.effect, found.spec.category, found.spec.source) == ("read", "weather", "python:brought")
    assert found.spec.description.splitlines()[0] == "Tells the weather of a city."
    assert (found.timeout_s, found.examples) == (5, ({"city": "Graz"},))
    assert found.spec.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert call_entry_point(installed_package, "weather", city="Graz", days=2).content == "Graz: 2 days, in c"


def test_a_function_that_states_nothing_is_irreversible(installed_package: EntryPointSource) -> None:
    found = ToolRegistry([], [installed_package]).find("typed")
    assert found is not None
    assert found.spec.effect == "irreversible"


def test_broken_packages_are_named_and_harm_nothing(installed_package: EntryPointSource) -> None:
    assert [each.spec.name for each in installed_package.tools()] == GOOD
    for name in set(POINTS) - set(GOOD):
        (note,) = [note for note in installed_package.notes() if f"'{name}'" in note]
        assert "brought" in note
    assert not any("at import" in note for note in installed_package.notes())


def test_a_registry_with_functions_notes_what_is_broken(installed_package: EntryPointSource) -> None:
    registry = ToolRegistry([], [installed_package])
    assert registry.notes(None) == installed_package.notes() != ()
    with pytest.raises(UnknownTool, match="'bare' of brought is left out"):
        registry.select(["not_there"])


def test_arguments_come_as_the_hints_say_or_not_at_all(installed_package: EntryPointSource) -> None:
    given = {"day": "2026-11-22", "place": {"city": "Graz"}, "tags": ["b", "a"], "model_dump": 2}
    made = call_entry_point(installed_package, "typed", **given)
    assert made.content == '{"type":"date","city":"Graz","tags":["a","b"],"n":2.0}'
    for wrong in ({"day": "tomorrow"}, {"place": {"city": 3}}, {"place": {"town": "Graz"}}, {"tags": "ab"}, {"day": 5}):
        assert call_entry_point(installed_package, "typed", **{**given, **wrong}).code == "bad_arguments"
    for wrong in (
        {"city": 3},
        {"city": "Graz", "days": 1.0},
        {"city": "Graz", "days": "1"},
        {"city": "G", "more": 1},
        {},
    ):
        assert call_entry_point(installed_package, "weather", **wrong).code == "bad_arguments"


@pytest.mark.parametrize(
    ("how", "is_error", "code", "said"),
    [
        ("known", True, "not_found", "There is no such city. Try Graz."),
        ("other", True, "tool_failed", "ValueError"),
        ("exit", True, "tool_failed", "SystemExit"),
        ("result", True, None, "its own"),
        ("odd", True, "tool_failed", "JSON"),
        ("none", False, None, "done"),
    ],
)
def test_what_a_function_raises_or_returns_is_a_result(
    installed_package: EntryPointSource, how: str, is_error: bool, code: str | None, said: str
) -> None:
    result = call_entry_point(installed_package, "fails", how=how)
    assert (result.is_error, result.code) == (is_error, code)
    assert said in result.content
    assert "secret" not in result.content


def test_a_result_without_end_is_cut_and_says_so(installed_package: EntryPointSource) -> None:
    assert "2,000,000 characters" in call_entry_point(installed_package, "fails", how="long").content[-100:]


def test_an_async_function_runs_is_stopped_and_ends_in_time(installed_package: EntryPointSource) -> None:
    assert run_later(installed_package, 0).content == "run-1"
    began = time.monotonic()
    assert run_later(installed_package, 60, until=0.2).code == "timeout"
    stop = StopSignal()
    threading.Timer(0.1, stop.set).start()
    assert run_later(installed_package, 60, stop=stop).code == "timeout"
    assert time.monotonic() - began < 10


def run_later(
    installed: EntryPointSource, wait: float, until: float = WITHIN_S, stop: StopSignal | None = None
) -> ToolResult:
    found = ToolRegistry([], [installed]).find("later")
    assert found is not None
    ctx = ToolContext("run-1", time.monotonic() + until, lambda _ref: None, stop=stop or StopSignal())
    return call_tool(found, {"seconds": wait}, ctx)


def test_a_name_with_a_server_s_mark_is_refused() -> None:
    def fine(x: int) -> str:
        """Fine."""
        return str(x)

    for name in ("files__read", "a b", "x" * 65, ""):
        with pytest.raises(ConfigError):
            build_tool(name, fine, "python:x")
    assert build_tool("fine", fine, "python:x").spec.name == "fine"


def test_an_effect_that_needs_more_than_a_word_is_refused() -> None:
    state: Callable[..., Any] = tool
    with pytest.raises(ConfigError):
        state(effect="checked")
