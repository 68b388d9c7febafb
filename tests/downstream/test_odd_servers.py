"""Servers that deviate from the protocol: one bad definition, page, reply or field costs itself alone, and is named."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from behaviours import Behaviour, every_behaviour
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from odd_server import answer_line
from support.downstream import WITHIN_S, DownstreamServers, call_server, names

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.tools.mcp_servers import McpServerSource
from kairos_mcp.tools.mcp_servers.child import ChildStart
from kairos_mcp.tools.mcp_servers.client import ServerClient
from kairos_mcp.tools.mcp_servers.connection import ServerConnection
from kairos_mcp.tools.mcp_servers.definition import ServerListing, read_listing
from kairos_mcp.tools.mcp_servers.flood_guard import find_last_line
from kairos_mcp.tools.mcp_servers.message_repair import UnreadableMessage
from kairos_mcp.tools.mcp_servers.tool_results import convert_answer

READS = ServerSetting("x", effects=(("*", "read"),))
BEHAVIOURS = every_behaviour()
PROCESS = Path(__file__).with_name("odd_server.py")
NAMED = {
    "a result in utf-16",
    "a number of 5,000 digits",
    "the first half of an emoji",
    "error {'code': -32000, 'message': 'lost'}",
    "cursors in a circle",
    "over several lines",
}
REAL = [each for number, each in enumerate(BEHAVIOURS) if number % 24 == 0 or each.name in NAMED]  # as processes


class MemoryConnection(ServerConnection):
    """A connection whose server answers in this process, line by line."""

    def __init__(self, odd: dict[str, Any]) -> None:
        super().__init__(ChildStart((), {}, None), legacy=False)
        self._odd = odd

    @asynccontextmanager
    async def _open_transport(self) -> AsyncIterator[Any]:  # type: ignore[override]
        incoming_send, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](100)
        outgoing, outgoing_receive = anyio.create_memory_object_stream[SessionMessage](0)

        async def answer() -> None:
            async for item in outgoing_receive:
                for line in answer_line(self._odd, item.message.model_dump_json(by_alias=True, exclude_unset=True)):
                    await self._pass_on(line, incoming_send)

        answering = asyncio.create_task(answer())
        try:
            yield incoming, outgoing
        finally:
            answering.cancel()
            for stream in (incoming_send, incoming, outgoing, outgoing_receive):
                stream.close()

    async def _pass_on(self, line: bytes, incoming: Any) -> None:
        try:
            messages = self.repair.read_messages(line)
        except UnreadableMessage:
            return
        for message in messages:
            if self.watch.passes_on(message):
                await incoming.send(SessionMessage(message))


async def _meet(connection: ServerConnection) -> tuple[ServerListing, ToolResult | None]:
    """Connect, list and call; return what is listed and the result of `echo`, if it is there."""
    listed = await connection.list_tools()
    listing = read_listing("x", listed.tools, ("*",), problem=listed.problem, dropped=listed.dropped)
    if "echo" not in listing.definitions:
        return listing, None
    try:
        return listing, convert_answer(await connection.call_tool("echo", {"text": "x"}, lambda: None)).result
    except MCPError as error:
        return listing, ToolResult(f"{error.code} {error.message}", is_error=True)


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
async def test_a_deviation_costs_itself_alone(behaviour: Behaviour) -> None:
    connection = MemoryConnection(behaviour.odd)
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(connection.serve(opened))
    failure: BaseException | None = None
    try:
        async with asyncio.timeout(5):
            await opened
            listing, result = await _meet(connection)
    except (ConnectionError, MCPError) as error:
        failure = error
    finally:
        connection.close()
        await asyncio.wait([serving], timeout=5)
    if behaviour.failure is not None:
        client = ServerClient("x", ("*",), lambda: connection.address, lambda _: None)
        assert failure is not None
        assert behaviour.failure in client.describe_end(connection, str(failure), is_start=True)
        return
    assert failure is None
    assert sorted(listing.definitions) == list(behaviour.offered)
    notes = " ".join((*listing.notes, *connection.repair.repairs))
    assert all(word in notes for word in behaviour.noted), notes
    for name, effect in behaviour.effects.items():
        assert listing.definitions[name].build_spec(READS, "x@1").effect == effect
    if result is not None:
        assert (behaviour.result in result.content, result.is_error) == (True, behaviour.is_error), result


def test_there_are_many_behaviours() -> None:
    assert len(BEHAVIOURS) >= 150
    assert len({behaviour.name for behaviour in BEHAVIOURS}) == len(BEHAVIOURS)


@pytest.mark.parametrize("behaviour", REAL, ids=lambda behaviour: behaviour.name)
def test_a_process_that_deviates_is_used_for_what_is_right(downstream: DownstreamServers, behaviour: Behaviour) -> None:
    server = _start_process(downstream, behaviour.odd)
    if behaviour.failure is not None:
        assert names(server) == []
        assert behaviour.failure in " ".join(server.notes())
        return
    assert names(server) == [f"x__{name}" for name in behaviour.offered]
    if "echo" in behaviour.offered:
        result = call_server(server, "echo", text="x")
        assert (behaviour.result in result.content, result.is_error) == (True, behaviour.is_error)


@pytest.mark.parametrize("sandbox", [True, False])
def test_a_server_that_closes_its_output_and_lives_on_ends_its_call_at_once(
    downstream: DownstreamServers, sandbox: bool
) -> None:
    server = downstream.ready_peer(sandbox=sandbox, timeout_s=600, effects=(("*", "read"),))
    failed = call_server(server, "close", seconds=30)
    assert failed.code == "unreachable"
    assert "it ended its side of the connection" in failed.content
    assert call_server(server, "echo", text="after").content == "after"


PING = json.dumps({"jsonrpc": "2.0", "id": "theirs", "method": "ping"})
WRITES: list[tuple[str, dict[str, Any]]] = [
    ("without a line end at last", {"exits_after": "tools/call"}),
    ("without line ends before its own requests", {"before": [PING], "between": ""}),
    ("a brace that begins nothing", {"banner": ["{"]}),
    ("frames with a line end", {"before": ["Content-Length: 85\r", "\r"]}),
]


@pytest.mark.parametrize("odd", [row[1] for row in WRITES], ids=[row[0] for row in WRITES])
def test_a_process_is_understood_however_it_writes(downstream: DownstreamServers, odd: dict[str, Any]) -> None:
    server = _start_process(downstream, odd)
    assert call_server(server, "echo", text="x").content == "fine"


def test_a_server_that_dies_of_a_first_request_that_it_does_not_know_is_met_all_the_same(
    downstream: DownstreamServers,
) -> None:
    server = _start_process(downstream, {"expects": "initialize"})
    assert call_server(server, "echo", text="x").content == "fine"


FRAMES = ["    at Module._compile (node:internal:1781:14)", "    at node:internal/main:36:49"]
STDERR: list[tuple[str, list[str], str]] = [
    ("a line", ["starting", "no key is set"], "no key is set"),
    ("of Python", ["Traceback (most recent call last):", '  File "x.py"', "KeyError: 'KEY'"], "KeyError: 'KEY'"),
    ("of Node", ["/x.js:1", "throw e", "^", "", "Error: no key", *FRAMES, "", "Node.js v22.1.0"], "Error: no key"),
    ("with what it holds", ["Error [ERR_X]: no key", *FRAMES[:1], FRAMES[1] + " {", "  code: 'ERR_X',",
                            "  requireStack: [", "    '/x.js'", "  ]", "}"], "Error [ERR_X]: no key"),
    ("of before", ["Error: retried", *FRAMES, "no key is set"], "no key is set"),
    ("of before, in one word", ["Error: retried", *FRAMES, "fatal: nokey"], "fatal: nokey"),
    ("frames alone", FRAMES, FRAMES[1].strip()),
    ("a version alone", ["Node.js v22.1.0"], ""),
    ("nothing", [], ""),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), [row[1:] for row in STDERR], ids=[row[0] for row in STDERR])
def test_the_line_of_stderr_that_is_shown_says_what_is_wrong(lines: list[str], expected: str) -> None:
    assert find_last_line("\n".join(lines)) == expected


def _start_process(downstream: DownstreamServers, odd: dict[str, Any]) -> McpServerSource:
    file = downstream.root / "behaviour.json"
    file.write_text(json.dumps(odd))
    server = downstream.server("x", (sys.executable, str(PROCESS), str(file)))
    server.wait_ready(time.monotonic() + WITHIN_S)
    return server


OVER_HTTP = [
    each
    for each in BEHAVIOURS
    if each.name
    in {
        "the first half of an emoji",
        "a whole emoji",
        "half in a key",
        "no jsonrpc",
        "an array with more",
        "error null",
        "result 'plain words'",
        "a number of 5,000 digits",
        "a result in utf-16",
        "second page fails",
        "error {'code': -32000, 'message': 'lost'}",
    }
]


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("behaviour", OVER_HTTP, ids=lambda behaviour: behaviour.name)
def test_over_http_a_server_that_deviates_is_used_for_what_is_right(
    downstream: DownstreamServers, behaviour: Behaviour, kind: str
) -> None:
    with _serve_http(behaviour.odd, kind) as url:
        server = downstream.server("x", url=url, sandbox=True)
        server.wait_ready(time.monotonic() + WITHIN_S)
        assert names(server) == [f"x__{name}" for name in behaviour.offered], server.notes()
        result = call_server(server, "echo", text="x")
    assert (behaviour.result in result.content, result.is_error) == (True, behaviour.is_error), result


@contextmanager
def _serve_http(odd: dict[str, Any], kind: str) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            line = self.rfile.read(int(self.headers["content-length"]))
            answers = list(answer_line(odd, line.decode()))
            events = b"".join(b"data: " + answer + b"\n\n" for answer in answers)
            body = events if kind == "text/event-stream" else b"".join(answers)
            self.send_response(200 if answers else 202)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send_response(405)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/mcp"
        http.shutdown()
