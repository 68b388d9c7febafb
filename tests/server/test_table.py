"""The listing, as clients see it: snapshots of every tool, their hints, their size.

After a change that is meant, `python -m tests.server.test_table` rewrites the snapshots and the listing.
"""

from __future__ import annotations

import json
import re
import tomllib
from base64 import b64decode
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.limits import CAPS
from kairos_mcp.core.mandate import MANDATE_SCHEMA
from kairos_mcp.server.arguments.ooda import MANDATE_SHAPE
from kairos_mcp.server.claude_code import without_meta
from kairos_mcp.server.handlers import HANDLERS
from kairos_mcp.server.mcp_server import CORE, LEAN, LISTING, instructions, list_tools
from kairos_mcp.server.tools import TOOLS, as_listed
from kairos_mcp.server.validation import flat_schema

SNAPSHOTS = Path(__file__).with_name("__snapshots__")


def as_sent(tool: Any) -> dict[str, Any]:
    return tool.as_tool().model_dump(by_alias=True, exclude_none=True, mode="json")


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_is_listed_as_its_snapshot_says(tool):
    assert as_sent(tool) == json.loads((SNAPSHOTS / f"{tool.name}.json").read_text())


async def test_the_server_says_what_it_is_and_draws_itself(settings, connect):
    async with connect(settings) as client:
        info = client.raw.server_info
        assert info is not None
        assert (info.name, info.title) == ("kairos-mcp", "Kairos")
        declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        assert info.description == declared["description"]
        registry = json.loads((Path(__file__).parents[2] / "server.json").read_text())
        assert info.website_url == registry["websiteUrl"]
        (icon,) = info.icons
        form, _, content = icon.src.partition(",")
        assert form == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(b64decode(content)).tag == "{http://www.w3.org/2000/svg}svg"
        assert len(icon.src) <= 300


async def test_only_lists_that_change_are_said_to_change(settings, connect):
    async with connect(settings) as client:
        said = client.raw.server_capabilities
        changes = {name: getattr(said, name).list_changed for name in ("tools", "prompts", "resources")}
        assert changes == {"tools": False, "prompts": False, "resources": True}


def test_every_tool_has_a_handler_or_starts_a_run():
    starting = {tool.name for tool in TOOLS if hasattr(tool.arguments, "request")}
    assert starting.isdisjoint(HANDLERS)
    assert starting | HANDLERS.keys() == {tool.name for tool in TOOLS}


def test_every_tool_says_what_it_gives():
    for tool in TOOLS:
        assert as_sent(tool)["outputSchema"]["type"] == "object"


async def test_the_schemas_that_are_too_long_for_the_listing_are_resources(settings, connect):
    async with connect(settings) as client:
        resources = (await client.raw.list_resources()).resources
        listed = [str(resource.uri) for resource in resources if resource.mime_type == "application/schema+json"]
        assert listed == ["kairos://schema/mandate", "kairos://schema/result"]
        texts = {uri: (await client.raw.read_resource(uri)).contents[0].text for uri in listed}
        for text in texts.values():
            Draft202012Validator.check_schema(json.loads(text))
        assert json.loads(texts["kairos://schema/mandate"]) == MANDATE_SCHEMA


def test_the_line_of_a_mandates_shape_names_all_of_it():
    """What a model reads before it writes one: every key, every word of an enumeration."""
    named = set(re.findall(r"\w+", MANDATE_SHAPE))
    stack: list[dict[str, Any]] = [MANDATE_SCHEMA]
    while stack:
        node = stack.pop()
        of_limits = {"input_tokens", "model_calls"} & node.get("properties", {}).keys()
        assert of_limits or node.get("properties", {}).keys() <= named
        assert set(node.get("enum", ())) - {"skip", "once", "bounded"} <= named
        stack += [each for each in (*node.get("properties", {}).values(), node.get("items")) if isinstance(each, dict)]


def test_there_is_no_snapshot_without_a_tool():
    assert sorted(file.stem for file in SNAPSHOTS.glob("*.json")) == sorted(tool.name for tool in TOOLS)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_property_is_typed_and_every_keyword_plain(tool):
    def check(schema: dict[str, Any], known: set[str]) -> None:
        assert schema["type"] in {"object", "array", "string", "integer", "number", "boolean"}
        assert set(schema) <= known
        for inner in [
            *schema.get("properties", {}).values(),
            *([schema["items"]] if "items" in schema else []),
        ]:
            check(inner, known)

    sent = as_sent(tool)
    plain = {"type", "properties", "required", "items", "enum", "description"}
    Draft202012Validator.check_schema(sent["inputSchema"])
    check(sent["inputSchema"], {*plain, "additionalProperties"})
    Draft202012Validator.check_schema(sent["outputSchema"])
    check(sent["outputSchema"], plain)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_argument_is_described_where_there_is_room_for_it(tool):
    """In the documentation; the listing leaves out what the argument's name says."""
    described = flat_schema(tool.arguments)["properties"]
    assert [name for name, schema in described.items() if not schema.get("description")] == []


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_hints_follow_from_the_effect_class(tool):
    reads = tool.name in {"run_status", "run_trace", "registry_search", "mandate_list", "budget_status"}
    hints = as_sent(tool)["annotations"]
    assert set(hints) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
    assert hints["readOnlyHint"] is reads
    assert hints["destructiveHint"] is (tool.name in {"registry_call", "ooda_act"})


def names_listed(choice: str) -> list[str]:
    return [tool.name for tool in list_tools(choice).tools]


def test_the_choice_of_tools_keeps_their_order():
    assert names_listed("lean") == list(LEAN)
    assert names_listed("core") == list(CORE)
    assert names_listed("all") == [tool.name for tool in TOOLS]
    assert names_listed("run_trace, planner_run") == ["planner_run", "run_trace"]


def test_the_list_made_ahead_of_time_is_the_one_of_the_table():
    assert LISTING.read_text() == as_listed()


def test_an_unknown_choice_of_tools_is_a_setting_gone_wrong():
    with pytest.raises(ConfigError):
        list_tools("lean,planner")


async def test_a_tool_that_is_not_listed_can_still_be_called(settings, connect):
    from dataclasses import replace

    async with connect(replace(settings, tools="lean")) as client:
        assert [tool.name for tool in (await client.raw.list_tools()).tools] == list(LEAN)
        called = await client.raw.call_tool("registry_search", {})
        assert not called.is_error


def test_the_instructions_are_short_and_say_what_is_missing(settings):
    from dataclasses import replace

    bare = instructions(replace(settings, workspaces=()), list_tools("all"))
    assert len(bare) < 1_500
    assert "--workspace" in bare
    assert "--workspace" not in instructions(settings, list_tools("all"))


CHOICES = ["lean", "core", "all", "run_trace", "planner_run,registry_call", "budget_status"]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_instructions_name_only_tools_that_are_there(settings, choice):
    instructions_text = instructions(settings, list_tools(choice))
    known = {tool.name for tool in TOOLS}
    named = known.intersection(re.findall(r"[a-z_]+", instructions_text))
    assert named <= set(names_listed(choice))
    assert {"planner_run", "run_continue", "run_status"} & set(names_listed(choice)) <= named
    assert instructions_text.startswith("Kairos runs agent loops")


def test_core_has_what_is_needed_to_save_run_and_watch():
    assert set(CORE) == {
        *("planner_run", "team_run", "run_status", "run_continue", "ooda_run", "mandate_save", "run_control"),
        *("run_trace", "registry_search", "budget_status"),
    }


@pytest.mark.parametrize(("choice", "most"), [("all", 17_900), ("core", 8_910)])
def test_a_listing_is_no_longer_than_a_host_can_bear(choice, most):
    """Beside the names of limits, which their register gives."""
    listed = without_meta(list_tools(choice)).model_dump_json(by_alias=True, exclude_none=True)
    assert listed.count(names := ", ".join(CAPS)) == 1
    assert len(listed) - len(names) <= most


if __name__ == "__main__":
    LISTING.write_text(as_listed())
    SNAPSHOTS.mkdir(exist_ok=True)
    for tool in TOOLS:
        text = json.dumps(as_sent(tool), indent=2, ensure_ascii=False)
        (SNAPSHOTS / f"{tool.name}.json").write_text(text + "\n")
