"""Servers that others wrote, from npm, in their sandbox: listed, called, killed, and used by whole runs."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, meet_servers, place_in, rests, says
from support.downstream import DownstreamServers, call_server, names

from kairos_mcp.app.app import App
from kairos_mcp.cli.tools import import_tools
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Flags
from kairos_mcp.settings.table_values import FlowSetting, GateRule, ServerSetting
from kairos_mcp.tools.mcp_servers import BackgroundLoop, McpServerSource
from tests.foreign.environs import Missing, NodeEnv, make_environment

pytestmark = pytest.mark.foreign

PACKAGES = {
    "files": "@modelcontextprotocol/server-filesystem@2026.8.31",
    "memory": "@modelcontextprotocol/server-memory@2026.8.31",
    "every": "@modelcontextprotocol/server-everything@2026.8.31",
}
READS = (
    ("read_*", "read"),
    ("list_*", "read"),
    ("get_*", "read"),
    ("search_*", "read"),
    ("open_nodes", "read"),
    ("get-*", "read"),
)


@pytest.fixture(scope="session")
def npm_folder(request: pytest.FixtureRequest) -> Path:
    named = os.environ.get("KAIROS_FOREIGN_CACHE")
    cache = Path(named).absolute() if named else request.config.cache.mkdir("kairos-foreign")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        return make_environment(NodeEnv("servers", tuple(PACKAGES.values())), cache)
    except Missing as missing:
        pytest.skip(f"this machine lacks {missing}")


def command(installed: Path, name: str, *arguments: str) -> tuple[str, ...]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("this machine lacks node")
    package = installed / "node_modules" / PACKAGES[name].rpartition("@")[0]
    manifest = json.loads((package / "package.json").read_text())
    (script,) = manifest["bin"].values() if isinstance(manifest["bin"], dict) else (manifest["bin"],)
    return (node, str(package / script), *arguments)


def setting(installed: Path, name: str, *arguments: str, **more: Any) -> ServerSetting:
    return ServerSetting(name, command(installed, name, *arguments), effects=READS, **more)


def ready(downstream: DownstreamServers, installed: Path, name: str, *arguments: str, **more: Any) -> McpServerSource:
    server = downstream.server(
        name, command(installed, name, *arguments), **{"sandbox": True, "effects": READS, **more}
    )
    server.wait_ready(time.monotonic() + 30)
    assert server.tools(), (server.notes(), server.stderr())
    return server


def test_the_filesystem_server_reads_and_writes_its_workspace_and_its_own_words_do_not_lower_it(
    downstream: DownstreamServers, npm_folder: Path
) -> None:
    server = ready(downstream, npm_folder, "files", "${workspace}")
    (downstream.workspace / "a.txt").write_text("alpha")
    assert "alpha" in call_server(server, "read_text_file", path=str(downstream.workspace / "a.txt")).content
    written = call_server(server, "write_file", path=str(downstream.workspace / "b.txt"), content="beta")
    assert not written.is_error, written.content
    assert (downstream.workspace / "b.txt").read_text() == "beta"
    refused = call_server(server, "read_text_file", path="/etc/passwd")
    assert refused.is_error
    assert "root:" not in refused.content
    effects = {tool.spec.name: tool.spec.effect for tool in server.tools()}
    assert effects["files__read_text_file"] == "read"
    assert effects["files__write_file"] == "irreversible"
    assert all(tool.schema.problems({}) is not None for tool in server.tools())


def test_the_memory_server_keeps_its_graph_over_its_death(downstream: DownstreamServers, npm_folder: Path) -> None:
    env = (("MEMORY_FILE_PATH", "${workspace}/memory.jsonl"),)
    server = ready(downstream, npm_folder, "memory", env=env)
    entity = {"name": "Kairos", "entityType": "program", "observations": ["runs loops"]}
    assert not call_server(server, "create_entities", entities=[entity]).is_error
    downstream.loop.close()
    downstream.loop = BackgroundLoop()
    try:
        again = ready(downstream, npm_folder, "memory", env=env)
        assert "runs loops" in call_server(again, "search_nodes", query="Kairos").content
    finally:
        downstream.loop.close()


def test_the_everything_server_is_used_for_what_it_has_and_refused_what_it_wants(
    downstream: DownstreamServers, npm_folder: Path
) -> None:
    server = ready(downstream, npm_folder, "every", "stdio")
    assert call_server(server, "echo", message="hello").content == "Echo: hello"
    image = call_server(server, "get-tiny-image").content
    assert "image/png" in image
    assert len(image) < 1_000
    structured = call_server(server, "get-structured-content", location="New York")
    assert structured.data["conditions"]
    # It offers these only to clients that declare the ability to grant them, and none is declared.
    asking = ("trigger-sampling-request", "trigger-elicitation-request", "get-roots-list")
    assert [tool for tool in asking if f"every__{tool}" in names(server)] == []
    assert call_server(server, "get-env").content.count("KAIROS") == 0


@pytest.fixture
def pets() -> Iterator[http.server.ThreadingHTTPServer]:
    """A local service that answers with the path that it was asked for."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"pet": self.path}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def pets_document(port: int) -> dict[str, Any]:
    one = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.0.0",
        "info": {"title": "pets", "version": "1"},
        "servers": [{"url": f"http://127.0.0.1:{port}"}],
        "paths": {"/pets/{id}": {"get": {"operationId": "getPet", "summary": "One pet.", "parameters": [one]}}},
    }


async def test_a_run_uses_three_servers_of_others_and_a_tool_from_an_openapi_document(
    tmp_path: Path, npm_folder: Path, pets: http.server.ThreadingHTTPServer
) -> None:
    place = place_in(tmp_path / "place")
    servers = (
        setting(npm_folder, "files", "${workspace}"),
        setting(npm_folder, "memory", env=(("MEMORY_FILE_PATH", "${workspace}/memory.jsonl"),)),
        setting(npm_folder, "every", "stdio"),
    )
    entity = {"name": "alpha", "entityType": "word", "observations": ["stands in a.txt"]}
    document = place.workspace / "pets.json"
    document.write_text(json.dumps(pets_document(pets.server_address[1])))
    flags = Flags(str(place.home), (), None)
    written = import_tools(
        str(document), openapi=True, operation=["getPet"], reads=True, write=True, as_json=True, flags=flags
    )
    assert written == 0
    host_of_pets = f"127.0.0.1:{pets.server_address[1]}"
    file = place.home / "kairos.toml"
    file.write_text(f'private_hosts = ["{host_of_pets}"]\n{file.read_text()}')
    calls = [
        ("getPet", {"id": "7"}),
        ("files__read_text_file", {"path": str(place.workspace / "a.txt")}),
        ("every__get-sum", {"a": 2, "b": 3}),
        ("memory__create_entities", {"entities": [entity]}),
        ("memory__read_graph", {}),
    ]
    lines = [{"content": "on", "tool_calls": [{"name": name, "arguments": given}]} for name, given in calls]
    rules = (GateRule("memory__create_entities", "allow"),)
    # What the service answers is from outside, and every later call of a server would take it along.
    settings = place.settings(*lines, says("done"), servers=servers, gate=rules, flow=FlowSetting("off"))
    async with App.open(settings, via="test") as app:
        globs = ("files__*", "memory__*", "every__*", "getPet")
        await meet_servers(app)
        request = PlannerRequest("use them", tools=globs, limits=Limits(rounds=6))
        report = await rests(app, (await app.runs.start(request, ME)).run_id)
    rows = place.rows(
        "select body from answer join step on step.id = answer.step where step.kind = 'call' order by step.id"
    )
    found = [json.loads(body) for (body,) in rows]
    assert report.status == "completed"
    assert [result["is_error"] for result in found] == [False] * 5, found
    assert '{"pet": "/pets/7"}' in found[0]["content"]
    assert "alpha" in found[1]["content"]
    assert "5" in found[2]["content"]
    assert "stands in a.txt" in found[4]["content"]
