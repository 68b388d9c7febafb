"""What flows through a tool: who states it, what counts where nobody does, and what an approval is for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.app import Place

from kairos_mcp.cli.doctor_checks import check_flow
from kairos_mcp.core.effects import Reach
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import ToolResult, ToolSpec, discovered_tools
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.execution.authorization import tool_pin
from kairos_mcp.execution.flow_view import FlowPolicy, make_call
from kairos_mcp.server.arguments.planner import CallerTool
from kairos_mcp.settings.http_tool_table import parse_http_tool
from kairos_mcp.settings.proposal import parse_proposal
from kairos_mcp.settings.schema import read_settings_file
from kairos_mcp.settings.table_values import FlowSetting, ServerSetting
from kairos_mcp.tools.mcp_servers.definition import ServerToolDefinition
from kairos_mcp.tools.selection import describe_tool

SCHEMA = {"type": "object"}
ON = FlowPolicy("ask")


def spec_of(setting: ServerSetting, name: str = "fetch", **annotations: Any) -> ToolSpec:
    body = json.dumps({"name": name, "inputSchema": SCHEMA, "annotations": annotations})
    return ServerToolDefinition(name, body).build_spec(setting, "x@1")


def test_of_a_server_that_says_nothing_all_is_taken_as_leaving() -> None:
    spec = spec_of(ServerSetting("x"), openWorldHint=False)
    assert (spec.reaches, spec.trusted, spec.private) == (None, False, True)
    assert make_call(spec, {}).reaches == "outside"
    assert ON.judges(spec)


@pytest.mark.parametrize(
    ("stated", "hint", "reaches"),
    [
        ((("*", "service"),), None, "service"),
        ((("*", "service"),), False, "service"),
        ((("*", "service"),), True, "outside"),
        ((("*", "inside"), ("fetch", "service")), True, "service"),
        ((("get", "inside"),), True, None),
    ],
)
def test_a_servers_own_word_makes_a_tool_reach_further_and_never_less_far(
    stated: tuple[tuple[str, Reach], ...], hint: bool | None, reaches: Reach | None
) -> None:
    annotations = {} if hint is None else {"openWorldHint": hint}
    assert spec_of(ServerSetting("x", reaches=stated), **annotations).reaches == reaches


def test_labels_of_a_server_are_stated_by_globs_or_for_all(tmp_path: Path) -> None:
    file = tmp_path / "kairos.toml"
    file.write_text(
        '[flow]\nmode = "deny"\nhosts = ["*.pypi.org"]\n[servers.x]\ncommand = "x"\nreaches = "outside"\n'
        'private = { get_page = false, "*" = true }\ntrusted = true\n'
    )
    given = read_settings_file(file)
    (server,) = given["servers"]
    page, other = spec_of(server, "get_page"), spec_of(server, "list")
    assert [(each.reaches, each.trusted, each.private) for each in (page, other)] == [
        ("outside", True, False),
        ("outside", True, True),
    ]
    flow: FlowSetting = given["flow"]
    policy = FlowPolicy.from_settings(flow.mode, flow.wish, flow.hosts, flow.foreign)
    assert policy.mode == "deny"
    assert [policy.trusts_host(host) for host in ("files.pypi.org", "pypi.org", "evil.test")] == [True, False, False]


def test_doctor_names_the_labels_of_each_server_and_http_tool(place: Place) -> None:
    stated = ServerSetting("x", reaches=(("get_*", "service"),), private=(("*", False),))
    pet = parse_http_tool({"name": "pet", "description": "A pet.", "url": "https://pets.example/all"})
    found = check_flow(place.settings(servers=(stated,), http_tools=(pet,)))
    assert [(each.state, each.text) for each in found if each.matter == "labels"] == [
        ("ok", "x: reaches get_* service, outside (not stated); trusted false (not stated); private false"),
        ("ok", "pet: reaches service; trusted false; private true"),
    ]


def test_an_http_tool_reaches_its_own_host_unless_the_settings_say_more() -> None:
    fields = {"name": "pet", "description": "A pet.", "url": "https://pets.example/all"}
    made, outside = parse_http_tool(fields), parse_http_tool(fields | {"reaches": "outside"})
    assert (made.reaches, made.trusted, made.private, outside.reaches) == ("service", False, True, "outside")
    assert made.pin == outside.pin  # it is the same tool, of which something else is known


@pytest.mark.parametrize(("label", "value"), [("reaches", "inside"), ("trusted", True), ("private", False)])
def test_no_agent_can_propose_what_flows_through_its_tool(label: str, value: object) -> None:
    spec = {"kind": "server", "name": "x", "url": "https://x.example/mcp"}
    parse_proposal(dict(spec), Redactor())
    with pytest.raises(BadArguments):
        parse_proposal(spec | {label: value}, Redactor())


def test_a_caller_states_how_far_its_tools_reach_and_else_only_what_is_found_is_asked_about() -> None:
    plain = CallerTool(name="save", description="Saves.", input_schema=SCHEMA).spec()
    stated = CallerTool(name="look", description="Looks.", input_schema=SCHEMA, effect="read", reaches="inside").spec()
    assert (make_call(plain, {}).reaches, make_call(plain, {}).is_stated) == ("outside", False)
    assert not ON.judges(stated)


def test_labels_are_part_of_what_a_person_approves() -> None:
    spec = ToolSpec("x__put", "Puts.", SCHEMA, source="mcp:x#1", reaches="service")
    others = [replace(spec, reaches="outside"), replace(spec, trusted=True), replace(spec, private=False)]
    assert len({tool_pin(each) for each in (spec, *others)}) == 4


def test_a_search_tells_labels_and_what_it_found_keeps_them() -> None:
    spec = ToolSpec("x__get", "Gets.", SCHEMA, "read", "mcp:x", "mcp:x#1", "service", trusted=True, private=False)
    assert discovered_tools(ToolResult("", data={"offer": [describe_tool(spec)]})) == (spec,)


def test_switched_off_nothing_is_judged() -> None:
    assert not FlowPolicy("off").judges(ToolSpec("x__get", "Gets.", SCHEMA, source="mcp:x#1"))
