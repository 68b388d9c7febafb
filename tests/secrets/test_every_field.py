"""A secret in any field of any request reaches no row, no file and no log.

Fields come from the listed schemas, so that a new tool, act or field is tried without being named here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import ME, Place
from support.commands import command
from support.environment import plain_environ
from support.page import served_page
from support.page_runs import ask_to_write
from support.stdio_server import StdioClient
from support.tool_examples import EXAMPLES, MANDATE, PLAN, TOOL, TURN

import kairos_mcp
from kairos_mcp.app import start
from kairos_mcp.app.app import App
from kairos_mcp.app.operations.register import OPERATIONS
from kairos_mcp.app.start import NewRunPlan
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.redact_values import redact_result
from kairos_mcp.core.redaction import MASK, Redactor
from kairos_mcp.page.acts import act_class
from kairos_mcp.specs.build import BuiltSpec
from kairos_mcp.specs.kinds import KINDS as FLOWS

VALUE = "kq-4711/zX9+pLm=c0ffee"  # known by its value alone, as one that the server was given
SHAPE = "sk-canary-0123456789abcdef"  # by its shape alone
LISTING = json.loads((Path(kairos_mcp.__file__).parent / "server" / "listing.json").read_bytes())
SCHEMAS: dict[str, Any] = {tool["name"]: tool["inputSchema"] for tool in LISTING["tools"]}
REQUESTS = {name: example.calls for name, example in EXAMPLES.items() if example.calls}


def planted(value: Any, schema: dict[str, Any], secret: str) -> Iterator[Any]:
    """The value as often as it has texts, each time with a secret in another one; and with each field it could have."""
    match value:
        case str():
            yield from (secret, f"{value} {secret}", f"token={secret}")
        case dict():
            fields = schema.get("properties", {})
            for name, item in value.items():
                yield from ({**value, name: each} for each in planted(item, fields.get(name, {}), secret))
                yield {**{other: kept for other, kept in value.items() if other != name}, f"{secret}": item}
            for name in fields.keys() - value.keys():
                yield from ({**value, name: each} for each in made_up(fields[name], secret))
            yield {**value, secret: secret}
        case list():
            for at, item in enumerate(value):
                yield from ([*value[:at], each, *value[at + 1 :]] for each in planted(item, {}, secret))
            yield [*value, secret]


def made_up(schema: dict[str, Any], secret: str) -> Iterator[Any]:
    match schema.get("type"):
        case "array":
            yield [secret]
        case "object":
            yield {secret: secret}
            yield {"password": secret}
        case _:
            yield secret


SAMPLE = ("planner_run", "mandate_save", "registry_register", "registry_call")
KINDS = (VALUE, SHAPE)
NUMBERS = map(str, count())
FIELDS: dict[str, Any] = {
    "digest": "0" * 64,
    "pin": "0" * 64,
    "mandate": MANDATE,
    "answers": {"k": {}},
    "limits": {},
    "rule": 1,
}


def places(place: Place, secret: str) -> set[str]:
    """The files of the state folder, the log's among them, that hold the secret; and tables, of a store elsewhere."""
    files = {file.name for file in place.root.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()}
    return files | (tables(place, secret) if postgres.is_chosen() else set())


def tables(place: Place, secret: str) -> set[str]:
    """The tables of PostgreSQL that hold the secret, as text or as bytes."""
    named = place.rows("select table_name from information_schema.tables where table_schema = current_schema()")
    holds = "select count(*) from {0} where strpos({0}::text, ?) > 0 or strpos({0}::text, ?) > 0"
    return {name for (name,) in named if place.rows(holds.format(name), secret, secret.encode().hex()) != [(0,)]}


@pytest.fixture
def client(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[StdioClient]:
    place.home.mkdir(mode=0o700, exist_ok=True)
    (place.home / "kairos.toml").write_text('approvals = "host"\n')
    monkeypatch.setenv("CANARY_API_KEY", VALUE)
    with (place.root / "log").open("wb") as log, StdioClient.start(place, script=False, stderr=log) as opened:
        yield opened


def call(client: StdioClient, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    waits = {"wait_s": 0} if "wait_s" in SCHEMAS[tool]["properties"] and "wait_s" not in arguments else {}
    answer = client.ask("tools/call", {"name": tool, "arguments": {**arguments, **waits}})
    found: dict[str, Any] = answer.get("structuredContent") or {}
    return found


@pytest.mark.parametrize(
    ("secret", "tools"), [(SHAPE, SAMPLE), *(pytest.param(each, (*SCHEMAS,), marks=pytest.mark.slow) for each in KINDS)]
)
def test_a_secret_in_any_field_of_a_tool_is_stored_and_logged_nowhere(
    place: Place, client: StdioClient, secret: str, tools: Sequence[str]
) -> None:
    for tool, schema in ((tool, SCHEMAS[tool]) for tool in tools):
        required = dict.fromkeys(schema.get("required", ()), "x")
        for request in REQUESTS.get(tool, (required,)):
            assert tool not in REQUESTS or "code" not in call(client, tool, request), tool
            for arguments in planted(request, schema, secret):
                shown = json.dumps(call(client, tool, arguments))
                assert secret not in shown, (tool, arguments, shown)
            assert places(place, secret) == set(), tool


def test_a_key_behind_a_tab_or_a_line_break_is_stored_nowhere(place: Place, client: StdioClient) -> None:
    """In JSON a tab is a backslash and a `t`, and no key has a letter before it."""
    for before in "\t\n\r\f":
        tool = {**TOOL, "description": f"Asks.{before}{SHAPE}"}
        assert "code" not in call(client, "planner_run", {"goal": f"ask {before!r}", "caller_tools": [tool]})
        assert places(place, SHAPE) == set(), repr(before)
        result = ToolResult("ok", data={"rows": [f"a{before}{SHAPE}"]})
        assert SHAPE not in str(redact_result(result, Redactor())), repr(before)


def test_a_value_under_the_name_of_a_key_is_redacted_in_a_results_data() -> None:
    for value in ("$quagga!zebra#9", 'qu"agga9zebra', "tab\t9-quagga"):
        result = ToolResult("ok", data={"more": [{"API_KEY": value}]})
        assert value not in str(redact_result(result, Redactor()).data), value


# Each field of a spec that has a text, with a flow whose specs have it.
SPEC_FIELDS = {
    field: kind
    for kind in {kind.specs.spec: kind for kind in reversed(FLOWS.values())}.values()
    for field in fields(kind.specs.spec)
    if "str" in str(field.type) and not field.metadata and field.name not in ("flow", "route", "asked_route")
}


@pytest.mark.unreplayed  # their texts are no spec's
async def test_a_secret_in_any_field_of_a_start_of_a_new_kind_is_stored_nowhere(place: Place) -> None:
    """Whoever writes a further way to start runs may know of no redaction: whatever field of a spec holds a secret."""
    texts = {sha256(text.encode()).hexdigest(): text for text in (SHAPE, "[]")}
    held, empty = texts
    clock = replace(ME, via="clock")  # stored, and left to a server
    async with App.open(place.settings(), via="mcp") as app:
        for field, kind in SPEC_FIELDS.items():
            value: Any = held if field.name.endswith("_text") else (SHAPE,) if "tuple" in str(field.type) else SHAPE
            spec = replace(kind.specs.spec(kind.name, "look", "caller", empty), **{field.name: value})
            built = BuiltSpec(spec, tuple(texts.items()) if value == held else (), Limits(), ())
            plan = NewRunPlan(built, None, field.name.encode(), key=f"{field.name} {SHAPE}")
            assert not (await start.start_run(app.runs._context, plan, clock)).attached
            assert places(place, SHAPE) == set(), field.name


@pytest.mark.slow
@pytest.mark.parametrize("secret", KINDS)
def test_a_secret_in_any_field_of_an_answer_is_stored_and_logged_nowhere(
    place: Place, client: StdioClient, secret: str
) -> None:
    """A model's turn is rid of known values alone: in a file that it writes, the shape of a key may be an example."""
    if secret == VALUE:
        for turn in planted(TURN, {}, secret):
            call(client, "run_continue", {"run_id": begin(client), "answers": {"round-1": turn}})
    for result in planted({"content": "so", "is_error": False, "data": {"a": {"b": "c"}}}, {}, secret):
        run_id = begin(client)
        call(client, "run_continue", {"run_id": run_id, "answers": {"round-1": TURN}})
        call(client, "run_continue", {"run_id": run_id, "answers": {"round-1/call-1": result}})
    for tool, base in (
        ("run_continue", {"run_id": begin(client), "answers": {"round-1": {}}}),
        (
            "run_control",
            {"run_id": begin(client), "action": "settle", "key": "k", "settlement": "reattempt", "digest": "0"},
        ),
        ("run_trace", {"run_id": begin(client), "ref": "round-1", "grep": "x", "cursor": "c"}),
    ):
        for arguments in planted(base, SCHEMAS[tool], secret):
            assert secret not in json.dumps(call(client, tool, arguments))
    assert places(place, secret) == set()


def begin(client: StdioClient) -> str:
    return str(call(client, "planner_run", {"goal": "look", "caller_tools": [TOOL], "key": next(NUMBERS)})["run_id"])


@pytest.mark.slow
@pytest.mark.parametrize("secret", KINDS)
def test_a_secret_in_any_field_of_an_act_on_the_page_is_stored_and_logged_nowhere(
    place: Place, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", VALUE)
    asked = [asyncio.run(ask_to_write(place, goal=f"make {number}")) for number in range(3)]
    with served_page(place.home, "--workspace", str(place.workspace), environ={"CANARY_API_KEY": VALUE}) as desk:
        for run_id, feedback in zip(asked, planted("no", {}, secret), strict=True):
            item = desk.waiting(run_id)
            desk.does("deny", run=run_id, key=item["key"], digest=item["digest"], feedback=feedback)
        for name in OPERATIONS:
            form = act_class(name).model_json_schema()
            required = {field: FIELDS.get(field, "x") for field in form["required"]} | {"act": name}
            for act in planted(required, form, secret):
                assert secret not in desk.post("api/act", act).text, act
            assert places(place, secret) == set(), name


COMMANDS: dict[str, tuple[str, ...]] = {  # S: the secret; each works on a folder in which an approval waits
    "goal": ("run", "look for S"),
    "model": ("run", "look", "--route", "caller", "--model", "S"),
    "key": ("run", "look", "--key", "S"),
    "tools": ("run", "look", "--tools", "S"),
    "agent": ("run", "look", "--agent", "S"),
    "team": ("run", "look for S", "--team"),
    "plan": ("run", "look", "--team", "--plan", "plan.json"),
    "feedback": ("deny", "last", "--feedback", "no S", "--digest", "D", "--no-drive"),
    "note": ("settle", "last", "round-1/call-1", "reattempt", "--note", "S"),
    "answer": ("answer", "last", "round-1", '{"content": "S"}'),
    "mandate": ("mandate", "save", "mandate.json"),
    "run": ("show", "S"),
    "search": ("tools", "list", "S"),
}


@pytest.mark.parametrize(
    "name", [name if name == "feedback" else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_a_secret_in_any_word_of_a_command_is_stored_nowhere(place: Place, name: str) -> None:
    secret = VALUE if name == "answer" else SHAPE  # a model's turn: see above
    asyncio.run(ask_to_write(place))
    ((digest,),) = place.rows("select digest from approval")
    (place.workspace / "plan.json").write_text(json.dumps({**PLAN, "analysis": f"One part, {secret}."}))
    (place.workspace / "mandate.json").write_text(json.dumps({**MANDATE, "goal": f"{MANDATE['goal']} {secret}"}))
    words = [digest if word == "D" else word.replace("S", secret) for word in COMMANDS[name]]
    environ = {
        **plain_environ(),
        **postgres.environ_of(place.root),
        "KAIROS_HOME": str(place.home),
        "CANARY_API_KEY": VALUE,
    }
    command(*words, folder=place.workspace, environ=environ)
    kept = {file for file in places(place, secret) if file not in ("plan.json", "mandate.json")}
    assert kept == set()
    assert name not in ("goal", "model", "team", "plan", "feedback", "mandate") or places(place, MASK)  # it was stored


def test_runs_are_stored_in_one_place_which_redacts() -> None:
    sources = Path(kairos_mcp.__file__).parent
    makers = {str(file.relative_to(sources)) for file in sources.rglob("*.py") if "NewRun(" in file.read_text("utf-8")}
    assert makers == {"app/start.py"}
