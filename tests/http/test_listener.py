"""What a connection may cost: slow, idle, stuck and vanished clients, sessions without end, and the end itself."""

from __future__ import annotations

import asyncio
import json
import select
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from support.http_server import SECONDS, Answer, Site, call_body, read_answer, read_to_end
from support.waiting import wait_until

from kairos_mcp.server.http import UvicornServer
from kairos_mcp.server.http_bounds import RequestBounds

PLENTY = 10**6
LAST_CHUNK = b"0\r\n\r\n"  # of a stream that ends in order
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
LEGACY = ("MCP-Protocol-Version",)


@pytest.fixture(scope="module")
def brisk(tmp_path_factory: pytest.TempPathFactory):
    """Short of patience, and of room."""
    bounds = RequestBounds(header_s=0.5, body_s=0.5, unread_s=0.5, connections=24, sessions=3, idle_s=0.5, burst=PLENTY)
    site = Site.start(tmp_path_factory.mktemp("brisk"), bounds)
    yield site
    site.stop()


@pytest.fixture
def site(brisk: Site):
    yield brisk
    assert brisk.still_answers()
    assert brisk.is_quiet()


def test_half_a_header_is_given_up(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127")
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert read_to_end(connection) == b""


def test_a_header_that_drips_gains_no_time(site: Site) -> None:
    began = time.monotonic()
    with site.connect() as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\n")
        while not select.select([connection], [], [], 0.05)[0]:
            connection.sendall(b"X: y\r\n")
            assert time.monotonic() - began < SECONDS
        assert read_answer(connection).status == 408


def test_a_second_header_has_the_same_time(site: Site) -> None:
    body = call_body("run_status", {})
    head = site.head("MCP-Method: tools/call", "MCP-Name: run_status", f"Content-Length: {len(body)}")
    with site.connect() as connection:
        connection.sendall(head + b"\r\n" + body)
        assert read_answer(connection).status == 200
        connection.sendall(b"POST /mcp")
        assert read_answer(connection).status == 408


def test_a_connection_that_says_nothing_is_closed(site: Site) -> None:
    with site.connect() as connection:
        assert read_to_end(connection) == b""


def test_a_header_too_large_is_refused(site: Site) -> None:
    assert site.says_to(site.head("X: " + "y" * 20_000) + b"\r\n").status == 400


def test_a_body_that_does_not_come_is_given_up(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(site.head("Content-Length: 100") + b'\r\n{"jsonrpc"')
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert read_to_end(connection) == b""


def test_what_follows_a_refused_body_is_not_read_for_ever(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(site.head("Content-Length: 100000000") + b"\r\n{")
        assert read_answer(connection).status == 413
        began = time.monotonic()
        with suppress(ConnectionError):
            while not select.select([connection], [], [], 0.05)[0]:
                connection.sendall(b"more")
                assert time.monotonic() - began < SECONDS
        assert read_to_end(connection) == b""


@pytest.mark.parametrize("idle", [pytest.param(200, id="HTTP-016")])
def test_idle_connections_make_room(site: Site, idle: int) -> None:
    kept = [site.connect() for _ in range(idle)]
    assert site.still_answers()
    assert site.descriptors() < idle
    for connection in kept:
        connection.close()


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    given_up = asyncio.Event()

    async def endless(_scope: object, _receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": b"z" * 65536, "more_body": True})
        given_up.set()  # sending to nobody takes no time

    with socket.create_server(("127.0.0.1", 0)) as bound:
        serving = UvicornServer(endless, RequestBounds(unread_s=0.3))
        served = asyncio.create_task(serving.serve([bound]))
        reader, writer = await asyncio.open_connection(*bound.getsockname(), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(given_up.wait(), SECONDS)
        received = 0
        with suppress(ConnectionError):
            while more := await asyncio.wait_for(reader.read(65_536), SECONDS):
                received += len(more)
        assert received < 1_000 * 65_536
        writer.close()
        serving.should_exit = True
        await served


def open_session(site: Site, expected: int = 200) -> str:
    """The id of a new legacy session."""
    answer = site.post(json.dumps(HELLO).encode(), without=LEGACY)
    assert answer.status == expected
    return answer.headers.get("mcp-session-id", "")


def in_session(site: Site, session: str) -> Answer:
    ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}).encode()
    return site.post(ping, f"Mcp-Session-Id: {session}", without=LEGACY)


def close_session(site: Site, session: str) -> None:
    head = site.head(f"Mcp-Session-Id: {session}", "Connection: close", method="DELETE", without=LEGACY)
    site.says_to(head + b"\r\n")


def streams(site: Site, token: str | None = None) -> socket.socket:
    """A new SSE stream, its beginning read."""
    own = (f"Authorization: Bearer {token}",) if token else ()
    head = site.head(
        "Connection: close", *own, method="GET", path="/sse", without=(*LEGACY, *(("Authorization",) if token else ()))
    )
    connection = site.connect()
    connection.sendall(head + b"\r\n")
    got = b""
    while b"session_id=" not in got:
        more = connection.recv(65536)
        assert more, got
        got += more
    return connection


def test_HTTP_017_of_too_many_sessions_the_longest_idle_one_goes(site: Site) -> None:
    sessions = [open_session(site) for _ in range(3)]
    assert in_session(site, sessions[0]).status == 200
    sessions.append(open_session(site))
    assert [in_session(site, session).status for session in sessions] == [200, 404, 200, 200]
    close_session(site, sessions[2])
    sessions.append(open_session(site))
    assert [in_session(site, session).status for session in sessions] == [200, 404, 404, 200, 200]
    for session in sessions:
        close_session(site, session)


def test_HTTP_017_of_too_many_streams_the_longest_idle_one_ends(site: Site) -> None:
    kept = [streams(site) for _ in range(4)]
    assert read_to_end(kept[0]) == LAST_CHUNK  # in order
    kept.append(streams(site))
    assert read_to_end(kept[1]) == LAST_CHUNK
    for connection in kept:
        connection.close()


def test_a_session_in_which_a_call_waits_does_not_go_for_its_owner_s_next_one(sites: Callable[..., Site]) -> None:
    site = sites(RequestBounds(sessions=1))
    session = open_session(site)
    run = site.call("planner_run", {"goal": "wait", "route": "caller"}).json["result"]["structuredContent"]
    waits = {"run_ids": [run["run_id"]], "until": "done", "wait_s": 60}
    body = call_body("run_status", waits).replace(b'"_meta": {', b'"_meta": {"progressToken": 1, ')
    with site.connect() as waiting:
        named = (f"Mcp-Session-Id: {session}", f"Content-Length: {len(body)}")
        waiting.sendall(site.head(*named, without=LEGACY) + b"\r\n" + body)
        assert b" 200 " in waiting.recv(65536)
        open_session(site, expected=503)
        assert in_session(site, session).status == 200
        waiting.shutdown(socket.SHUT_WR)
    assert site.is_quiet()


def test_what_opens_no_session_ends_none(site: Site) -> None:
    sessions = [open_session(site) for _ in range(3)]
    ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}).encode()
    assert site.post(ping, without=LEGACY).status == 400
    assert site.post(json.dumps(HELLO).encode()).status == 400  # as a modern client would not
    broken = json.dumps({**HELLO, "params": {}}).encode()
    site.post(broken, "Accept: text/html", without=(*LEGACY, "Accept"))
    assert [in_session(site, session).status for session in sessions[1:]] == [200] * 2
    for session in sessions:
        close_session(site, session)


def time_passes(site: Site, seconds: float) -> None:
    """Another client is served meanwhile, and waits for what does not come."""
    site.call("planner_run", {"goal": "wait for me", "route": "caller"})
    site.call("run_status", {"until": "done", "wait_s": seconds})


def test_a_session_that_nobody_uses_is_forgotten(site: Site) -> None:
    session = open_session(site)
    assert in_session(site, session).status == 200
    time_passes(site, 1.5)
    assert in_session(site, session).status == 404


@pytest.mark.parametrize("guess", ["x", "0" * 32, "../../etc/passwd", "ab-cd-ef", "9" * 4000])
def test_HTTP_019_a_guessed_session_is_none(site: Site, guess: str) -> None:
    assert in_session(site, guess).status == 404
    posted = json.dumps(HELLO).encode()
    assert site.post(posted, path=f"/messages/?session_id={guess}").status in (400, 404)


def test_HTTP_030_a_client_that_leaves_in_the_middle_costs_nothing(site: Site) -> None:
    site.still_answers()
    before = site.descriptors()
    body = call_body("run_status", {"until": "done", "wait_s": 5})
    bodies = [call_body("run_status", {}), body, body[:40]]
    for number in range(18):  # fewer than there is room for: more could be told 503
        sent = bodies[number % 3]
        head = site.head("MCP-Method: tools/call", "MCP-Name: run_status", f"Content-Length: {max(len(sent), 60)}")
        with site.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(head + b"\r\n" + sent)
    wait_until(site.still_answers, SECONDS)  # each that left holds a place until that is noticed
    wait_until(lambda: site.descriptors() <= before + 1, SECONDS)  # the connection just used may still close
    assert site.still_answers()


STREAMS = {
    "a legacy session's stream": ("GET", "/mcp"),
    "an sse stream": ("GET", "/sse"),
    "a call that waits": ("POST", "/mcp"),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_server_that_is_told_to_end_does_so_in_time(sites, kind: str) -> None:
    site = sites()
    connection = held_open(site, kind)
    began = time.monotonic()
    site.server.send_signal(signal.SIGTERM)
    assert site.server.wait(SECONDS) == 0
    assert time.monotonic() - began < 3
    read_to_end(connection)
    connection.close()
    site.hearing.join(SECONDS)
    assert site.is_quiet()


def held_open(site: Site, kind: str) -> socket.socket:
    """A connection whose answer has begun and does not end."""
    connection = site.connect()
    method, path = STREAMS[kind]
    if method == "GET":
        more = (f"Mcp-Session-Id: {open_session(site)}",) if path == "/mcp" else ()
        connection.sendall(site.head(*more, method=method, path=path, without=LEGACY) + b"\r\n")
    else:
        run = site.call("planner_run", {"goal": "wait", "route": "caller"}).json["result"]
        waits = {"run_ids": [run["structuredContent"]["run_id"]], "until": "done", "wait_s": 60}
        body = call_body("run_status", waits).replace(b'"_meta": {', b'"_meta": {"progressToken": 1, ')
        names = ("MCP-Method: tools/call", "MCP-Name: run_status")
        connection.sendall(site.head(*names, f"Content-Length: {len(body)}") + b"\r\n" + body)
    assert b" 200 " in connection.recv(65536)
    return connection


def test_a_second_signal_ends_it_at_once(sites) -> None:
    site = sites(RequestBounds(shutdown_s=30))
    connection = site.connect()
    connection.sendall(site.head("Content-Length: 100") + b'\r\n{"jsonrpc"')  # the rest does not come
    assert site.still_answers()
    site.server.send_signal(signal.SIGTERM)
    refused = False
    for _ in range(10_000):  # it listens no more: the first was heard
        try:
            site.connect().close()
        except ConnectionResetError:  # in the moment in which it stopped to listen
            continue
        except ConnectionRefusedError:
            refused = True
            break
    assert refused
    site.server.send_signal(signal.SIGTERM)
    assert site.server.wait(SECONDS) == -signal.SIGTERM
    connection.close()
