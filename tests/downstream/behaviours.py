"""Behaviours of servers that deviate from the protocol, by kind, each with its right outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from odd_server import FINE, GOOD_TOOL

LONE = "\ud83d"  # half of an emoji, as a server that cuts a text in JavaScript sends it
LOOK_AHEAD = "^(?=x)y"
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
MISSING = "left out"  # a key that is not there


@dataclass(frozen=True)
class Behaviour:
    """What a server does, and what is right: the names that are `offered`, words that the notes hold, the text of the
    result of `echo`, or a word of the reason why the server can't be used (`failure`)."""

    name: str
    odd: dict[str, Any]
    offered: tuple[str, ...] = ("echo",)
    noted: tuple[str, ...] = ()
    result: str | None = "fine"
    is_error: bool = False
    failure: str | None = None
    effects: dict[str, str] = field(default_factory=dict)


def every_behaviour() -> list[Behaviour]:
    return [
        *_names_and_texts(),
        *_schemas(),
        *_annotations(),
        *_pages(),
        *_handshakes(),
        *_envelopes(),
        *_results(),
        *_errors(),
        *_conversations(),
        *_ends_of_results(),
    ]


def _bad(**more: Any) -> dict[str, Any]:
    whole = {"name": "bad", "description": "x", "inputSchema": NO_ARGUMENTS, **more}
    return {key: value for key, value in whole.items() if value != MISSING}


def _beside(name: str, listed: Any, *, taken: bool, noted: str | None = "bad") -> Behaviour:
    """A tool beside a good one: taken as well, or left out and named."""
    offered = ("bad", "echo") if taken else ("echo",)
    return Behaviour(name, {"tools": [GOOD_TOOL, listed]}, offered, () if noted is None else (noted,))


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _names_and_texts() -> Iterator[Behaviour]:
    for value in (None, "text", 5, [], True, {}):
        yield _beside(f"tool is {value!r}", value, taken=False, noted="without a name")
    for value in (MISSING, None, 5, []):
        yield _beside(f"name {value!r}", _bad(name=value), taken=False, noted="without a name")
    for value in ("", "x" * 129, "naïve", "a\nb", f"a{LONE}"):
        yield _beside(f"name {value[:8]!r}", _bad(name=value), taken=False, noted="not taken")
    for key in ("title", "description"):
        for value in (5, [], {}, True):
            yield _beside(f"{key} {value!r}", _bad(**{key: value}), taken=True)
    for value in (MISSING, None, f"half {LONE}"):
        yield _beside(f"description {str(value)[:4]}", _bad(description=value), taken=True, noted=None)


def _schemas() -> Iterator[Behaviour]:
    for value in (MISSING, None, {}, {"properties": {}}, {"type": "object", "properties": []}):
        yield _beside(f"inputSchema {str(value)[:40]}", _bad(inputSchema=value), taken=True)
    refused: tuple[Any, ...] = (
        [],
        "object",
        5,
        True,
        {"type": "string"},
        {"type": "array", "items": {}},
        {"type": ["object", "null"]},
        {"anyOf": [NO_ARGUMENTS, NO_ARGUMENTS]},
        {"oneOf": [NO_ARGUMENTS]},
        {"allOf": [NO_ARGUMENTS]},
        {"type": "object", "properties": None},
        {"type": "object", "properties": "none"},
        {"type": "object", "properties": ["a"]},
        {"type": "object", "required": None},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {"a": {"type": "int"}}},
        {"type": "object", "properties": {"a": {"type": "string", "enum": "x"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}},
        {"type": "object", "properties": {"a": {"default": float("nan")}}},
        {"type": "object", "additionalProperties": "no"},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2_100)}},
        _nested(40),
    )
    for value in refused:
        yield _beside(f"inputSchema {str(value)[:70]}", _bad(inputSchema=value), taken=False)
    for pattern in (LOOK_AHEAD, "(?<=a)b", "(a)\\1", "(?<!x)y", "(", "[z-a]"):
        checked = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
        yield _beside(f"pattern {pattern}", _bad(inputSchema=checked), taken=True)
    ring = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    yield _beside("a schema that leads back to itself", _bad(inputSchema=ring), taken=True)
    choice = {"type": "object", "properties": {"a": {"type": "string", "enum": []}}}
    yield _beside("an empty enum", _bad(inputSchema=choice), taken=True)
    by_name = {"type": "object", "patternProperties": {LOOK_AHEAD: {}}, "additionalProperties": False}
    yield _beside("patternProperties", _bad(inputSchema=by_name), taken=True)
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        yield _beside(
            f"$schema {draft[-15:]}", _bad(inputSchema=NO_ARGUMENTS | {"$schema": draft}), taken=True, noted=None
        )
    for value in ([], "x", 5, {"type": 7}, {"$ref": "#/nowhere"}, _nested(40)):
        yield _beside(f"outputSchema {str(value)[:40]}", _bad(outputSchema=value), taken=True)
    for value in ({"$id": "x.v1"}, {"type": "array"}, {}):
        yield _beside(f"outputSchema {value}", _bad(outputSchema=value), taken=True, noted=None)
    output = {"type": "object", "properties": {"a": {"type": "string", "pattern": LOOK_AHEAD}}}
    yield _beside("outputSchema with a pattern", _bad(outputSchema=output), taken=True)


def _annotations() -> Iterator[Behaviour]:
    for value in ([], "x", None, {"readOnlyHint": "yes"}, {"title": 5, "readOnlyHint": True}):
        yield _beside(f"annotations {value}", _bad(annotations=value), taken=True, noted=None)
    destructive = _bad(annotations={"destructiveHint": True, "openWorldHint": "no"})
    yield Behaviour(
        "one good annotation", {"tools": [GOOD_TOOL, destructive]}, ("bad", "echo"), effects={"bad": "irreversible"}
    )
    for key, value in (("icons", "x"), ("icons", [5]), ("_meta", []), ("execution", "x"), ("annotation", 1)):
        yield _beside(f"{key} {value}", _bad(**{key: value}), taken=True, noted=None)
    yield Behaviour("the same tool twice", {"tools": [GOOD_TOOL, GOOD_TOOL]})
    two = [GOOD_TOOL, _bad(), _bad(description="another")]
    yield Behaviour("two tools of one name", {"tools": two}, noted=("bad",))


def _pages() -> Iterator[Behaviour]:
    def first(cursor: Any) -> dict[str, Any]:
        return {"tools": [GOOD_TOOL], "nextCursor": cursor}

    for cursor in ("", 5, {}, [], True, 0):
        yield Behaviour(f"cursor {cursor!r}", {"pages": [first(cursor)]}, noted=("page",))
    yield Behaviour("cursor null", {"pages": [first(None)]})
    again = {"pages": [first("8"), first("8")], "cursors": ["first", "8"]}
    yield Behaviour("the same cursor again", again, noted=("page",))
    circle = {"pages": [first("a"), first("b"), first("a")], "cursors": ["first", "a", "b"]}
    yield Behaviour("cursors in a circle", circle, noted=("page",))
    cursors = [f"c{n}" for n in range(80)]
    endless = {"pages": [first(cursor) for cursor in cursors], "cursors": ["first", *cursors]}
    yield Behaviour("80 pages", endless, noted=("left out",))
    two = {"cursors": ["first", "2"]}
    yield Behaviour("two pages", two | {"pages": [first("2"), {"tools": [_bad()]}]}, ("bad", "echo"))
    for page in ("text", 5, None, [], {}, {"tools": None}, {"tools": "x"}, {"tools": {"a": 1}}):
        yield Behaviour(f"second page {page!r}", two | {"pages": [first("2"), page]}, noted=("page 2",))
    failed = {"error": {"code": -32000, "message": "cursor lost"}}
    yield Behaviour("second page fails", two | {"pages": [first("2"), failed]}, noted=("cursor lost",))
    for page in ("text", None, {}, {"tools": None}, {"tools": "x"}):
        yield Behaviour(f"first page {page!r}", {"pages": [page]}, (), ("page 1",))
    yield Behaviour("first page fails", {"pages": [failed]}, failure="cursor lost")
    for more in ({"ttlMs": -5}, {"ttlMs": "soon", "cacheScope": 7}, {"resultType": 5}, {"_meta": "x"}, {"total": 1}):
        yield Behaviour(f"a page with {more}", {"pages": [{"tools": [GOOD_TOOL], **more}]})


def _handshakes() -> Iterator[Behaviour]:
    for version in ("1.0", "2023-01-01", "2027-01-01", "", 5, None, []):
        more = {"handshake_more": {"protocolVersion": version}}
        yield Behaviour(f"version {version!r}", more, failure=str(version) or "version")
    for info in (None, [], "odd", {}, {"name": 5}, {"name": "odd"}, {"name": "odd", "version": 1}):
        yield Behaviour(f"serverInfo {info!r}", {"handshake_more": {"serverInfo": info}}, noted=("initialize",))
    for given in (None, [], "tools", {"tools": []}, {"tools": True}, {"tools": {"listChanged": []}}, {"prompts": []}):
        yield Behaviour(f"capabilities {given!r}", {"handshake_more": {"capabilities": given}}, noted=("initialize",))
    yield Behaviour("instructions 5", {"handshake_more": {"instructions": 5}}, noted=("initialize",))
    yield Behaviour("an unknown key", {"handshake_more": {"more": {"a": 1}}})
    for whole in ("text", None, [], 5):
        yield Behaviour(f"handshake {whole!r}", {"handshake": whole}, failure="version")
    broken = {"code": -32603, "message": "not configured"}
    yield Behaviour("the handshake fails", {"errors": {"initialize": broken}}, failure="not configured")
    unknown = {"code": -32601, "message": "Method not found"}
    without = {"handshake_more": {"capabilities": {"prompts": {}}}, "errors": {"tools/list": unknown}}
    yield Behaviour("no tools at all", without, (), ("no tools",))


def _envelopes() -> Iterator[Behaviour]:
    for name, odd in (
        ("a byte order mark", {"prefix": "\ufeff"}),
        ("CRLF", {"suffix": "\r"}),
        ("blanks around", {"prefix": "  ", "suffix": " \t"}),
        ("an array", {"batch": True}),
        ("an array with more", {"batch": True, "batch_more": [{"jsonrpc": "2.0", "method": "notifications/x"}]}),
        ("no jsonrpc", {"without": ["jsonrpc"]}),
        ("jsonrpc 1.0", {"envelope": {"jsonrpc": "1.0"}}),
        ("jsonrpc as a number", {"envelope": {"jsonrpc": 2.0}}),
        ("ids as texts", {"id_as": "text"}),
        ("ids with a point", {"id_as": "float"}),
        ("no id", {"without": ["id"]}),
        ("id null", {"envelope": {"id": None}}),
        ("error null", {"envelope": {"error": None}}),
        ("unknown keys", {"envelope": {"took_ms": 5, "method": None}}),
        ("a banner", {"before": ["Server running on stdio", "", "===="]}),
        ("JSON that is no message", {"before": [{"level": "info"}, [], [5], 7, None]}),
        ("broken JSON", {"before": ['{"jsonrpc": "2.0", "id": ', "[" * 5_000]}),
        ("notifications", {"before": [{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}]}),
        ("a notification without jsonrpc", {"before": [{"method": "notifications/message", "params": []}]}),
        ("a notification with id null", {"before": [{"jsonrpc": "2.0", "id": None, "method": "x", "params": None}]}),
        ("an answer to nothing", {"before": [{"jsonrpc": "2.0", "id": 99_999, "result": {}}]}),
        ("an answer to no number", {"before": [{"jsonrpc": "2.0", "id": "abc", "result": {"tools": 1}}]}),
        ("as it is", {"ascii": False}),
    ):  # fmt: skip
        yield Behaviour(name, odd)
    latin = {"ascii": False, "encoding": "latin-1", "result": {"content": [{"type": "text", "text": "é"}]}}
    yield Behaviour("latin-1", latin, result="\ufffd")
    yield Behaviour("all in UTF-16", {"encoding": "utf-16"}, failure="UTF-16")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        odd = {"call_encoding": encoding}
        yield Behaviour(f"a result in {encoding}", odd, result="it is in UTF-16", is_error=True)
    odd = {"raw_result": f'{{"content": [], "structuredContent": {{"n": {"9" * 5_000}}}}}'}
    yield Behaviour("a number of 5,000 digits", odd, result="over 4,300 digits", is_error=True)
    odd = {"raw_result": f'{{"content": {"[" * 5_000}{"]" * 5_000}}}'}
    yield Behaviour("a result nested 5,000 deep", odd, result="nested too deep", is_error=True)


def _results() -> Iterator[Behaviour]:
    for sent, shown in (
        ("plain words", "plain words"),
        (["one", "two"], "one\ntwo"),
        (5, "5"),
        (True, "true"),
        (None, "[it returned nothing]"),
        ([], "[it returned nothing]"),
        ({}, "[it returned nothing]"),
        ({"answer": 42}, '{"answer":42}'),
        ({"text": "bare"}, "bare"),
        ({"content": None}, "[it returned nothing]"),
        ({"content": "words"}, "words"),
        ({"content": {"type": "text", "text": "one"}}, "one"),
        ({"content": 5}, "5"),
        ({"content": []}, "[it returned nothing]"),
        ({"structuredContent": {"a": 1}}, '{"a":1}'),
        ({"structuredContent": [1, 2]}, "[1,2]"),
        ({"structuredContent": "x"}, '"x"'),
        ({"structuredContent": 0}, "0"),
        ({"structuredContent": None}, "[it returned nothing]"),
        ({"structuredContent": {"a": float("nan")}, "content": []}, '{"a":null}'),
        ({"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}}, '{"a": 1}'),
        ({"content": [{"type": "text", "text": "[1, 2]"}], "structuredContent": {"list": [1, 2]}}, "[1, 2]"),
        (
            {
                "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "{}"}],
                "structuredContent": {"result": [1, {}]},
            },
            "1\n{}",
        ),
        (
            {
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                "structuredContent": {"result": ["a", "b"]},
            },
            "a\nb",
        ),
        (
            {"content": [{"type": "text", "text": "1"}], "structuredContent": {"a": 2}},
            '1\n[structured content]\n{"a":2}',
        ),
        ({"toolResult": {"a": 1}}, '{"a":1}'),
        ({"_meta": 5, "content": FINE["content"]}, "fine"),
        ({"content": FINE["content"], "more": {"x": 1}, "resultType": 5}, "fine"),
        ({"content": FINE["content"], "isError": None}, "fine"),
        ({"content": FINE["content"], "isError": "false"}, "fine"),
    ):
        yield Behaviour(f"result {str(sent)[:60]}", {"result": sent}, result=shown)
    for value in ("true", 1, True):
        odd = {"result": {"content": [{"type": "text", "text": "no"}], "isError": value}}
        yield Behaviour(f"isError {value!r}", odd, result="no", is_error=True)
    image, sound = {"type": "image", "data": "AAAA"}, {"type": "audio", "data": "AAAA"}
    for block, shown in (
        (None, "null"),
        (5, "5"),
        ("words", "words"),
        ([1], "[1]"),
        ({}, "{}"),
        ({"text": "untyped"}, "untyped"),
        ({"type": "text"}, '{"type":"text"}'),
        ({"type": "text", "text": None}, '{"type":"text","text":null}'),
        ({"type": "text", "text": {"a": 1}}, '{"type":"text","text":{"a":1}}'),
        ({"type": "video", "data": "AAAA"}, "video"),
        ({"type": 5, "text": "x"}, '{"type":5,"text":"x"}'),
        (image, "[an image of no stated type, 3 bytes; not shown]"),
        (image | {"mimeType": None}, "[an image of no stated type, 3 bytes; not shown]"),
        (image | {"mimeType": "image/png", "annotations": 5}, "[an image, image/png, 3 bytes; not shown]"),
        ({"type": "image"}, '{"type":"image"}'),
        ({"type": "image", "data": 5}, '"data":5'),
        (sound, "[a sound of no stated type, 3 bytes; not shown]"),
        ({"type": "resource"}, '{"type":"resource"}'),
        ({"type": "resource", "resource": None}, '"resource":null'),
        ({"type": "resource", "resource": {"uri": "a:b"}}, "it has neither text nor bytes"),
        ({"type": "resource", "resource": {"text": "inner"}}, "inner"),
        ({"type": "resource", "resource": {"uri": "not a uri", "text": "inner"}}, "inner"),
        ({"type": "resource", "resource": {"uri": "a:b", "blob": "AAAA", "mimeType": 5}}, "3 bytes"),
        ({"type": "resource_link", "uri": "a:b"}, "a:b"),
        ({"type": "resource_link", "uri": "no uri", "name": "n"}, "no uri"),
        ({"type": "resource_link", "name": "n"}, '"name":"n"'),
    ):
        odd = {"result": {"content": [block, FINE["content"][0]]}}
        yield Behaviour(f"block {str(block)[:60]}", odd, result=shown)
    for name, text, shown in (
        ("the first half", f"price {LONE}", "price \ufffd"),
        ("the second half", "\ude00 price", "\ufffd price"),
        ("two first halves", LONE * 2, "\ufffd\ufffd"),
        ("a whole emoji", "\U0001f600", "\U0001f600"),
        ("half after a backslash", f"\\{LONE}", "\\\ufffd"),
        ("the letters of an escape", "\\ud83d", "\\ud83d"),
        ("half between wholes", f"\U0001f600{LONE}\U0001f600", "\U0001f600\ufffd\U0001f600"),
    ):
        odd = {"result": {"content": [{"type": "text", "text": text}]}}
        yield Behaviour(f"{name} of an emoji", odd, result=shown)
    raw = {"ascii": False, "result": {"content": [{"type": "text", "text": f"price {LONE}"}]}}
    yield Behaviour("half of an emoji as bytes", raw, result="price \ufffd")
    yield Behaviour("half in a key", {"result": {"structuredContent": {f"k{LONE}": 1}}}, result='{"k\ufffd":1}')


def _errors() -> Iterator[Behaviour]:
    for error, shown in (
        ("broken", "broken"),
        ({"code": -32000, "message": "lost"}, "lost"),
        ({"code": "E_LOST", "message": "lost"}, "lost"),
        ({"code": 1.5, "message": "lost"}, "lost"),
        ({"message": "lost"}, "lost"),
        ({"code": -32000}, "-32000"),
        ({"code": -32000, "message": None}, "-32000"),
        ({"code": -32000, "message": {"why": "lost"}}, "lost"),
        ({"code": -32000, "message": "lost", "data": LONE}, "lost"),
        ({}, "{}"),
        (["lost"], "lost"),
        (7, "7"),
    ):
        yield Behaviour(f"error {str(error)[:50]}", {"errors": {"tools/call": error}}, result=shown, is_error=True)


def _conversations() -> Iterator[Behaviour]:
    """What a server says to whom and when, though each message alone is as it should be."""
    unknown = {"code": -32601, "message": "Method not found"}
    for name, answer in (
        ("an invalid request", {"error": {"code": -32600, "message": "Invalid Request"}}),
        ("before the handshake", {"error": {"code": -32602, "message": "before initialization was complete"}}),
        ("not initialized", {"error": {"code": -32002, "message": "Server not initialized"}}),
        ("an internal error", {"error": {"code": -32603, "message": "x"}}),
        ("an error of its own", {"error": {"code": -32000, "message": "x"}}),
        ("an unknown version", {"error": {"code": -32022, "message": "x"}}),
        ("older versions", {"error": {"code": -32022, "message": "x", "data": {"supported": ["2024-11-05"]}}}),
        ("an error that is a text", {"error": "unknown method"}),
        ("an empty result", {"result": {}}),
        ("null", {"result": None}),
        ("a text", {"result": "unknown method"}),
        ("neither result nor error", {}),
    ):
        yield Behaviour(f"what it does not know gets {name}", {"discover": answer})
    for name, said in (
        ("an error", {"jsonrpc": "2.0", "id": None, "error": unknown}),
        ("an error that names it", {"id": None, "error": {"code": -32000, "message": "unknown notification"}}),
        ("an error without an id", {"jsonrpc": "2.0", "error": unknown}),
        ("null", {"jsonrpc": "2.0", "id": None, "result": None}),
        ("an empty result", {"jsonrpc": "2.0", "id": None, "result": {}}),
        ("a result without an id", {"jsonrpc": "2.0", "result": {}}),
        ("a result with an odd id", {"jsonrpc": "2.0", "id": "undefined", "result": {}}),
        ("a word", "ok"),
        ("an empty object", {}),
    ):
        yield Behaviour(f"a notification gets {name}", {"to_notifications": [said]})
        yield Behaviour(f"a notification gets {name}, late", {"before_of": {"tools/list": [said]}})
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    yield Behaviour("its tools change with each answer", {"before": [changed]})
    yield Behaviour("its tools change behind each answer", {"after": [changed]})
    yield Behaviour("its tools change fifty times at once", {"before": [changed] * 50})
    yield Behaviour("its tools change 1,500 times at once", {"to_notifications": [changed] * 1_500})
    cancels = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}}
    yield Behaviour("it cancels what is ours", {"before": [cancels]})
    yield Behaviour("each answer twice", {"times": 2})
    for number in (99_999, -1, "zzz"):
        yield Behaviour(f"an answer to {number!r} before each", {"wrong_id": number})
    for method in ("ping", "roots/list", "sampling/createMessage", "elicitation/create", "tasks/get", "x"):
        asked = {"jsonrpc": "2.0", "id": "theirs", "method": method}
        yield Behaviour(f"it asks for {method} before each answer", {"before": [asked]})
    for number in (1, 2, 1.5, True, [1], "x" * 5_000):
        asked = {"jsonrpc": "2.0", "id": number, "method": "ping"}
        yield Behaviour(f"it asks with the id {str(number)[:5]}", {"before": [asked]})
    yield Behaviour("it asks behind each answer", {"after": [{"jsonrpc": "2.0", "id": 5, "method": "ping"}]})
    yield Behaviour("over several lines", {"indent": 2})
    yield Behaviour("a NUL at the end", {"suffix": "\0"})
    for value in (False, {}, "", 0, []):
        yield Behaviour(f"error {value!r} beside the result", {"envelope": {"error": value}})
    both = {"envelope": {"error": {"code": -32000, "message": "both"}}}
    yield Behaviour("a result and an error", both, failure="both")


def _ends_of_results() -> Iterator[Behaviour]:
    yield Behaviour("neither result nor error", {"no_result": True}, result="[it returned nothing]")
    silent = "It failed, and said nothing more."
    for sent, shown in (
        ({"isError": True}, silent),
        ({"isError": True, "content": None}, silent),
        ({"isError": True, "content": []}, silent),
        ({"isError": True, "content": [{"type": "text", "text": ""}]}, silent),
        ({"isError": True, "structuredContent": {"why": "x"}}, '{"why":"x"}'),
        ({"isError": True, "error": "why"}, '{"error":"why"}'),
    ):
        yield Behaviour(f"it fails with {sent}", {"result": sent}, result=shown, is_error=True)
    for sent, shown in (
        ({"content": [], "error": "why"}, '{"error":"why"}'),
        ({"content": [], "resultType": "complete"}, "[it returned nothing]"),
        ({"resultType": "task", "task": {"taskId": "1"}}, '{"task":{"taskId":"1"}}'),
        ({"content": [[{"type": "text", "text": "deep"}]]}, "deep"),
        ({"content": ["a", {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "text", "text": "a"}] * 1_000}, "a\na\na"),
        ({"content": [{"type": "text", "text": "a\0b\x1b[31m"}]}, "\u27e6U+1B\u27e7"),
    ):
        yield Behaviour(f"it returns {str(sent)[:50]}", {"result": sent}, result=shown)
