"""Calls, blocks and texts that are not as their definitions say, whole and in pieces: one outcome for each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.replies import (
    MESSAGES,
    chat_reply,
    chunk,
    events,
    message_reply,
    message_stream,
    taken_of,
    whole,
)

from kairos_mcp.models.replies.calls import MAX_REPETITIONS, _values_in

# -- calls ---------------------------------------------------------------------------------------------------------

A, B = {"path": "a"}, {"path": "b"}
JSON_A, JSON_B = json.dumps(A), json.dumps(B)


def call(*, drop: str = "", arguments: Any = JSON_A, **more: Any) -> dict[str, Any]:
    whole_call = {"id": "x1", "type": "function", "function": {"name": "read_file", "arguments": arguments}, **more}
    return {name: value for name, value in whole_call.items() if name != drop}


def says(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}


ONE = (("x1", "read_file", A),)
OURS = (("ours-1", "read_file", A),)
NO_ARGUMENTS = (("x1", "read_file", {}),)
TWO = (("x1", "read_file", A), ("x2", "read_file", B))
TWO_OURS = (("ours-1", "read_file", A), ("ours-2", "read_file", B))
CALLS: list[tuple[str, Any, Any]] = [
    ("as defined", [call()], ONE),
    ("id null", [call(id=None)], OURS),
    ("id missing", [call(drop="id")], OURS),
    ("id empty", [call(id="")], OURS),
    ("id of blanks", [call(id="  ")], OURS),
    ("id an object", [call(id={})], OURS),
    ("id a number", [call(id=7)], (("7", "read_file", A),)),
    ("type null", [call(type=None)], ONE),
    ("type missing", [call(drop="type")], ONE),
    ("type empty", [call(type="")], ONE),
    ("type of nobody", [call(type="tool")], ONE),
    ("arguments an object", [call(arguments=A)], ONE),
    ("arguments null", [call(arguments=None)], NO_ARGUMENTS),
    ("arguments empty", [call(arguments="")], NO_ARGUMENTS),
    ("arguments missing", [call(function={"name": "read_file"})], NO_ARGUMENTS),
    ("arguments an empty object", [call(arguments={})], NO_ARGUMENTS),
    ("arguments JSON twice over", [call(arguments=json.dumps(JSON_A))], ONE),
    ("arguments under another name", [call(function={"name": "read_file", "parameters": A})], ONE),
    ("without a function around it", [{"id": "x1", "name": "read_file", "arguments": JSON_A}], ONE),
    ("the name alone as function", [{"id": "x1", "function": "read_file", "arguments": JSON_A}], ONE),
    ("blanks around the name", [call(function={"name": " read_file ", "arguments": JSON_A})], ONE),
    ("more beside", [call(index=0, thought="hm")], ONE),
    ("one call, no list", call(), ONE),
    ("null among them", [None, call(), {}], ONE),
    ("ids alike", [call(), call(arguments=JSON_B)], (("x1", "read_file", A), ("ours-2", "read_file", B))),
    ("ids empty", [call(id=""), call(id="", arguments=JSON_B)], TWO_OURS),
    ("name missing", [call(function={"arguments": JSON_A})], (("x1", "unnamed_tool", A),)),
    ("name null", [call(function={"name": None, "arguments": JSON_A})], (("x1", "unnamed_tool", A),)),
    ("arguments cut off", [call(arguments='{"path": ')], (("x1", "read_file", '{"path": '),)),
    ("arguments a list", [call(arguments=[1])], (("x1", "read_file", [1]),)),
    ("null", None, ()),
    ("empty", [], ()),
    ("a text", "read_file", ()),
    ("a text of JSON", json.dumps([call()]), ONE),
    ("under their numbers", {"0": call(), "2": call(id="x2", arguments=JSON_B)}, TWO),
    ("the same call again", [call(), call(index=1)], ONE),
    ("the same call again, without ids", [call(drop="id"), call(drop="id")],
     (("ours-1", "read_file", A), ("ours-2", "read_file", A))),
    ("an empty object before the arguments", [call(arguments="{}" + JSON_A)], ONE),
    ("an empty object behind the arguments", [call(arguments=JSON_A + "\n{}")], ONE),
    ("arguments twice", [call(arguments=JSON_A + JSON_A)], ONE),
    ("an empty object twice", [call(arguments="{}{}")], NO_ARGUMENTS),
    ("two objects", [call(arguments=JSON_A + JSON_B)], (("x1", "read_file", JSON_A + JSON_B),)),
    ("two objects, the second cut off", [call(arguments="{}" + JSON_A[:-1])],
     (("x1", "read_file", "{}" + JSON_A[:-1]),)),
    ("arguments in a fence", [call(arguments=f"```json\n{JSON_A}\n```")], ONE),
    ("arguments before a mark", [call(arguments=JSON_A + "<|call|>")], ONE),
    ("arguments before the end of a tag", [call(arguments=JSON_A + "\n</tool_call>")], ONE),
    ("arguments behind a mark of bytes", [call(arguments="\ufeff" + JSON_A)], ONE),
    ("arguments before words", [call(arguments=JSON_A + " as asked")], (("x1", "read_file", JSON_A + " as asked"),)),
    *[(f"named {name}", [call(function={"name": name, "arguments": JSON_A})], ONE) for name in (
        "functions.read_file", "functions.read_file:0", "default_api.read_file", "default_api:read_file",
        "read_file<|channel|>commentary", "read_file <|constrain|>json", '"read_file"', "read_file()")],
    ("named with words", [call(function={"name": "read file", "arguments": JSON_A})], (("x1", "read file", A),)),
    ("a line end as it is", [call(arguments='{"path": "a\nb"}')], (("x1", "read_file", {"path": "a\nb"}),)),
]  # fmt: skip


@pytest.mark.parametrize("place", ["whole", "events", "no role", "no content"])
@pytest.mark.parametrize(("calls", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_a_call_is_taken_whatever_its_shape(place: str, calls: Any, expected: Any) -> None:
    match place:
        case "whole":
            parts = whole(chat_reply("Well.", "tool_calls", tool_calls=calls))
        case "events":
            listed = calls
            if isinstance(calls, list):
                listed = [{**each, "index": at} if each else each for at, each in enumerate(calls)]
            parts = events([chunk({"content": "Well.", "tool_calls": listed}), chunk({}, "tool_calls")])
        case "no role":
            parts = whole({"choices": [{"message": {"content": "Well.", "tool_calls": calls}}]})
        case _:
            parts = whole({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "stop"}]})
    taken = taken_of(parts)
    assert taken.calls == expected
    assert taken.content == ("" if place == "no content" else "Well.")


SAID = {"role": "assistant", "content": "Well."}
CALL_PART = {"type": "tool_use", "id": "x1", "name": "read_file", "input": A}
BESIDE: list[tuple[str, dict[str, Any]]] = [
    ("in toolCalls", {"choices": [{"message": {**SAID, "toolCalls": [call()]}}]}),
    ("in toolCalls, null in tool_calls", {"choices": [{"message": {**SAID, "tool_calls": None,
                                                                   "toolCalls": [call()]}}]}),
    ("in toolCalls and in tool_calls", {"choices": [{"message": {**SAID, "tool_calls": [call()], "toolCalls": []}}]}),
    ("on the choice", {"choices": [{"message": SAID, "tool_calls": [call()]}]}),
    ("on the choice, in toolCalls", {"choices": [{"message": SAID, "toolCalls": [call()]}]}),
    ("on the choice, an empty list in the message", {"choices": [{"message": {**SAID, "tool_calls": []},
                                                                  "tool_calls": [call()]}]}),
    ("on the top level", {"choices": [{"message": SAID}], "tool_calls": [call()]}),
    ("on the top level, in toolCalls", {"choices": [{"message": SAID}], "toolCalls": [call()]}),
    ("on both", {"choices": [{"message": {**SAID, "tool_calls": [call()]}}], "tool_calls": [call()]}),
    ("in functionCall", {"choices": [{"message": {**SAID, "functionCall": call()["function"] | {"id": "x1"}}}]}),
    ("as a part of the content", {"choices": [{"message": {"content": [says("Well."), CALL_PART]}}]}),
    ("as a part of another name", {"choices": [{"message": {"content": [
        says("Well."), {**CALL_PART, "type": "tool_call"}]}}]}),
]  # fmt: skip


@pytest.mark.parametrize("place", ["whole", "events", "one event", "wrapped", "capitals"])
@pytest.mark.parametrize("reply", [row[1] for row in BESIDE], ids=[row[0] for row in BESIDE])
def test_calls_are_taken_wherever_they_stand(place: str, reply: dict[str, Any]) -> None:
    (choice,) = reply["choices"]
    match place:
        case "whole":
            parts = whole(reply)
        case "events":
            chunked = {**reply, "choices": [{**choice, "message": None, "delta": choice["message"]}]}
            parts = events([chunked, chunk({}, "tool_calls")])
        case "one event":
            parts = events([reply])
        case "wrapped":
            parts = whole({"success": True, "errors": [], "result": reply})
        case _:
            parts = whole({name[0].upper() + name[1:]: value for name, value in reply.items()})
    taken = taken_of(parts)
    assert taken.content == "Well."
    assert [call[1:] for call in taken.calls] == [("read_file", A)]


def test_what_a_last_event_holds_of_the_whole_message_is_taken_but_once() -> None:
    whole_message = {"choices": [{"message": {**SAID, "tool_calls": [call()]}, "finish_reason": "tool_calls"}]}
    taken = taken_of(events([chunk({"content": "We"}), chunk({"content": "ll."}), whole_message]))
    assert (taken.content, taken.heard, taken.calls) == ("Well.", "Well.", ONE)


def piece(index: Any = 0, call_id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": call_id, "function": function}
    return {key: value for key, value in given.items() if value is not None}


PIECES: list[tuple[str, list[dict[str, Any]], Any]] = [
    ("as defined", [piece(0, "x1", "read_file", ""), piece(0, None, None, JSON_A[:4]), piece(0, None, None, JSON_A[4:]),
                    piece(1, "x2", "read_file", ""), piece(1, None, None, JSON_B)], TWO),
    ("index 0 for both, whole", [piece(0, "x1", "read_file", JSON_A), piece(0, "x2", "read_file", JSON_B)], TWO),
    ("index 0 for both, in pieces", [piece(0, "x1", "read_file", JSON_A[:4]), piece(0, None, None, JSON_A[4:]),
                                     piece(0, "x2", "read_file", JSON_B[:4]), piece(0, None, None, JSON_B[4:])], TWO),
    ("index 0 for both, no ids", [piece(0, None, "read_file", JSON_A), piece(0, None, "read_file", JSON_B)], TWO_OURS),
    ("no index", [piece(None, "x1", "read_file", JSON_A), piece(None, "x2", "read_file", JSON_B)], TWO),
    ("no index, no ids", [piece(None, None, "read_file", JSON_A), piece(None, None, "read_file", JSON_B)], TWO_OURS),
    ("no index, in pieces", [piece(None, "x1", "read_file", JSON_A[:4]), piece(None, None, None, JSON_A[4:]),
                             piece(None, "x2", "read_file", JSON_B[:4]), piece(None, None, None, JSON_B[4:])], TWO),
    ("the id in each piece", [piece(0, "x1", "read_file", JSON_A[:4]), piece(0, "x1", None, JSON_A[4:]),
                              piece(1, "x2", "read_file", JSON_B[:4]), piece(1, "x2", None, JSON_B[4:])], TWO),
    ("id and name in each piece", [piece(0, "x1", "read_file", JSON_A[:4]), piece(0, "x1", "read_file", JSON_A[4:]),
                                   piece(1, "x2", "read_file", JSON_B[:4]),
                                   piece(1, "x2", "read_file", JSON_B[4:])], TWO),
    ("the name empty later", [piece(0, "x1", "read_file", JSON_A[:4]), piece(0, "", "", JSON_A[4:]),
                              piece(1, "x2", "read_file", JSON_B)], TWO),
    ("the name in pieces", [piece(0, "x1", "read_", ""), piece(0, None, "file", ""),
                            piece(0, None, None, JSON_A)], ONE),
    ("the id after the name", [piece(0, None, "read_file", ""), piece(0, "x1", None, JSON_A)], ONE),
    ("whole arguments twice", [piece(0, "x1", "read_file", JSON_A), piece(0, None, None, JSON_A)], ONE),
    ("an object as arguments", [piece(0, "x1", "read_file", A), piece(0, "x2", "read_file", B)], TWO),
    ("interleaved", [piece(0, "x1", "read_file", JSON_A[:4]), piece(1, "x2", "read_file", JSON_B[:4]),
                     piece(0, None, None, JSON_A[4:]), piece(1, None, None, JSON_B[4:])], TWO),
    ("no index, interleaved by id", [piece(None, "x1", "read_file", JSON_A[:4]),
                                     piece(None, "x2", "read_file", JSON_B[:4]),
                                     piece(None, "x1", None, JSON_A[4:]), piece(None, "x2", None, JSON_B[4:])], TWO),
    ("indexes as texts", [piece("0", "x1", "read_file", JSON_A[:4]), piece("1", "x2", "read_file", JSON_B[:4]),
                          piece("0", None, None, JSON_A[4:]), piece("1", None, None, JSON_B[4:])], TWO),
    ("indexes from 1", [piece(1, "x1", "read_file", JSON_A), piece(2, "x2", "read_file", JSON_B)], TWO),
    ("an index with a gap", [piece(0, "x1", "read_file", JSON_A), piece(5, "x2", "read_file", JSON_B)], TWO),
    ("ids alike under two indexes", [piece(0, "x1", "read_file", JSON_A), piece(1, "x1", "read_file", JSON_B)],
     (("x1", "read_file", A), ("ours-2", "read_file", B))),
    ("each repeats those before", [piece(0, "x1", "read_file", JSON_A[:at]) for at in (1, 4, 9, len(JSON_A))], ONE),
    ("the same, without ids", [piece(0, None, "read_file", JSON_A[:at]) for at in (2, 9, len(JSON_A))], OURS),
    ("the same, index 0 for both", [*[piece(0, "x1", "read_file", JSON_A[:at]) for at in (2, 9, len(JSON_A))],
                                    *[piece(0, "x2", "read_file", JSON_B[:at]) for at in (2, 9, len(JSON_B))]], TWO),
    ("the same, in two pieces", [piece(0, "x1", "read_file", JSON_A[:4]), piece(0, None, None, JSON_A)], ONE),
    ("the same, and again at the end", [piece(0, "x1", "read_file", JSON_A[:4]), piece(0, None, None, JSON_A),
                                        piece(0, None, None, JSON_A)], ONE),
    ("objects in objects, in pieces", [piece(0, "x1", "read_file", '{"path": '), piece(0, None, None, '{"path": "a"}'),
                                       piece(0, None, None, "}")], (("x1", "read_file", {"path": A}),)),
    ("an empty object, then the arguments", [piece(0, "x1", "read_file", "{}"), piece(0, None, None, JSON_A)], ONE),
    ("an empty object, then pieces", [piece(0, "x1", "read_file", "{}"), piece(0, None, None, JSON_A[:4]),
                                      piece(0, None, None, JSON_A[4:])], ONE),
    ("an empty object as such, then pieces", [piece(0, "x1", "read_file", {}), piece(0, None, None, JSON_A[:4]),
                                              piece(0, None, None, JSON_A[4:])], ONE),
    ("an empty object at the end", [piece(0, "x1", "read_file", JSON_A), piece(0, None, None, "{}")], ONE),
    ("null, then the arguments", [piece(0, "x1", "read_file", "null"), piece(0, None, None, JSON_A)], ONE),
    ("the name grows", [piece(0, "x1", "read", ""), piece(0, "x1", "read_file", JSON_A)], ONE),
    ("a further index for each piece", [piece(0, "x1", "read_file", ""), piece(1, None, None, JSON_A[:4]),
                                        piece(2, None, None, JSON_A[4:])], ONE),
    ("a further index for each piece, with its id", [piece(0, "x1", "read_file", JSON_A[:4]),
                                                     piece(1, "x1", None, JSON_A[4:])], ONE),
    ("the second begins under the index of the first", [
        piece(0, "x1", "read_file", ""), piece(0, None, None, JSON_A), piece(0, "x2", "read_file", ""),
        piece(1, None, None, JSON_B[:4]), piece(1, None, None, JSON_B[4:])], TWO),
    ("the whole call again under a further index", [piece(0, "x1", "read_file", JSON_A),
                                                    piece(1, "x1", "read_file", JSON_A)], ONE),
    ("input in place of arguments", [{"index": 0, "id": "x1", "name": "read_file", "input": JSON_A}], ONE),
    ("no arguments", [piece(0, "x1", "read_file")], NO_ARGUMENTS),
    ("no arguments, then empty ones", [piece(0, "x1", "read_file", ""), piece(0, None, None, "")], NO_ARGUMENTS),
    ("a brace in a text", [piece(0, "x1", "read_file", '{"path": "}'), piece(0, "x1", "read_file", '"}')],
     (("x1", "read_file", {"path": "}"}),)),
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize(("pieces", "expected"), [row[1:] for row in PIECES], ids=[row[0] for row in PIECES])
def test_calls_that_come_in_pieces_are_put_together(pieces: list[Any], expected: Any, batch: int) -> None:
    deltas = [{"tool_calls": pieces[at : at + batch]} for at in range(0, len(pieces), batch)]
    taken = taken_of(
        events([chunk({"role": "assistant", "content": None}), *map(chunk, deltas), chunk({}, "tool_calls")])
    )
    assert (taken.calls, taken.finish) == (expected, "tool_calls")


def use(*, drop: str = "", **more: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": "x1", "name": "read_file", "input": A, **more}
    return {name: value for name, value in block.items() if name != drop}


BLOCKS: list[tuple[str, list[Any], str, Any]] = [
    ("as defined", [says("Well."), use()], "Well.", ONE),
    ("id empty", [use(id="")], "", OURS),
    ("id null", [use(id=None)], "", OURS),
    ("id missing", [use(drop="id")], "", OURS),
    ("ids alike", [use(), use(input=B)], "", (("x1", "read_file", A), ("ours-2", "read_file", B))),
    ("input a text", [use(input=JSON_A)], "", ONE),
    ("input empty", [use(input="")], "", NO_ARGUMENTS),
    ("input null", [use(input=None)], "", NO_ARGUMENTS),
    ("input missing", [use(drop="input")], "", NO_ARGUMENTS),
    ("input cut off", [use(input='{"path": ')], "", (("x1", "read_file", '{"path": '),)),
    ("input a list", [use(input=[1])], "", (("x1", "read_file", "[1]"),)),
    ("name missing", [use(drop="name")], "", (("x1", "unnamed_tool", A),)),
    ("text null", [says(None), says("Well.")], "Well.", ()),
    ("text missing", [{"type": "text"}, says("Well.")], "Well.", ()),
    ("text empty", [says(""), says("Well.")], "Well.", ()),
    ("a text as a block", ["Well."], "Well.", ()),
    ("null as a block", [None, says("Well.")], "Well.", ()),
    ("an unknown block", [says("Well."), {"type": "container_note", "x": 1}], "Well.", ()),
    ("a block without a type", [{"x": 1}, says("Well.")], "Well.", ()),
    ("thinking without a signature", [{"type": "thinking", "thinking": "hm"}, says("Well.")], "Well.", ()),
    ("thinking null", [{"type": "thinking", "thinking": None}, says("Well.")], "Well.", ()),
    ("a call of another name", [use(type="tool_call")], "", ONE),
    ("a call with a function in it", [{"type": "function_call", "id": "x1",
                                       "function": {"name": "read_file", "arguments": JSON_A}}], "", ONE),
    ("the same call again", [use(), use()], "", ONE),
    ("input twice", [use(input=JSON_A + JSON_A)], "", ONE),
    ("an empty input before it", [use(input="{}" + JSON_A)], "", ONE),
    ("a call of the server's own", [{**use(), "type": "server_tool_use"}], "", ()),
    ("nothing", [], "", ()),
]  # fmt: skip


@pytest.mark.parametrize("place", ["whole", "events", "events, one index"])
@pytest.mark.parametrize(("blocks", "content", "calls"), [row[1:] for row in BLOCKS], ids=[row[0] for row in BLOCKS])
def test_a_message_is_taken_block_by_block(place: str, blocks: list[Any], content: str, calls: Any) -> None:
    if place == "whole":
        parts = whole({**message_reply(), "content": blocks})
    else:
        start, _, _, _, *end = message_stream()
        known = [block for block in blocks if isinstance(block, dict)]
        begun = [
            {"type": "content_block_start", "index": 0 if "one" in place else n, "content_block": block}
            for n, block in enumerate(known)
        ]
        content = content if len(known) == len(blocks) or "Well." not in blocks else ""
        parts = events([start, *begun, *end], done=False)
    taken = taken_of(parts, MESSAGES)
    assert (taken.content, taken.calls) == (content, calls)


@pytest.mark.parametrize("index", [[0, 1, 2], [0, 0, 0], [None, None, None], [1, 2, 3]])
@pytest.mark.parametrize("stops", [True, False])
def test_the_pieces_of_a_message_belong_to_the_block_of_their_kind(index: list[Any], stops: bool) -> None:
    start, *_, delta, stop = message_stream(stop="tool_use")
    blocks = [
        ({"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"}),
        (says(""), {"type": "text_delta", "text": "Well."}),
        (use(input={}), {"type": "input_json_delta", "partial_json": JSON_A}),
    ]
    values: list[Any] = [start]
    for at, (block, change) in zip(index, blocks, strict=True):
        values += [{"type": "content_block_start", "index": at, "content_block": block}]
        values += [{"type": "content_block_delta", "index": at, "delta": change}]
        values += [{"type": "content_block_stop", "index": at}] if stops else []
    taken = taken_of(events([*values, {"type": "ping"}, delta, stop], done=False), MESSAGES)
    assert (taken.content, taken.heard, taken.calls, taken.finish) == ("Well.", "Well.", ONE, "tool_calls")


@pytest.mark.parametrize("key", ["tool_calls", "toolCalls"])
@pytest.mark.parametrize("content", [[says("Well.")], "Well.", None])
@pytest.mark.parametrize("place", ["whole", "event", "start"])
def test_calls_beside_the_content_of_a_message_are_taken(place: str, content: Any, key: str) -> None:
    reply = {**message_reply(stop="tool_use"), "content": content, key: [call()]}
    match place:
        case "whole":
            parts = whole(reply)
        case "event":
            parts = events([reply], done=False)
        case _:
            parts = events([{"type": "message_start", "message": reply}, {"type": "message_stop"}], done=False)
    taken = taken_of(parts, MESSAGES)
    assert (taken.content, taken.calls) == ("Well." if content else "", ONE)


def begun(at: Any, block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": at, "content_block": block}


def grown(at: Any, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": at, "delta": {"type": "text_delta", "text": text}}


def given(at: Any, piece: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": at, "delta": {"type": "input_json_delta", "partial_json": piece}}


AHEAD: list[tuple[str, list[Any], list[Any], Any]] = [
    ("all of it", [says("Well.")], [], ()),
    ("a text and a call", [says("Well."), use()], [], ONE),
    ("a call alone", [says("Well.")], [begun(1, use())], ONE),
    ("a text that comes again", [says("Well.")], [begun(0, says("")), grown(0, "Well.")], ()),
    ("all of it, which comes again", [says("Well."), use()],
     [begun(0, says("")), grown(0, "We"), grown(0, "ll."), begun(1, use(input={})), given(1, JSON_A)], ONE),
    ("an empty text that grows", [says("")], [grown(0, "We"), grown(0, "ll.")], ()),
    ("a text that grows", [says("We")], [grown(0, "ll.")], ()),
    ("a block that is a text", ["Well."], [], ()),
    ("a content that is a text", "Well.", [], ()),
]  # fmt: skip


@pytest.mark.parametrize(("content", "more", "calls"), [row[1:] for row in AHEAD], ids=[row[0] for row in AHEAD])
def test_what_comes_with_the_start_of_a_message_is_taken_once(content: Any, more: list[Any], calls: Any) -> None:
    start, *_, delta, stop = message_stream(stop="tool_use" if calls else "end_turn")
    start["message"]["content"] = content
    taken = taken_of(events([start, *more, delta, stop], done=False), MESSAGES)
    assert (taken.content, taken.heard, taken.calls) == ("Well.", "Well.", calls)


INPUTS: list[tuple[str, Any, list[str]]] = [
    ("an empty object", {}, [JSON_A]),
    ("the whole before", A, []),
    ("the whole before, and again", A, [JSON_A]),
    ("an empty object, then pieces", {}, ["{}", JSON_A[:4], JSON_A[4:]]),
    ("each repeats those before", {}, [JSON_A[:2], JSON_A[:9], JSON_A]),
    ("nothing", {}, ["", JSON_A]),
]


@pytest.mark.parametrize(("first", "pieces"), [row[1:] for row in INPUTS], ids=[row[0] for row in INPUTS])
def test_the_input_of_a_call_is_taken_once(first: Any, pieces: list[str]) -> None:
    start, *_, delta, stop = message_stream(stop="tool_use")
    parts = [start, begun(0, use(input=first)), *[given(0, each) for each in pieces], delta, stop]
    assert taken_of(events(parts, done=False), MESSAGES).calls == ONE


def test_arguments_are_compared_with_few_others() -> None:
    many = "".join(f'{{"a": {number}}}' for number in range(2 * MAX_REPETITIONS))
    assert _values_in(many) == []
    (taken,) = taken_of(whole(chat_reply(None, "tool_calls", tool_calls=[call(arguments=many)]))).calls
    assert taken == ("x1", "read_file", many)


# -- pieces that repeat those before them ---------------------------------------------------------------------------

TALE = "It says alpha, and then beta.\nIt says no more."
GROWN = [TALE[:at] for at in (3, 10, 30, len(TALE))]
TEXTS: list[tuple[str, list[str], str]] = [
    ("each adds", [TALE[:3], TALE[3:10], TALE[10:]], TALE),
    ("each repeats", GROWN, TALE),
    ("each repeats, and the last again", [*GROWN, TALE], TALE),
    ("each letter", [TALE[: at + 1] for at in range(len(TALE))], TALE),
    ("two pieces", [TALE[:30], TALE], TALE),
    ("all of it again at the end", [TALE[:3], TALE[3:10], TALE[10:], TALE], TALE),
    ("each repeats, then one adds", [*GROWN, " Right."], TALE + " Right."),
    ("two short ones", ["ha", "haha"], "hahaha"),
    ("short ones", ["a", "aa", "aaa"], "aaaaaa"),
    ("dashes", ["-" * size for size in (4, 8, 16, 32)], "-" * 60),
    ("alike", ["ha ", "ha ", "ha "], "ha ha ha "),
    ("alike and long", [TALE, TALE], TALE + TALE),
    ("the second begins alike", ["It", "It's", " fine."], "ItIt's fine."),
    ("a short text twice", ["no", " ", "no", " "], "no no "),
    ("nothing", ["", ""], ""),
]  # fmt: skip


@pytest.mark.parametrize("place", ["chat", "message", "reasoning"])
@pytest.mark.parametrize(("pieces", "expected"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_pieces_that_repeat_those_before_are_heard_and_taken_once(pieces: list[str], expected: str, place: str) -> None:
    if place == "message":
        start, *_, delta, stop = message_stream()
        parts = events([start, begun(0, says("")), *[grown(0, each) for each in pieces], delta, stop], done=False)
        taken = taken_of(parts, MESSAGES)
    else:
        more = [{"reasoning": each, "content": each} if place == "reasoning" else {"content": each} for each in pieces]
        taken = taken_of(events([*map(chunk, more), chunk({}, "stop")]))
    assert (taken.content, taken.heard) == (expected, expected)
    is_repaired = len(expected) < len("".join(pieces))
    assert len(taken.notes) == is_repaired


# -- what stands around the text ------------------------------------------------------------------------------------

CONTENTS: list[tuple[str, Any, str]] = [
    ("a text", "Well.", "Well."),
    ("parts", [says("We"), says("ll.")], "Well."),
    ("parts of the newer interface", [{"type": "output_text", "text": "Well."}], "Well."),
    ("texts in a list", ["We", "ll."], "Well."),
    ("one part", says("Well."), "Well."),
    ("a part without a type", [{"text": "Well."}], "Well."),
    ("thinking among the parts", [{"type": "thinking", "thinking": [says("hm")]}, says("Well.")], "Well."),
    ("parts of no use", [{"type": "image_url"}, 7, None, says("Well.")], "Well."),
    ("null", None, ""),
    ("a number", 7, ""),
    ("thinking whose beginning is in the prompt", "I look.\n</think>\n\nWell.", "Well."),
    ("the same, of another name", "I look.\n</thinking>\nWell.", "Well."),
    ("a tag in a sentence", "The tag `</think>` ends it.", "The tag `</think>` ends it."),
    ("a tag in a fence", "So:\n```\n<p>\n</think>\n```", "So:\n```\n<p>\n</think>\n```"),
    ("a tag with its beginning", "<think>\nhm\n</think>\nWell.", "<think>\nhm\n</think>\nWell."),  # its library's part
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), [row[1:] for row in CONTENTS], ids=[row[0] for row in CONTENTS])
@pytest.mark.parametrize("place", ["whole", "events", "message of a choice", "older form"])
def test_the_text_is_taken_from_every_form_of_content(place: str, content: Any, expected: str) -> None:
    match place:
        case "whole":
            parts = whole(chat_reply(content))
        case "events":
            parts = events([chunk({"content": content}), chunk({}, "stop")])
        case "message of a choice":
            parts = events([{"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}])
        case _ if isinstance(content, str):
            parts = whole({"choices": [{"text": content, "finish_reason": "stop"}]})
        case _:
            parts = whole({"choices": {"message": {"content": content}}})
    assert taken_of(parts).content == expected


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    "text", ["<think>hm</think>Well.", "\n<think>hm</think>Well.", "Well.", "<that> is <think>.", ""]
)
def test_thinking_is_not_heard_as_the_answer(text: str, size: int) -> None:
    deltas = [{"content": text[at : at + size]} for at in range(0, len(text), size)]
    taken = taken_of(events([*map(chunk, deltas), chunk({}, "stop")]))
    assert taken.heard == (text if not text.lstrip().startswith("<think>") else "Well.")


@pytest.mark.parametrize("arguments", [JSON_A, A], ids=["a text", "an object"])
@pytest.mark.parametrize("zero", [0, "0"])
def test_blocks_whose_indexes_are_texts_or_whose_input_is_an_object_are_put_together(zero: Any, arguments: Any) -> None:
    one = type(zero)(1)
    values: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "m1"}}]
    for at, name in ((zero, "x1"), (one, "x2")):
        values.append({"type": "content_block_start", "index": at, "content_block": use(id=name, input={})})
    for at, given in ((zero, arguments), (one, JSON_B)):
        delta = {"type": "input_json_delta", "partial_json": given}
        values.append({"type": "content_block_delta", "index": at, "delta": delta})
    values += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    assert taken_of(events(values, done=False), MESSAGES).calls == TWO


def test_a_further_answer_in_a_stream_is_not_mixed_into_the_first() -> None:
    chunks = [(0, {"content": "We"}), (1, {"content": "No"}), (0, {"content": "ll."}), (1, {"content": "."})]
    values: list[dict[str, Any]] = [{"choices": [{"index": at, "delta": delta}]} for at, delta in chunks]
    values += [
        {"choices": [{"index": at, "delta": {}, "finish_reason": word}]} for at, word in ((0, "stop"), (1, "length"))
    ]
    taken = taken_of(events(values))
    assert (taken.content, taken.finish) == ("Well.", "stop")
