"""Probes: whether the process lives, and whether it can serve."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from support.http_server import SECONDS, Answer, Site, read_answer, tokens_of
from support.waiting import wait_until

from kairos_mcp.server.http_bounds import RequestBounds

OURS = "Host: 10.1.2.3"  # a prober knows no name of ours


def probe(site: Site, path: str, method: str = "GET", host: str = OURS) -> Answer:
    without = ("Host", "Authorization", "Content-Type", "Accept", "MCP-Protocol-Version")
    return site.says_to(site.head(host, "Connection: close", method=method, path=path, without=without) + b"\r\n")


def test_a_probe_needs_no_token_and_no_name_of_ours_and_is_told_nothing_else(token_site: Site) -> None:
    for path in ("/healthz", "/readyz"):
        answer = probe(token_site, path)
        assert (answer.status, answer.json, answer.headers["cache-control"]) == (200, {"status": "ok"}, "no-store")
        assert "server" not in answer.headers
        assert probe(token_site, path, "HEAD").status == 200
        assert probe(token_site, path, "POST").status == 405
    for path in ("/healthz/", "/healthz/x", "//readyz", "/mcp", "/"):
        assert probe(token_site, path).status == 421, path  # nothing else is exempt


def test_a_prober_does_not_use_up_anybody_s_rate(sites: Callable[..., Site], tmp_path: Path) -> None:
    site = sites(RequestBounds(calls_per_s=0.01, burst=2), token=tokens_of(tmp_path / "place").add("alice"))
    assert [probe(site, "/readyz").status for _ in range(5)] == [200] * 5
    assert site.still_answers()


@pytest.mark.state_file("it locks that file")
def test_a_server_whose_state_file_can_not_be_used_lives_and_is_not_ready(sites: Callable[..., Site]) -> None:
    site = sites()
    assert probe(site, "/readyz").status == 200
    other = apsw.Connection(str(site.home / "kairos.db"))
    other.execute("begin immediate")
    ends = time.monotonic() + SECONDS
    while (answer := probe(site, "/readyz")).status == 200:  # what was found holds for a moment
        assert time.monotonic() < ends
    assert (answer.status, answer.json) == (503, {"status": "unavailable"})
    assert probe(site, "/healthz").status == 200
    other.execute("rollback")
    other.close()
    while probe(site, "/readyz").status != 200:
        assert time.monotonic() < ends
    said = wait_until(lambda: text if "ready again" in (text := "".join(site.said)) else "", SECONDS)
    assert (said.count("not ready"), said.count("ready again")) == (1, 1)


@pytest.mark.state_file("it puts another file there")
def test_a_state_file_of_a_newer_version_makes_it_not_ready(sites: Callable[..., Site]) -> None:
    site = sites(no_auth=True)
    connection = apsw.Connection(str(site.home.parent / "newer.db"))
    connection.execute("pragma user_version = 9999")
    connection.close()
    site.home.mkdir(mode=0o700)
    (site.home.parent / "newer.db").rename(site.home / "kairos.db")
    assert [probe(site, path).status for path in ("/healthz", "/readyz")] == [200, 503]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_of_a_server_that_ends_is_not_answered_as_if_it_went_on(sites: Callable[..., Site], path: str) -> None:
    site = sites(RequestBounds(shutdown_s=5))
    with site.connect() as kept:
        kept.sendall(site.head(method="GET", path=path) + b"\r\n")
        assert read_answer(kept).status == 200
        site.server.send_signal(signal.SIGTERM)
        assert kept.recv(1024) == b""
    assert site.server.wait(SECONDS) == 0
