"""A configured HTTP tool in a whole run: what the server saw, what a model read, what lies in the state folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import Place, open_checked_app, place_in, rests, start_run
from support.network import Peer, json_text, rules

from kairos_mcp.settings.http_tool_table import parse_http_tool

KEY = "q7Zp-planted-0K3x9"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


async def test_a_run_uses_an_http_tool_and_its_secret_is_in_no_file(place: Place, web: Peer, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    web.will(json_text(f'{{"pet": "Rex", "you": "{KEY}"}}'))
    tool = parse_http_tool(
        {
            "name": "pet",
            "description": "A pet by its id.",
            "url": web.url("/pets/{id}"),
            "effect": "read",
            "headers": {"Authorization": f"Bearer ${{file:{key}}}"},
            "parameters": [{"name": "id", "in": "path", "schema": {"type": "integer"}}],
        }
    )
    lines = (
        {"tool_calls": [{"name": "pet", "arguments": {"id": 7}}, {"name": "pet", "arguments": {"id": "../x"}}]},
        {"content": "done", "finish": "stop"},
    )
    private = tuple(rules(f"127.0.0.1:{web.port}"))
    async with open_checked_app(place.settings(*lines, http_tools=(tool,), private_hosts=private)) as app:
        run_id = await start_run(app)
        report = await rests(app, run_id)
        assert (report.status, report.summary) == ("completed", "done")
        assert [call["ok"] for call in report.calls] == [True, False]
    (heard,) = web.heard
    assert (heard.target, heard.header("authorization")) == ("/pets/7", f"Bearer {KEY}")
    stored = b"".join(file.read_bytes() for file in place.home.rglob("*") if file.is_file())
    assert b"Rex" in stored
    assert KEY.encode() not in stored


async def test_a_run_reads_a_listed_host_at_once_and_a_person_is_asked_about_the_rest(place: Place, web: Peer) -> None:
    listed = tuple(rules(f"127.0.0.1:{web.port}"))
    lines = (
        {"tool_calls": [{"name": "http_fetch", "arguments": {"url": web.url("/read")}}]},
        {"tool_calls": [{"name": "http_fetch", "arguments": {"url": "http://10.0.0.1/"}}]},
        {
            "tool_calls": [
                {"name": "http_fetch", "arguments": {"url": web.url("/write"), "method": "POST", "body": "x"}}
            ]
        },
        {"content": "done", "finish": "stop"},
    )
    settings = place.settings(*lines, http_fetch=True, http_hosts=listed, private_hosts=listed)
    async with open_checked_app(settings) as app:
        run_id = await start_run(app, tools=("http_fetch",))
        report = await rests(app, run_id)
        assert [(call["ok"], call["name"]) for call in report.calls][:2] == [
            (True, "http_fetch"),
            (False, "http_fetch"),
        ]
        (waiting,) = report.waiting
        assert (report.status, waiting["kind"]) == ("input_required", "approval")
        assert f"POST {web.url('/write')}" in waiting["preview"]
    assert [(each.method, each.target) for each in web.heard] == [("GET", "/read")]
