"""A key in the server's environment, handed to every tool in every text it takes, and to what was registered: whatever
is said, logged, traced, exported or written to the state folder, while the server lives and after: none has it."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import forked_program, postgres
from support.app import Place
from support.stdio_server import StdioClient
from test_planted import ENVIRON, FORMS, VALUE

from kairos_mcp.server.tools import TOOLS

PEER = Path(__file__).parent.parent / "downstream" / "peer.py"
NOT_SWEPT = {"run_continue", "run_control"}  # they need a run that waits: test_planted answers one with keys


@pytest.fixture
def echoing() -> Iterator[tuple[int, list[str]]]:
    """A service that says back the headers that it was sent; and which keys it was sent."""
    heard: list[str] = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["X-Api-Key"])
            body = json.dumps(dict(self.headers)).encode()
            self.send_response(200 if "fail" not in self.path else 500)
            self.send_header("X-Echo", self.headers["X-Api-Key"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1], heard
    server.shutdown()
    server.server_close()
    thread.join(10)


def write_config(place: Place, port: int) -> None:
    """A service and a server that are given the key by its name, and everything allowed."""
    place.home.mkdir(parents=True, exist_ok=True)
    place.home.joinpath("kairos.toml").write_text(
        f"""
private_hosts = ["127.0.0.1:{port}"]
[[gate]]
tools = "*"
verdict = "allow"
effect = "irreversible"
[[gate]]
tools = "*"
verdict = "allow"
[[http_tools]]
name = "echoed"
description = "Says back what it was sent."
url = "http://127.0.0.1:{port}/{{way}}"
effect = "read"
headers = {{ X-Api-Key = "env:CANARY_API_KEY" }}
parameters = [{{ name = "way", in = "path" }}]
[servers.x]
command = {json.dumps(sys.executable)}
args = [{json.dumps(str(PEER))}]
sandbox = false
env = {{ GIVEN = "env:CANARY_API_KEY" }}
"""
    )


def fill_schema(schema: dict[str, Any]) -> Any:
    """Make a value for a schema that holds the key wherever a text may stand."""
    match schema.get("type"):
        case "object":
            required = schema.get("required", [])
            return {
                name: fill_schema(inner)
                for name, inner in schema.get("properties", {}).items()
                if name in required or inner.get("type") == "string"
            } or {"api_key": VALUE}
        case "array":
            return [fill_schema(schema.get("items", {"type": "string"}))]
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return (schema.get("enum") or [f"it is {VALUE}"])[0]


def swept(client: StdioClient) -> Iterator[Any]:
    """Every tool of the interface, then every tool of the registry, with keys in their arguments; errors as well."""
    listed = client.ask("tools/list", {})["tools"]
    assert {tool["name"] for tool in listed} == {tool.name for tool in TOOLS}
    for tool in listed:
        yield client.ask("tools/call", {"name": tool["name"], "arguments": {VALUE: VALUE}})  # an unknown argument
        if tool["name"] not in NOT_SWEPT:
            given = fill_schema(tool["inputSchema"]) | (
                {"wait_s": 0} if "wait_s" in tool["inputSchema"]["properties"] else {}
            )
            yield client.ask("tools/call", {"name": tool["name"], "arguments": given})
    spec = {"kind": "http_tool", "name": "pet", "description": f"With {VALUE}.", "url": "https://pets.example/"}
    yield client.call("registry_register", spec=spec)
    for name in (
        "echoed",
        "x__echo",
        "x__env",
        "x__fail",
        "x__look",
        "read_file",
        "search_files",
        "run_command",
        "none",
    ):
        yield client.call(
            "registry_call", name=name, arguments={"text": VALUE, "path": VALUE, "pattern": VALUE}, wait_s=5
        )
    for name, given in (
        ("echoed", {"way": "ok"}),
        ("echoed", {"way": "fail"}),
        ("echoed", {"way": VALUE.replace("/", "-")}),
        ("x__env", {}),
        ("x__echo", {"text": VALUE}),
        ("x__die", {}),
        ("write_file", {"path": "made.txt", "content": f"{VALUE}\n"}),
        ("edit_file", {"path": "a.txt", "old_string": "alpha", "new_string": VALUE}),
        ("read_file", {"path": "made.txt"}),
        ("run_command", {"argv": ["env"]}),
        ("run_command", {"argv": ["sh", "-c", f"echo {VALUE}; echo {VALUE} >&2; exit 3"]}),
    ):
        yield client.call("registry_call", name=name, arguments=given, wait_s=20)
    for run in client.call("run_status", view="full")["runs"]:
        for view in ("events", "messages", "calls", "usage"):
            yield client.call("run_trace", run_id=run["run_id"], view=view, max_chars=100_000)


def test_a_key_given_to_every_tool_is_in_no_artefact(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, echoing: tuple[int, list[str]]
) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    port, heard = echoing
    write_config(place, port)
    place.script.write_text(json.dumps({"content": f"I was told {VALUE}", "finish": "stop"}) + "\n")
    log = tmp_path / "stderr"
    with log.open("wb") as stderr, StdioClient.start(place, stderr=stderr) as client:
        said = [json.dumps(each).encode() for each in swept(client)]
        kept = _list_kept(place)  # the log of writes too, as long as there is one
        client.server.stdin.close()
        client.ends()
    assert _find_key(kept) == []
    assert {name for name, _ in kept} >= ({"run", "answer"} if postgres.is_chosen() else {"kairos.db", "kairos.db-wal"})
    outputs = [done for words in COMMANDS for done in _command(place, *words)]
    (runs,) = [json.loads(out) for out, _ in [_command(place, "runs", "--json")]]
    listed = runs["runs"] if isinstance(runs, dict) else runs
    outputs += [done for run in listed[:40] for done in _command(place, "export", run["run_id"])]
    assert heard, "the service was given the key"
    assert set(heard) == {VALUE}
    assert (
        _find_key([*_list_kept(place), ("stderr", log.read_bytes()), *(("said", each) for each in (*said, *outputs))])
        == []
    )


COMMANDS = (
    ("runs",),
    ("doctor", "--json"),
    ("tools", "list", "--json"),
    ("tools", "show", "echoed"),
    ("tools", "call", "echoed", '{"way": "ok"}'),
    ("tools", "call", "x__env"),
    ("tools", "show", VALUE),
    ("status", "--json"),
)


def _list_kept(place: Place) -> list[tuple[str, bytes]]:
    """Each file of the state folder, and each table of a database."""
    files = [(file.name, file.read_bytes()) for file in place.home.rglob("*") if file.is_file()]
    if not postgres.is_chosen():
        return files
    tables = place.rows("select table_name from information_schema.tables where table_schema = current_schema()")
    return files + [(name, repr(place.rows(f"select * from {name}")).encode()) for (name,) in tables]


def _find_key(texts: list[tuple[str, bytes]]) -> list[tuple[str, str, bytes]]:
    return [
        (name, form, text[max(0, text.find(form.encode()) - 80) : text.find(form.encode())])
        for name, text in texts
        for form in FORMS
        if form.encode() in text
    ]


def _command(place: Place, *words: str) -> tuple[bytes, bytes]:
    environ = {**os.environ, "KAIROS_HOME": str(place.home), "KAIROS_WORKSPACE": str(place.workspace), "NO_COLOR": "1"}
    done = forked_program.run_program(words, env=environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.encode(), done.stderr.encode()
