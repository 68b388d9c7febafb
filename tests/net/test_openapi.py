"""Tools out of an OpenAPI document: what they become, what is refused, and that one calls a real local service."""

from __future__ import annotations

import functools
import json
import operator
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.network import Peer, call_net_tool, egress_to, json_text, leads_to

from kairos_mcp.core.errors import ConfigError, EgressDenied, HttpError
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.settings.http_definition import HttpDefinition
from kairos_mcp.settings.http_tool_table import parse_http_tool
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.tools.http.http_snippet import format_http_tool
from kairos_mcp.tools.http.http_tool import http_tool
from kairos_mcp.tools.http.openapi import fetch_document, list_operations, make_definitions, parse_document, tool_name

PETS: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "servers": [
        {"url": "https://{region}.pets.test/v1/", "variables": {"region": {"default": "eu", "enum": ["eu", "us"]}}}
    ],
    "security": [{"token": []}],
    "paths": {
        "/pets/{petId}": {
            "parameters": [{"$ref": "#/components/parameters/PetId"}],
            "get": {
                "operationId": "pets.get",
                "summary": "One pet.",
                "description": "All of it.",
                "parameters": [
                    {"name": "expand[]", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                    {"name": "filter", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                    {"name": "X-Trace", "in": "header", "description": "An id.", "schema": {"type": "string"}},
                    {"name": "Accept", "in": "header", "schema": {"type": "string"}},
                    {"name": "session", "in": "cookie", "schema": {"type": "string"}},
                    {"name": "limit", "in": "query", "schema": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                ],
                "responses": {},
            },
            "delete": {"security": [], "responses": {}},
        },
        "/pets": {
            "post": {
                "operationId": "createPet",
                "security": [{"token": []}, {}],
                "requestBody": {"$ref": "#/components/requestBodies/Pet"},
                "responses": {},
            },
            "put": {
                "operationId": "upload",
                "security": [],
                "requestBody": {"required": True, "content": {"image/png": {}}},
            },
        },
        "/tree/{petId}": {
            "patch": {
                "operationId": "patchTree",
                "security": [{"key": []}],
                "parameters": [
                    {"$ref": "#/components/parameters/PetId"},
                    {"name": "petId", "in": "query", "schema": {"type": "string"}},
                ],
                "requestBody": {
                    "content": {"application/merge-patch+json": {"schema": {"$ref": "#/components/schemas/Node"}}}
                },
            }
        },
    },
    "components": {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
            "query": {"type": "apiKey", "in": "query", "name": "k"},
        },
        "parameters": {
            "PetId": {"name": "petId", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}
        },
        "requestBodies": {
            "Pet": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}
        },
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "pattern": "^(?!x)", "nullable": True, "example": "Rex"},
                    "age": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                    "tag": {"allOf": [{"$ref": "#/components/schemas/Tag"}]},
                },
                "xml": {"name": "pet"},
            },
            "Tag": {"type": "string", "enum": ["a", "b"], "nullable": True},
            "Node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}}},
            },
        },
    },
}


SERVER = "https://eu.pets.test/v1"


def pets_with(**more: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(PETS))
    return copy | more


def one(document: dict[str, Any], operation: str, **more: Any) -> HttpDefinition:
    (made,) = make_definitions(document, [operation], **more)
    return made


def test_an_operation_becomes_a_tool_with_its_path_query_and_headers() -> None:
    made = one(PETS, "pets.get", server=SERVER, secret="env:PETS")
    assert (made.name, made.method, made.url) == ("pets_get", "GET", "https://eu.pets.test/v1/pets/{petId}")
    assert made.description == "One pet.\nAll of it.\nNot offered here: filter, session."
    assert made.headers == (("Authorization", "Bearer ${env:PETS}"),)
    assert made.effect == "idempotent"
    assert [(each.name, each.place, each.wire_name, each.required) for each in made.parameters] == [
        ("petId", "path", "petId", True),
        ("expand", "query", "expand[]", False),
        ("X-Trace", "header", "X-Trace", False),
        ("limit", "query", "limit", False),
    ]
    assert made.input_schema["properties"]["X-Trace"] == {"type": "string", "description": "An id."}
    assert parse_http_tool(made.as_json()) == made


def test_only_what_is_said_to_read_reads() -> None:
    assert one(PETS, "pets.get", server=SERVER, secret="env:PETS", reads=True).effect == "read"
    assert one(PETS, "createPet", reads=True).effect == "irreversible"


def test_what_a_method_suggests_is_a_comment_to_be_confirmed() -> None:
    looks, makes = one(PETS, "pets.get", server=SERVER, secret="env:PETS"), one(PETS, "createPet")
    text = format_http_tool(looks)
    assert tomllib.loads(text)["http_tools"][0]["effect"] == "idempotent"
    confirmed = text.replace('effect = "idempotent"\n# ', "")
    assert tomllib.loads(confirmed)["http_tools"][0]["effect"] == "read"
    assert "suggests" not in format_http_tool(makes) + format_http_tool(
        one(PETS, "pets.get", server=SERVER, secret="env:P", reads=True)
    )


def test_a_schema_stands_alone_afterwards() -> None:
    (body,) = one(PETS, "createPet").parameters
    assert (body.name, body.place, body.required) == ("body", "json", True)
    assert body.schema == {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": ["string", "null"], "description": "Pattern: ^(?!x)"},
            "age": {"type": "number", "exclusiveMinimum": 0},
            "tag": {"allOf": [{"type": ["string", "null"], "enum": ["a", "b", None]}]},
        },
    }


def test_a_schema_that_holds_itself_is_spelled_out_once_and_says_so() -> None:
    made = one(PETS, "patchTree", server=SERVER, secret="file:/run/key")
    assert [each.name for each in made.parameters] == ["path_petId", "query_petId", "body"]
    assert made.url.endswith("/tree/{petId}")
    assert made.headers == (("X-Key", "${file:/run/key}"),)
    inner = made.parameters[2].schema["properties"]["children"]["items"]
    assert inner == {"description": "Node again, not spelled out; anything is taken."}
    assert compile_schema(made.input_schema).problems({"path_petId": 1, "body": {"children": [{"any": 1}]}}) == []


def test_operations_without_an_id_get_one_and_names_are_made_plain() -> None:
    found = [(each.id, each.method) for each in list_operations(PETS)]
    assert found == [
        ("pets.get", "GET"),
        ("delete_/pets/{petId}", "DELETE"),
        ("createPet", "POST"),
        ("upload", "PUT"),
        ("patchTree", "PATCH"),
    ]
    assert one(PETS, "delete_/pets/{petId}").name == "delete_pets_petId"
    assert [tool_name(text) for text in ("a/b.c", "9x", "ü", "x" * 80)] == ["a_b_c", "op_9x", "op_", "x" * 64]


def test_an_imported_tool_calls_a_real_service(web: Peer) -> None:
    web.will(json_text('{"id": 7}', "201 Created"))
    made = one(PETS, "createPet", server=web.url("/api"))
    result = call_net_tool(http_tool(made, egress_to(web), str), body={"name": "Rex"})
    assert not result.is_error
    (heard,) = web.heard
    assert (heard.method, heard.target, json.loads(heard.body)) == ("POST", "/api/pets", {"name": "Rex"})
    assert call_net_tool(http_tool(made, egress_to(web), str), body={"age": 1}).code == "bad_arguments"
    assert len(web.heard) == 1


@pytest.mark.parametrize("operation", ["pets.get", "createPet", "patchTree"])
def test_a_tool_in_the_words_of_the_settings_is_the_same_tool(tmp_path: Path, operation: str) -> None:
    made = one(PETS, operation, server=SERVER, secret="env:PETS")
    (tmp_path / "kairos.toml").write_text(format_http_tool(made), encoding="utf-8")
    (again,) = load_settings(Flags(home=str(tmp_path)), {}).http_tools
    assert (again, again.pin) == (made, made.pin)


def test_a_text_of_any_characters_survives_the_settings(tmp_path: Path) -> None:
    odd = parse_http_tool({"name": "x", "description": 'a"\\\n\x7f\u0085ä😀\x01', "url": "https://a.test/"})
    (tmp_path / "kairos.toml").write_text(format_http_tool(odd), encoding="utf-8", newline="")
    assert load_settings(Flags(home=str(tmp_path)), {}).http_tools == (odd,)


def test_a_document_is_read_from_where_a_person_says(web: Peer, other: Peer) -> None:
    web.will(json_text(json.dumps(PETS)))
    assert fetch_document(web.url("/openapi.json"), time.monotonic() + 10) == PETS
    for reply, failure in (
        (json_text("{}", "404 Not Found"), HttpError),
        (json_text("{}"), ConfigError),
        (leads_to(other.url()), EgressDenied),
    ):
        web.will(reply)
        with pytest.raises(failure):
            fetch_document(web.url(), time.monotonic() + 10)
    assert other.connections == 0


def test_a_relative_server_is_meant_against_where_the_document_was() -> None:
    document = pets_with(servers=[{"url": "/v2"}])
    assert one(document, "createPet", fetched_from="https://a.test/docs/api.json").url == "https://a.test/v2/pets"
    assert one(document, "createPet", server="https://a.test/docs/").url == "https://a.test/v2/pets"
    with pytest.raises(ConfigError):
        one(document, "createPet")
    fetched = one(PETS, "createPet", fetched_from="https://a.test/docs/api.json")  # it needs no key
    assert fetched.url == "https://eu.pets.test/v1/pets"


GOOD = "https://api.good.test"
LEADING_AWAY = [
    *({"path": path} for path in (".evil.test/x", ":8443/x", "@evil.test/x", "x", "\\evil.test/x", "/\\evil.test/x")),
    *(
        {"servers": [{"url": url}]}
        for url in ("//evil.test/", "//evil.test:443", "//x@evil.test/", "\\\\evil.test/", "/\\evil.test/", "//[::1]/")
    ),
    {"servers": [{"url": "/{x}", "variables": {"x": {"default": "/evil.test/"}}}]},
    {"servers": [{"url": "//{x}/", "variables": {"x": {"default": "evil.test"}}}]},
    {"servers": [{"url": "/\t/evil.test/"}]},
]


def with_key(path: str = "/x", servers: Any = None, **more: Any) -> dict[str, Any]:
    """A document with one operation, `q`, that needs a key."""
    entry = {"get": {"operationId": "q", "security": [{"token": []}]} | more}
    return pets_with(servers=servers, paths={path: entry})


@pytest.mark.parametrize("more", LEADING_AWAY, ids=repr)
@pytest.mark.parametrize("named", ["server", "fetched_from"])
def test_no_document_leads_a_key_away_from_the_server_that_a_person_named(more: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        one(with_key(**more), "q", secret="env:PETS", **{named: GOOD})
    assert refused.value.hint
    made = one(with_key(), "q", secret="env:PETS", **{named: GOOD})
    assert (str(made.sample_url()), made.secret_references) == (f"{GOOD}/x", ("env:PETS",))


@pytest.mark.parametrize("url", ["https://evil.test/", "http://api.good.test/", "https://api.good.test:8443/"])
def test_a_server_in_full_is_not_the_one_that_is_sent_the_key(url: str) -> None:
    document = with_key(servers=[{"url": url}])
    assert one(document, "q", secret="env:PETS", server=GOOD).url == f"{GOOD}/x"
    for named in ({}, {"fetched_from": f"{GOOD}/openapi.json"}):
        with pytest.raises(ConfigError):
            one(document, "q", secret="env:PETS", **named)


ODD = st.lists(
    st.sampled_from([*"/:@.\\#?{}%\t ", "..", "evil.test", "api.good.test", "8443", "https:", "x", "[::1]"]), max_size=8
).map("".join)


@given(path=ODD, url=ODD, default=ODD, named=st.sampled_from(["server", "fetched_from"]))
def test_whatever_a_document_says_a_key_stays_at_the_origin_that_was_named(
    path: str, url: str, default: str, named: str
) -> None:
    servers = [{"url": url, "variables": {"x": {"default": default}}}]
    try:
        made = one(with_key(path, servers), "q", secret="env:PETS", **{named: GOOD})
    except ConfigError:
        return
    assert made.sample_url().origin == ("https", "api.good.test", 443)
    assert urlsplit(made.url.replace("{", "x").replace("}", "x")).netloc == "api.good.test"


def test_a_tool_with_a_key_sends_nothing_where_a_redirect_leads(web: Peer, other: Peer) -> None:
    made = one(with_key(), "q", secret="env:PETS", server=web.url())
    web.will(leads_to(other.url()))
    assert call_net_tool(http_tool(made, egress_to(web, other), lambda _: "s3cret")).is_error
    assert web.heard[0].header("authorization") == "Bearer s3cret"
    assert all(each.header("authorization") is None for each in other.heard)


@pytest.mark.parametrize(
    ("operation", "more"),
    [
        ("nothing", {}),
        ("pets.get", {}),  # it wants a key
        ("upload", {}),  # its body is no JSON
        ("createPet", {"paths": PETS["paths"] | {"/b": {"post": {"operationId": "createPet"}}}}),
        ("q", {"paths": {"/q": {"get": {"operationId": "q", "security": [{"query": []}]}}}}),
        ("q", {"paths": {"/q/{x}": {"get": {"operationId": "q", "security": []}}}}),
        ("q", {"paths": {"/q": {"get": {"operationId": "q", "security": [], "parameters": [
            {"name": "s", "in": "cookie", "required": True}]}}}}),
        ("q", {"paths": {"/q": {"get": {"operationId": "q", "security": [], "parameters": [
            {"$ref": "https://evil.test/p.json"}]}}}}),
        ("q", {"paths": {"/q": {"get": {"operationId": "q", "security": [], "parameters": [
            {"$ref": "#/components/nothing"}]}}}}),
        ("q", {"paths": {"/q": {"get": {"operationId": "q", "security": [], "parameters": [
            {"$ref": "#/components/loop"}]}}}, "components": {"loop": {"$ref": "#/components/loop"}}}),
        ("q", {"paths": {"/q": {"get": {"operationId": "q", "security": [], "parameters": [
            {"name": "h", "in": "header", "schema": {"$ref": "file:///etc/passwd"}}]}}}}),
        ("createPet", {"servers": [{"url": "https://user:pw@a.test/"}]}),
        ("createPet", {"servers": [{"url": "ftp://a.test/"}]}),
    ],
)  # fmt: skip
def test_what_can_not_be_a_tool_is_refused_with_a_cure(operation: str, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        one(pets_with(**more), operation)
    assert refused.value.hint
    assert len(str(refused.value)) < 600


ODD: list[Any] = [None, 5, True, "x", -0.5, [], [1], [None], [[1]], {}, {"a": 1}]


def parts_of(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each part of a document lies."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*above, key)
        yield from parts_of(part, (*above, key))


def test_an_odd_value_anywhere_in_a_document_is_taken_or_refused() -> None:
    refused = 0
    document = pets_with()
    for where in parts_of(PETS):
        *above, last = where
        holder = functools.reduce(operator.getitem, above, document)
        before = holder[last]
        for odd in ODD:
            holder[last] = odd
            for operation in ("pets.get", "createPet"):
                try:
                    make_definitions(document, [operation], server=SERVER, secret="env:PETS")
                except ConfigError:
                    refused += 1
        holder[last] = before
    assert document == PETS
    assert refused


def test_refs_that_grow_are_refused() -> None:
    schemas: dict[str, Any] = {"s0": {"type": "string"}}
    for level in range(1, 11):  # ten small schemas that stand for a thousand million
        ref = {"$ref": f"#/components/schemas/s{level - 1}"}
        schemas[f"s{level}"] = {"type": "object", "properties": dict.fromkeys("abcdefgh", ref)}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/s10"}}}}
    document = pets_with(
        paths={"/q": {"post": {"operationId": "q", "security": [], "requestBody": body}}},
        components={"schemas": schemas},
    )
    with pytest.raises(ConfigError):
        one(document, "q")


def test_json_and_yaml_are_read_as_the_same_document() -> None:
    yaml = pytest.importorskip("yaml")
    assert parse_document(json.dumps(PETS)) == PETS
    assert parse_document(yaml.safe_dump(PETS)) == PETS
    dated = parse_document("openapi: 3.1.0\ninfo: {version: 2024-01-01, title: x}\npaths: {}\n")
    assert dated["info"]["version"] == "2024-01-01"


@pytest.mark.parametrize("way", ["object/apply:os.mkdir", "object/new:os.mkdir"])
def test_a_document_runs_nothing(tmp_path: Path, way: str) -> None:
    with pytest.raises(ConfigError):
        parse_document(f"openapi: 3.0.0\nx: !!python/{way} [{tmp_path}/made]\n")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"swagger": "2.0"}',
        "just words",
        "a: [",
        "openapi: 3.0.0\na: &a {x: 1}\nb:\n  <<: *a\n",
        "{" * 100_000,
        "- " * 50_000,
    ],
)
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_document(text)
