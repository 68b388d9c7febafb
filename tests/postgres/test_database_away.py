"""A server over HTTP whose database goes away and comes back: it lives, says that it is not ready, lets a call wait for
the database, and goes on with its runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from support import postgres
from support.app import Place, place_in, reads, says
from support.http_server import Site
from support.replayed import differences_in_database
from support.waiting import wait_until

from kairos_mcp.core.outcomes import Outcome

pytestmark = [pytest.mark.postgres, pytest.mark.unreplayed]  # the database ends with the test
WITHIN_S = 30.0
LINES = (reads("a.txt", delay_s=1.0), reads("b.txt", delay_s=1.0), says("done", delay_s=1.0))


@pytest.fixture
def place(tmp_path: Path, own_server: Any, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv(postgres.CHOICE, own_server.get_uri())
    made = place_in(tmp_path / "place")
    made.settings(*LINES)
    return made


@pytest.fixture
def site(place: Place) -> Iterator[Site]:
    started = Site.start(place.root)
    yield started
    started.stop()


def status(site: Site, path: str) -> int:
    return httpx2.get(f"{site.url}{path}", timeout=WITHIN_S).status_code


def call(site: Site, name: str, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = site.call(name, arguments).json["result"]["structuredContent"]
    return found


def lengths_of_outages(site: Site) -> list[float]:
    """How long, in seconds, the log says that the store was away."""
    found = (re.search(r"can be used again, after ([0-9.]+) s, since \d{4}-", line) for line in site.said)
    return [float(each[1]) for each in found if each]


def test_a_server_whose_database_is_away_is_not_ready_and_goes_on_when_it_is_back(
    place: Place, site: Site, own_server: Any
) -> None:
    run_id = call(site, "planner_run", goal="look", wait_s=0)["run_id"]
    wait_until(lambda: place.rows("select 1 from step"), WITHIN_S)
    assert status(site, "/readyz") == 200
    with ThreadPoolExecutor(1) as beside:
        postgres.stop_server(own_server)
        went_away = time.monotonic()
        try:
            wait_until(lambda: status(site, "/readyz") == 503, WITHIN_S)
            assert status(site, "/healthz") == 200
            asked = beside.submit(call, site, "run_status", run_ids=[run_id], until="done", wait_s=20)
        finally:
            was_away_s = time.monotonic() - went_away
            postgres.start_again(own_server)
        wait_until(lambda: status(site, "/readyz") == 200, WITHIN_S)
        (report,) = asked.result(WITHIN_S)["runs"]
    wait_until(lambda: lengths_of_outages(site), WITHIN_S)
    assert was_away_s - 0.5 <= max(lengths_of_outages(site)) <= time.monotonic() - went_away + 0.5  # from its beginning
    if report["status"] != "completed":  # what it waited for may have ended with the database
        (report,) = call(site, "run_status", run_ids=[run_id], until="done", wait_s=20)["runs"]
    assert (report["status"], report["summary"]) == ("completed", "done")
    assert place.rows("select count(*) from step") == place.rows("select count(*) from answer") == [(5,)]
    assert place.store().find_damage(Outcome) == []
    assert differences_in_database(str(postgres.database_of(place.root))) == []


def test_a_server_that_begins_on_tables_of_another_version_lives_and_is_not_ready(place: Place) -> None:
    place.rows("update version set number = 9999")
    site = Site.start(place.root)
    why = "kairos_mcp.server.auth: the store can't be used"
    try:
        wait_until(lambda: any(why in line for line in site.said), WITHIN_S)  # before anybody asks
        assert [status(site, path) for path in ("/healthz", "/readyz")] == [200, 503]
        told = site.call("planner_run", {"goal": "look"}).json["error"]  # whose token it is can't be read either
        assert told["data"] == {"code": "store_unavailable"}
        assert site.call("planner_run", {"goal": "look"}, path="/sse").status == 503
    finally:
        site.stop()
    assert place.rows("select count(*) from owner") == [(0,)]


@pytest.mark.parametrize("way", ["modern http", "legacy http"])
async def test_a_clients_session_outlives_what_keeps_the_store_from_being_read(
    place: Place, site: Site, way: str
) -> None:
    async with site.client(way) as client:
        await client.call_tool("run_status", {})
        place.rows("alter table token rename to hidden")
        for _ in range(2):
            with pytest.raises(MCPError, match="log says why") as told:
                await client.call_tool("run_status", {})
            assert told.value.error.data == {"code": "store_unavailable"}
        place.rows("alter table hidden rename to token")
        found = await client.call_tool("run_status", {})
        assert found.structured_content["runs"] == []
    wait_until(lambda: any("can be used again" in line for line in site.said), WITHIN_S)
    said = [line for line in site.said if "the store can" in line]
    assert [("can't be used" in line, "can be used again" in line) for line in said] == [(True, False), (False, True)]
