"""`kairos-mcp flow RUN`: what the calls of a run that has ended would be asked about."""

from __future__ import annotations

import json

from support.app import Place, open_checked_app, reads, says
from support.commands import command
from support.network import Peer

from flow.test_leaving import FETCH, INJECTED, calls, server, start
from kairos_mcp.settings.table_values import FlowSetting


async def test_a_run_of_the_past_is_judged_by_the_settings_of_now(place: Place, web: Peer) -> None:
    page, leak = web.url("/howto"), web.url("/c?q=ACME+pays+1.2M")
    lines = (calls("web__fetch", url=page), reads("customers.md"), calls("web__fetch", url=leak), says("done"))
    fetch = server(place, FETCH, {"fetch": INJECTED.format(port=web.port)})
    async with open_checked_app(place.settings(*lines, servers=(fetch,), flow=FlowSetting("off"))) as app:
        run_id = (await start(app, f"Sum up {page}")).run_id
    assert [each.target for each in web.heard] == ["/howto", "/c?q=ACME+pays+1.2M"]
    environ = {"KAIROS_HOME": str(place.home), "PATH": "/usr/bin:/bin"}
    said = command("flow", run_id, "--json", folder=place.workspace, environ=environ)
    found = json.loads(said.out)["calls"]
    assert [(each["path"], [one["rule"] for one in each["findings"]]) for each in found] == [
        ("round-1/call-1", []),
        ("round-3/call-1", ["leaves"]),
    ]
    assert found[1]["findings"][0]["row"] == "round-2/call-1"
    assert [each.target for each in web.heard] == ["/howto", "/c?q=ACME+pays+1.2M"]
    text = command("flow", run_id, folder=place.workspace, environ=environ)
    assert text.out.splitlines()[-1].startswith("1 of 2 calls ")
