"""Schemas of tools in the few words that every provider takes: nothing in them that was refused somewhere."""

from __future__ import annotations

from typing import Any

import pytest

from kairos_mcp.models.replies.plain_schema import MAX_PARTS, plain_schema

TEXT: dict[str, Any] = {"type": "string"}


def of_property(schema: Any, **more: Any) -> Any:
    return plain_schema({"type": "object", "properties": {"a": schema}, **more})["properties"]["a"]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (TEXT | {"format": "uri", "minLength": 1, "pattern": "x", "default": "y", "examples": ["z"]}, TEXT),
        ({"type": ["string", "null"]}, TEXT),
        ({"type": ["null", "integer"], "description": "How many."}, {"type": "integer", "description": "How many."}),
        ({"anyOf": [{"type": "null"}, TEXT], "description": "d"}, TEXT | {"description": "d"}),
        ({"oneOf": [{"type": "number"}, TEXT]}, {"type": "number"}),
        ({"const": "x"}, {"type": "string", "enum": ["x"]}),
        ({"enum": ["x", "y"]}, {"type": "string", "enum": ["x", "y"]}),
        ({"type": "string", "enum": [True, "x"]}, TEXT),
        ({"enum": [1, 2]}, {}),
        ({"type": "array"}, {"type": "array", "items": TEXT}),
        ({"type": "array", "items": {"type": "number"}, "maxItems": 3}, {"type": "array", "items": {"type": "number"}}),
        ({"type": "object", "additionalProperties": TEXT}, {"type": "object"}),
        ({"properties": {"b": TEXT}, "required": ["b", "c"]}, {"type": "object", "properties": {"b": TEXT},
                                                                "required": ["b"]}),
        (True, {}),
        ({}, {}),
        ({"$ref": "https://example.com/x"}, {}),
    ],
)  # fmt: skip
def test_each_part_says_what_every_provider_takes(given: Any, plain: Any) -> None:
    assert of_property(given) == plain


@pytest.mark.parametrize("holder", ["$defs", "definitions"])
def test_a_reference_is_replaced_by_what_it_names(holder: str) -> None:
    assert of_property({"$ref": f"#/{holder}/x"}, **{holder: {"x": TEXT}}) == TEXT


def test_a_schema_that_leads_back_to_itself_has_an_end() -> None:
    many = {f"p{number}": {"$ref": "#/$defs/x"} for number in range(10)}
    plain = plain_schema({"type": "object", "properties": many, "$defs": {"x": {"properties": many}}})
    assert str(plain).count("'p1'") < MAX_PARTS


def test_the_arguments_are_an_object_in_any_case() -> None:
    assert plain_schema({}) == {"type": "object", "properties": {}}
    assert plain_schema({"$schema": "x", "anyOf": [{"type": "string"}]}) == {"type": "object", "properties": {}}
