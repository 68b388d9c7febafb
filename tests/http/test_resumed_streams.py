"""Streams of clients up to 2025-11-25 that were lost, and are gone on with by the id of the last event that came."""

from __future__ import annotations

import gc
import json
import re
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mcp_types as wire
import pytest
from support.http_server import Site, read_answer, tokens_of

from kairos_mcp.server.http_events import MAX_BYTES, MAX_EVENTS, RETRY_MS, SessionEvents

LEGACY = ("MCP-Protocol-Version",)
SLOW = {"content": "done", "finish": "stop", "delay_s": 1.5}


class Event(NamedTuple):
    id: str
    message: Any


def open_session(site: Site, version: str = "2025-11-25", *more: str) -> str:
    client = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}
    return site.post(json.dumps(hello).encode(), *more, without=LEGACY).headers["mcp-session-id"]


def call_head(site: Site, session: str, version: str, goal: str, *more: str) -> bytes:
    params = {"name": "planner_run", "arguments": {"goal": goal}, "_meta": {"progressToken": 1}}
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).encode()
    names = (f"Mcp-Session-Id: {session}", f"MCP-Protocol-Version: {version}", f"Content-Length: {len(body)}")
    return site.head(*names, *more, without=LEGACY) + b"\r\n" + body


def events_of(connection: socket.socket) -> Iterator[Event]:
    """The events of a stream as they come, until it ends."""
    got = b""
    while chunk := connection.recv(65536):
        got += chunk
        *whole, got = got.split(b"\r\n\r\n")
        for part in whole:
            found = re.search(rb"^id: (\S+)", part, re.MULTILINE)
            data = re.search(rb"^data: (\{.*)", part, re.MULTILINE)
            if found is not None:
                yield Event(found[1].decode(), None if data is None else json.loads(data[1]))


def resume(site: Site, session: str, last: str, version: str = "2025-11-25", *more: str) -> socket.socket:
    connection = site.connect()
    names = (
        f"Mcp-Session-Id: {session}",
        f"MCP-Protocol-Version: {version}",
        f"Last-Event-ID: {last}",
        "Connection: close",
    )
    connection.sendall(site.head(*names, *more, method="GET", without=LEGACY) + b"\r\n")
    return connection


def status_of(connection: socket.socket) -> int:
    return int(connection.recv(65536).split()[1])


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
def test_a_call_whose_stream_was_lost_is_answered_on_the_next_one(
    sites: Callable[..., Site], write_script: Callable[..., None], version: str
) -> None:
    write_script(SLOW)
    site = sites()
    session = open_session(site, version)
    with site.connect() as lost:
        lost.sendall(call_head(site, session, version, "survive"))
        first = next(events_of(lost))
    assert (first.message is None) == (version == "2025-11-25")  # an event to come back to; older clients can't read it
    with resume(site, session, first.id, version) as stream:
        found = list(events_of(stream))  # it ends with the answer
    assert found[-1].message["result"]["structuredContent"]["summary"] == "done"
    assert all(event.message["method"] == "notifications/progress" for event in found[:-1])
    assert len({event.id for event in found}) == len(found)
    with resume(site, session, first.id, version) as again:
        assert list(events_of(again)) == found  # as often as it is lost
    with resume(site, session, found[-1].id, version) as nothing:
        assert list(events_of(nothing)) == []
    assert site.is_quiet()


def test_a_client_is_told_when_to_come_back(sites: Callable[..., Site], write_script: Callable[..., None]) -> None:
    write_script(SLOW)
    site = sites()
    with site.connect() as connection:
        connection.sendall(call_head(site, open_session(site), "2025-11-25", "wait"))
        got = b""
        while b"retry:" not in got:
            got += connection.recv(65536)
    assert f"retry: {RETRY_MS}".encode() in got


def test_a_stream_is_gone_on_with_in_its_own_session_alone(
    sites: Callable[..., Site], write_script: Callable[..., None], tmp_path: Path
) -> None:
    write_script({"content": "done", "finish": "stop"})
    tokens = tokens_of(tmp_path / "place")
    alice, bob = tokens.add("alice"), tokens.add("bob")
    site = sites(token=alice)
    hers, also_hers = open_session(site), open_session(site)
    with site.connect() as connection:
        connection.sendall(call_head(site, hers, "2025-11-25", "secret"))
        stream = events_of(connection)
        first = next(stream)
        while "result" not in ((event := next(stream)).message or {}):
            pass
    as_bob = (f"Authorization: Bearer {bob}",)
    site.token = None
    with resume(site, hers, first.id, "2025-11-25", *as_bob) as stranger:
        assert status_of(stranger) == 404  # as if there were no such session
    his = open_session(site, "2025-11-25", *as_bob)
    with resume(site, his, event.id, "2025-11-25", *as_bob) as stranger:
        assert status_of(stranger) == 400
    site.token = alice
    with resume(site, also_hers, event.id) as other:
        assert status_of(other) == 400


@pytest.mark.parametrize("last", ["0", "x", "999999", "1 or 1"])
def test_an_event_that_is_not_there_is_refused_with_what_to_do(token_site: Site, last: str) -> None:
    with resume(token_site, open_session(token_site), last) as connection:
        answer = read_answer(connection)
    assert answer.status == 400
    assert "run_status" in answer.json["error"]["message"]


def progress(number: int, text: str = "") -> wire.JSONRPCNotification:
    params = {"progressToken": 1, "progress": number, "message": text}
    return wire.JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=params)


def test_the_events_of_a_session_are_bounded_by_number_and_size() -> None:
    events = SessionEvents()
    ids = [events.add("1", progress(number)) for number in range(MAX_EVENTS + 10)]
    assert [events.find(each) is not None for each in (ids[0], ids[9], ids[10], ids[-1])] == [False, False, True, True]
    large = [events.add("2", progress(number, "x" * (MAX_BYTES // 4))) for number in range(6)]
    assert sum(events.find(each) is not None for each in [*ids, *large]) == 3
    events.add("3", progress(1, "x" * MAX_BYTES))
    assert events.find(large[-1]) is None
    assert events.find(events.add("1", None)) is not None


def test_the_memory_of_a_session_s_events_is_what_their_bytes_take() -> None:
    """As an object a result takes several times as much, so that a server would grow long after its first runs."""
    result = {"structuredContent": {f"field {n}": [n, {"status": "completed"}] for n in range(20)}}
    encoded = json.dumps(result)
    events = SessionEvents()
    tracemalloc.start()
    try:
        for number in range(MAX_EVENTS):
            events.add("1", wire.JSONRPCResponse(jsonrpc="2.0", id=number, result=json.loads(encoded)))
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1.5 * MAX_EVENTS * len(encoded)


def test_what_follows_an_event_is_of_its_own_stream() -> None:
    events = SessionEvents()
    first = events.add("1", None)
    events.add("2", progress(1))
    second = events.add("1", progress(2))
    found = events.find(first)
    assert found is not None
    following = events.next_after(found)
    assert following is not None
    assert str(following.number) == second
    assert events.next_after(following) is None
