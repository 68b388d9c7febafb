"""Servers that others wrote, from npm, in their sandbox: listed, called, killed, and used by whole runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from bench import Bench, called, names
from house import ME, place_in, rests, says

from kairos_mcp.configuration.settings import GateRule, ServerSetting
from kairos_mcp.host import Host
from kairos_mcp.spec import PlannerRequest
from kairos_mcp.tools.downstream import Backstage, Downstream
from tests.foreign.environs import Missing, NodeEnv, made

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
def installed(request: pytest.FixtureRequest) -> Path:
    named = os.environ.get("KAIROS_FOREIGN_CACHE")
    cache = Path(named).absolute() if named else request.config.cache.mkdir("kairos-foreign")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        return made(NodeEnv("servers", tuple(PACKAGES.values())), cache)
    except Missing as missing:
        pytest.skip(f"this machine lacks {missing}")


def command(installed: Path, name: str, *arguments: str) -> tuple[str, ...]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("this machine lacks node")
    package = installed / "node_modules" / PACKAGES[name].rpartition("@")[0]
    told = json.loads((package / "package.json").read_text())
    (script,) = told["bin"].values() if isinstance(told["bin"], dict) else (told["bin"],)
    return (node, str(package / script), *arguments)


def setting(installed: Path, name: str, *arguments: str, **more: Any) -> ServerSetting:
    return ServerSetting(name, command(installed, name, *arguments), effects=READS, **more)


def ready(bench: Bench, installed: Path, name: str, *arguments: str, **more: Any) -> Downstream:
    server = bench.server(name, command(installed, name, *arguments), **{"sandbox": True, "effects": READS, **more})
    server.ready(time.monotonic() + 30)
    assert server.tools(), (server.notes(), server.stderr())
    return server


def test_the_filesystem_server_reads_and_writes_its_workspace_and_its_own_words_do_not_lower_it(
    bench: Bench, installed: Path
) -> None:
    server = ready(bench, installed, "files", "${workspace}")
    (bench.workspace / "a.txt").write_text("alpha")
    assert "alpha" in called(server, "read_text_file", path=str(bench.workspace / "a.txt")).content
    written = called(server, "write_file", path=str(bench.workspace / "b.txt"), content="beta")
    assert not written.is_error, written.content
    assert (bench.workspace / "b.txt").read_text() == "beta"
    refused = called(server, "read_text_file", path="/etc/passwd")
    assert refused.is_error
    assert "root:" not in refused.content
    effects = {tool.spec.name: tool.spec.effect for tool in server.tools()}
    assert effects["files__read_text_file"] == "read"
    assert effects["files__write_file"] == "irreversible"
    assert all(tool.schema.problems({}) is not None for tool in server.tools())


def test_the_memory_server_keeps_its_graph_over_its_death(bench: Bench, installed: Path) -> None:
    env = (("MEMORY_FILE_PATH", "${workspace}/memory.jsonl"),)
    server = ready(bench, installed, "memory", env=env)
    entity = {"name": "Kairos", "entityType": "program", "observations": ["runs loops"]}
    assert not called(server, "create_entities", entities=[entity]).is_error
    bench.backstage.close()
    bench.backstage = Backstage()
    try:
        again = ready(bench, installed, "memory", env=env)
        assert "runs loops" in called(again, "search_nodes", query="Kairos").content
    finally:
        bench.backstage.close()


def test_the_everything_server_is_used_for_what_it_has_and_refused_what_it_wants(bench: Bench, installed: Path) -> None:
    server = ready(bench, installed, "every", "stdio")
    assert called(server, "echo", message="hello").content == "Echo: hello"
    image = called(server, "get-tiny-image").content
    assert "image/png" in image
    assert len(image) < 1_000
    structured = called(server, "get-structured-content", location="New York")
    assert structured.data["conditions"]
    # It offers these only to clients that declare the ability to grant them, and none is declared.
    asking = ("trigger-sampling-request", "trigger-elicitation-request", "get-roots-list")
    assert [wish for wish in asking if f"every__{wish}" in names(server)] == []
    assert called(server, "get-env").content.count("KAIROS") == 0


async def test_a_run_uses_three_servers_of_others(tmp_path: Path, installed: Path) -> None:
    place = place_in(tmp_path / "place")
    servers = (
        setting(installed, "files", "${workspace}"),
        setting(installed, "memory", env=(("MEMORY_FILE_PATH", "${workspace}/memory.jsonl"),)),
        setting(installed, "every", "stdio"),
    )
    entity = {"name": "alpha", "entityType": "word", "observations": ["stands in a.txt"]}
    calls = [
        ("files__read_text_file", {"path": str(place.workspace / "a.txt")}),
        ("every__get-sum", {"a": 2, "b": 3}),
        ("memory__create_entities", {"entities": [entity]}),
        ("memory__read_graph", {}),
    ]
    lines = [{"content": "on", "tool_calls": [{"name": name, "arguments": given}]} for name, given in calls]
    rules = (GateRule("memory__create_entities", "allow"),)
    settings = place.settings(*lines, says("done"), servers=servers, gate=rules)
    async with Host.open(settings, via="test") as host:
        registry = host._wiring.registry(host._wiring.workspace(None))
        globs = ("files__*", "memory__*", "every__*")
        await asyncio.to_thread(registry.ready, globs)
        report = await rests(host, (await host.start_planner(PlannerRequest("use them", tools=globs), ME)).run_id)
    rows = place.rows(
        "select body from answer join mark on mark.id = answer.mark where mark.kind = 'call' order by mark.id"
    )
    found = [json.loads(body) for (body,) in rows]
    assert report.status == "completed"
    assert [result["is_error"] for result in found] == [False] * 4, found
    assert "alpha" in found[0]["content"]
    assert "5" in found[1]["content"]
    assert "stands in a.txt" in found[3]["content"]
