"""The registry: order, choice, search; and the one call, which never raises."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from kairos_mcp.core.builtin_tools import REQUEST_MORE_ROUNDS
from kairos_mcp.core.errors import BadArguments, ConfigError, Stale, UnknownTool
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools import builtin_tools
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_tool

AROUND = ToolContext("run-1", time.monotonic() + 60, lambda _ref: None)
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "free": {}, "maybe": {"type": ["string", "null"]}},
    "required": ["x"],
    "additionalProperties": False,
}


def tool(name: str, run_tool: Any = None, **spec: Any) -> Tool:
    def echo(arguments: JsonObject, _around: ToolContext) -> ToolResult:
        return ToolResult("ran", data=arguments)

    return Tool(ToolSpec(name, **{"description": f"Does {name}.", "input_schema": SCHEMA, **spec}), run_tool or echo)


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry(
        [
            tool("list_files", effect="read", category="file_ops"),
            tool("write_file", effect="checked", category="file_ops"),
            tool("search_files", effect="read", category="search", description="Finds lines in files."),
            tool("run_command", category="system"),
        ]
    )


def names(specs: Any) -> list[str]:
    return [spec.name for spec in specs]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError):
        ToolRegistry([tool("a"), tool("a")])


def test_a_loop_is_offered_what_only_reads_unless_it_names_more(registry: ToolRegistry) -> None:
    assert names(registry.select(None)) == ["list_files", "search_files"]
    assert names(registry.select(["run_*", "*_files"])) == ["list_files", "search_files", "run_command"]
    assert names(registry.select(["write_file", "write_*"])) == ["write_file"]
    assert names(registry.select([])) == []


def test_a_glob_that_matches_nothing_is_the_error_and_names_what_is_near(registry: ToolRegistry) -> None:
    with pytest.raises(UnknownTool) as caught:
        registry.select(["list_files", "serch_files"])
    assert "search_files" in caught.value.hint
    with pytest.raises(UnknownTool) as caught:
        registry.select(["*" * 5000])
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("grep", "search_files"),
        ("Grep", "search_files"),
        ("find text in files", "search_files"),
        ("searching", "search_files"),
        ("Read", "read_file"),
        ("cat", "read_file"),
        ("open a file and show it", "read_file"),
        ("Glob", "list_files"),
        ("ls", "list_files"),
        ("which files are there", "list_files"),
        ("Bash", "run_command"),
        ("run the tests in a shell", "run_command"),
        ("terminal", "run_command"),
        ("Edit", "edit_file"),
        ("str_replace", "edit_file"),
        ("Write", "write_file"),
        ("create a new file", "write_file"),
        ("readFile", "read_file"),
    ],
)
def test_a_built_in_tool_is_found_by_what_people_and_hosts_call_it(tmp_path, query, found):
    with Workspace(tmp_path) as workspace:
        tools = ToolRegistry(builtin_tools(workspace, read_bytes=1_000))
        assert tools.search(query).tools[0]["name"] == found


def test_words_that_say_nothing_of_a_tool_find_nothing_by_themselves(registry: ToolRegistry) -> None:
    assert registry.search("what is this for").tools == registry.search().tools


def test_a_search_ranks_names_before_descriptions_and_pages(registry: ToolRegistry) -> None:
    page = registry.search("finds files", limit=2)
    assert [found["name"] for found in page.tools] == ["search_files", "list_files"]
    assert page.total == 3  # the third has "file" in its name
    assert set(page.tools[0]) == {"name", "description", "category", "effect"}
    first = registry.search(limit=3)
    rest = registry.search(limit=3, cursor=first.cursor)
    assert [found["name"] for found in (*first.tools, *rest.tools)] == names(registry.specs)
    assert rest.cursor is None
    assert registry.search("nothing of the kind").tools == ()


def test_whole_schemas_come_only_for_names_asked_for(registry: ToolRegistry) -> None:
    page = registry.search(names=["run_command", "list_files", "run_command"])
    assert [found["name"] for found in page.tools] == ["run_command", "list_files"]
    assert page.tools[0]["input_schema"] == SCHEMA
    assert page.as_json()["categories"] == ["file_ops", "search", "system"]
    with pytest.raises(UnknownTool):
        registry.search(names=["run_comand"])


def test_a_tool_asked_for_by_name_says_which_others_are_for_the_same_kind_of_work() -> None:
    named = [tool(name, category="file_ops") for name in "abcdefgh"]
    theirs = replace(tool("z", category="file_ops"), spec=replace(tool("z").spec, source="mcp:files"))
    registry = ToolRegistry([*named, theirs, tool("run_command", category="system")])
    last, alone, other = registry.search(names=["g", "run_command", "z"]).tools
    assert last["related"] == ["h", "a", "b", "c", "d"]
    assert ["related" in alone, "related" in other] == [False, False]


def test_a_category_and_a_cursor_must_be_known(registry: ToolRegistry) -> None:
    assert [found["name"] for found in registry.search(category="system").tools] == ["run_command"]
    for wrong in ({"category": "none"}, {"cursor": "x"}, {"cursor": "99"}, {"cursor": "-1"}, {"cursor": "٣"}):
        with pytest.raises(BadArguments):
            registry.search(**wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x": "1"},
        {"x": 3.0},
        {"x": True},
        {"x": 1, "y": 2},
        {"x": None},
        {"x": float("nan")},
        {"x": 1, "maybe": 3},
    ],
)
def test_arguments_that_do_not_fit_never_reach_the_tool(arguments: JsonObject) -> None:
    ran: list[JsonObject] = []

    def run_tool(given: JsonObject, _around: ToolContext) -> ToolResult:
        ran.append(given)
        return ToolResult("ran")

    result = call_tool(tool("a", run_tool), arguments, AROUND)
    assert (result.is_error, result.code, ran) == (True, "bad_arguments", [])
    assert "x (integer, required)" in result.content


def test_null_is_the_same_as_absent_but_where_the_schema_admits_it() -> None:
    optional = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {}, "d": True},
    }
    given = {"a": None, "b": None, "c": None, "d": None}
    assert call_tool(tool("t", input_schema=optional), given, AROUND).data == {"b": None, "c": None, "d": None}


def test_a_failure_that_is_known_keeps_its_code_and_hint() -> None:
    def run_tool(_arguments: JsonObject, _around: ToolContext) -> ToolResult:
        raise Stale("It changed.", "Read it again.")

    result = call_tool(tool("a", run_tool), {"x": 1}, AROUND)
    assert (result.is_error, result.code, result.content) == (True, "stale", "It changed. Read it again.")
    assert result.data == {
        "code": "stale",
        "message": "It changed.",
        "hint": "Read it again.",
        "retryable": False,
    }


@pytest.mark.parametrize(
    "error", [ValueError("/home/me/secret"), OSError(5, "x", "/etc/key"), RecursionError(), MemoryError()]
)
def test_a_bug_in_a_tool_is_a_result_without_its_text(error: Exception) -> None:
    def run_tool(_arguments: JsonObject, _around: ToolContext) -> ToolResult:
        raise error

    result = call_tool(tool("a", run_tool), {"x": 1}, AROUND)
    assert (result.is_error, result.code) == (True, "tool_failed")
    assert "secret" not in result.content
    assert "/etc" not in result.content


def test_a_schema_that_is_refused_is_a_result_too() -> None:
    result = call_tool(tool("a", input_schema={"$ref": "https://example.org/x.json"}), {"x": 1}, AROUND)
    assert (result.is_error, result.code) == (True, "schema_rejected")


def test_a_schema_is_compiled_once() -> None:
    one = tool("a")
    assert one.schema is one.schema


def test_built_in_tools_show_what_they_change_and_fit_their_own_examples(tmp_path: Any) -> None:
    tools = builtin_tools(tmp_path, read_bytes=1000)
    changing = [t for t in tools if t.spec.effect != "read" and not REQUEST_MORE_ROUNDS.is_tool(t.spec)]
    assert [t for t in tools if t.preview is not None] == changing
    assert {t.spec.name for t in tools if t.probe is not None} == {
        *(t.spec.name for t in tools if t.spec.effect == "checked"),
        "run_command",  # which cleans up
    }
    for one in tools:
        for example in one.examples:
            assert one.schema.problems(example) == []
    assert [t.spec.name for t in builtin_tools(None, read_bytes=1000)] == ["read_result", "request_more_rounds"]


def test_only_a_tool_that_reads_answers_at_once() -> None:
    """Before any other call it is asked whether the run is still this server's, which a thread may do."""

    def run(_arguments: dict[str, Any], _ctx: ToolContext) -> ToolResult:
        return ToolResult("done")

    schema = {"type": "object"}
    assert Tool(ToolSpec("look", "", schema, effect="read"), run, at_once=run).at_once is run
    with pytest.raises(ValueError, match="more than read"):
        Tool(ToolSpec("change", "", schema, effect="idempotent"), run, at_once=run)
