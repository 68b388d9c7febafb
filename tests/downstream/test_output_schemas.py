"""Structured content is held against the tool's own outputSchema: what breaks it is an error, never a success."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.downstream import DownstreamServers, call_server

from kairos_mcp.core.json_bounds import MAX_VALUES, MESSAGE_VALUES

SCHEMA = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 0}, "of": {"type": "array", "items": {"type": "string"}}},
    "required": ["total"],
    "additionalProperties": False,
}


def call_shape(downstream: DownstreamServers, content: Any, schema: dict[str, Any] | None = SCHEMA) -> Any:
    tool = {"name": "shape"} if schema is None else {"name": "shape", "outputSchema": schema}
    return call_server(downstream.ready_peer(downstream.lists(tool)), "shape", text=json.dumps(content))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({"total": "3"}, "/total"),
        ({"total": True}, "/total"),
        ({"total": -1}, "minimum"),
        ({}, "needs total"),
        ({"total": 1, "of": ["a", 7]}, "/of/1"),
        ({"total": 1, "more": "IMPORTANT"}, "unknown keys"),
        (None, "it has none"),
    ],
)
def test_structured_content_that_breaks_the_output_schema_is_an_error(
    downstream: DownstreamServers, content: Any, where: str
) -> None:
    result = call_shape(downstream, content)
    assert (result.is_error, result.data) == (True, None)
    assert "outputSchema" in result.content
    assert where in result.content
    assert "may have done its work" in result.content
    assert len(downstream.log_lines("call")) == 1


def test_what_fits_is_a_result_with_its_data(downstream: DownstreamServers) -> None:
    result = call_shape(downstream, {"total": 3, "of": ["a"]})
    assert (result.is_error, result.data) == (False, {"total": 3, "of": ["a"]})


def test_without_an_output_schema_anything_is_a_result(downstream: DownstreamServers) -> None:
    assert call_shape(downstream, {"total": "3"}, None).data == {"total": "3"}
    assert not call_shape(downstream, None, None).is_error


def test_content_of_more_values_than_are_read_costs_the_server_its_line(downstream: DownstreamServers) -> None:
    server = downstream.ready_peer(downstream.lists({"name": "shape"}))
    flooded = call_server(server, "shape", text=json.dumps({"of": [{}] * MESSAGE_VALUES}))
    assert flooded.code == "timeout"
    assert f"{MESSAGE_VALUES:,} values" in flooded.content
    assert call_server(server, "shape", text=json.dumps({"total": 1})).data == {"total": 1}


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        ({"properties": {"of": {"items": {"type": "string"}}}}, {"of": [1] * (2 * MAX_VALUES + 1)}),
        ({"allOf": [{"properties": {"of": {"uniqueItems": True}}}] * 400}, {"of": [{"n": n} for n in range(3_000)]}),
    ],
)
def test_content_that_would_take_too_long_to_check_is_shown_with_a_note(
    downstream: DownstreamServers, schema: dict[str, Any], content: Any
) -> None:
    result = call_shape(downstream, content, {"type": "object", **schema})
    assert not result.is_error
    assert "not held against the tool's outputSchema" in result.content


def test_an_error_of_the_server_stays_its_own(downstream: DownstreamServers) -> None:
    result = call_server(downstream.ready_peer(downstream.lists({"name": "fail", "outputSchema": SCHEMA})), "fail")
    assert (result.is_error, result.content) == (True, "no such issue")


def test_a_key_that_hides_something_is_spelled_out_in_the_error(downstream: DownstreamServers) -> None:
    result = call_shape(downstream, {"total": 1, "a\u202eb\x1b[2J": 1})
    assert result.is_error
    assert "\u202e" not in result.content
    assert "\x1b" not in result.content


def test_what_is_too_large_to_be_checked_says_so(downstream: DownstreamServers) -> None:
    result = call_shape(downstream, {"total": 1, "of": ["x" * 1_000_000]})
    assert not result.is_error
    assert "not held against" in result.content
