"""Lines in and out: bounded, one message each, every request answered."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as wire
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from pydantic_core import from_json

from kairos_mcp.server.framing import FramedLine, LineCutter, UnreadableLine, encode_message, parse_line
from kairos_mcp.server.stdio import connect_streams
from kairos_mcp.server.thread_streams import MAX_UNWRITTEN, UNWRITTEN_POLL_S


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line)), st.integers(1, 50))
def test_lines_are_the_same_however_they_arrive(lines, step):
    stream = b"".join(line + b"\n" for line in lines)
    cutter = LineCutter(limit=20)
    cut = [line for start in range(0, len(stream), step) for line in cutter.split_chunk(stream[start : start + step])]
    assert [line.text for line in cut] == [line[:20] for line in lines]
    assert [line.left_out for line in cut] == [max(0, len(line) - 20) for line in lines]
    assert list(cutter.flush()) == []


def test_a_last_line_without_its_end_counts():
    cutter = LineCutter()
    assert list(cutter.split_chunk(b'{"a":1}')) == []
    assert [line.text for line in cutter.flush()] == [b'{"a":1}']


IDS = {
    b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":"\\ud800"}}': 7,
    b'{"jsonrpc": "2.0", "id": "seven", "method": "x", "params": {"a": "\\ud800"}}': "seven",
    b'{"method":"x","params":{"id":1,"a":"\\ud800"},"jsonrpc":"2.0","id":7}': 7,
    b'{"method":"x","id":8,"params":{"id":1,"a":"\\ud800"},"jsonrpc":"2.0"}': 8,
    b'{"method":"x","params":{"id":1,"a":"\\ud800","jsonrpc":"2.0","id":3}}': None,
    b'{"jsonrpc":"2.0","method":"x","params":{"id":1,"a":"\\ud800"}}': None,
    b"what is this": None,
}


@pytest.mark.parametrize(("line", "number"), IDS.items())
def test_a_request_that_can_not_be_parsed_is_answered_under_its_own_id(line, number):
    refusal = parse_line(FramedLine(line))
    assert isinstance(refusal, UnreadableLine)
    assert FramedLine(line).request_id() == number
    assert refusal.as_error(number).error.code == wire.PARSE_ERROR


def test_the_id_at_the_end_of_a_line_too_long_is_found():
    cutter = LineCutter(limit=64)
    (line,) = cutter.split_chunk(b'{"method":"x","params":{"a":"' + b"z" * 5_000 + b'"},"jsonrpc":"2.0","id":7}\n')
    assert line.request_id() == 7
    assert len(line.text) + len(line.tail) < 1_000


@given(st.text())
@example("a\u2028b")  # what ends a line elsewhere
@example("a\x85b")
@example("a\rb")
@example("a\x00b")
@example("a\u2029b")
@example("a\x0bb")
def test_a_message_is_one_line_whatever_it_says(text):  # STDIO-006
    sent = SessionMessage(wire.JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": text}))
    line = encode_message(sent).decode()
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert from_json(line)["result"]["text"] == text


def test_an_answer_that_is_no_unicode_is_still_an_answer():
    sent = SessionMessage(wire.JSONRPCResponse(jsonrpc="2.0", id=9, result={"text": "\ud800"}))
    answer = from_json(encode_message(sent))
    assert (answer["id"], answer["error"]["code"]) == (9, wire.INTERNAL_ERROR)


@asynccontextmanager
async def connect_pipes() -> AsyncIterator[tuple[int, int, Any, Any]]:
    """A connection over two pipes: our ends of them, and the streams a server would have."""
    theirs, ours = os.pipe()
    our_end, target = os.pipe()
    with anyio.fail_after(10):
        async with connect_streams(theirs, target, lambda: None) as (reads, writes):
            yield ours, our_end, reads, writes
    for number in (theirs, target, our_end):
        os.close(number)


async def test_messages_pass_and_the_end_of_input_ends_the_stream():
    async with connect_pipes() as (ours, our_end, reads, writes):
        os.write(ours, b'\n  \n{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert (await reads.receive()).message.id == 1
        await writes.send(SessionMessage(wire.JSONRPCResponse(jsonrpc="2.0", id=1, result={})))
        assert from_json(await anyio.to_thread.run_sync(os.read, our_end, 4096))["id"] == 1
        os.close(ours)
        with pytest.raises(anyio.EndOfStream):
            await reads.receive()


async def test_what_is_no_message_is_answered_and_the_next_one_passes():
    async with connect_pipes() as (ours, our_end, reads, _writes):
        os.write(ours, b'{"jsonrpc":"2.0","id":5,"method":"ping","params":[1]}\n{"jsonrpc":"2.0"')
        os.write(ours, b',"id":6,"method":"ping"}\n')
        answer = from_json(await anyio.to_thread.run_sync(os.read, our_end, 4096))
        assert (answer["id"], answer["error"]["code"]) == (5, wire.INVALID_REQUEST)
        assert (await reads.receive()).message.id == 6
        os.close(ours)


async def test_a_client_that_does_not_read_is_not_read_from():
    long = SessionMessage(wire.JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": "x" * 2**17}))
    async with connect_pipes() as (ours, our_end, reads, writes):
        await writes.send(long)  # more than a pipe holds
        for number in range(MAX_UNWRITTEN):
            await writes.send(SessionMessage(wire.JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
        os.write(ours, b'{"jsonrpc":"2.0","id":5,"method":"ping"}\n')
        with anyio.move_on_after(3 * UNWRITTEN_POLL_S) as waited:
            await reads.receive()
        assert waited.cancelled_caught
        read = b""
        while read.count(b"\n") <= MAX_UNWRITTEN:
            read += await anyio.to_thread.run_sync(os.read, our_end, 2**16)
        assert [from_json(line)["id"] for line in read.splitlines()] == [1, *range(MAX_UNWRITTEN)]
        assert (await reads.receive()).message.id == 5
        os.close(ours)


async def test_an_error_from_the_client_is_a_message_like_any_other():
    async with connect_pipes() as (ours, _our_end, reads, _writes):
        os.write(ours, b'{"jsonrpc":"2.0","id":5,"error":{"code":-32700,"message":"no"}}\n')
        assert (await reads.receive()).message.error.code == wire.PARSE_ERROR
        os.close(ours)


@pytest.mark.parametrize(
    ("version", "is_one"),
    [
        ("2025-11-25", True),
        ("DRAFT-2026-v1", True),
        ("2.0", True),
        ("sk-proj-abcDEF0123456789abcdef", False),
        ("kq4711z9", False),
    ],
)
def test_a_protocol_version_that_can_not_be_one_is_refused_and_not_repeated(version: str, is_one: bool) -> None:
    meta = {wire.PROTOCOL_VERSION_META_KEY: version}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": meta}}
    refusal = parse_line(FramedLine(json.dumps(message).encode()))
    assert isinstance(refusal, UnreadableLine) != is_one
    assert version not in getattr(refusal, "text", "")
