"""Sites to talk to: one that asks for a token, shared by the tests of a file, and others made to measure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http_server import WAYS, Site, tokens_of

from kairos_mcp.server.http_bounds import RequestBounds


@pytest.fixture(scope="module")
def token_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """On loopback, with a token; it waits a little for what a client owes it."""
    place = tmp_path_factory.mktemp("guarded")
    site = Site.start(place, RequestBounds(header_s=2.0), token=tokens_of(place).add("alice"))
    yield site
    site.stop()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Starts a site in this test's place; a second one on the same state folder as well."""
    started: list[Site] = []

    def start(bounds: RequestBounds | None = None, token: str | None = None, **listening: Any) -> Site:
        started.append(Site.start(tmp_path / "place", bounds, token, **listening))
        return started[-1]

    yield start
    for site in started:
        site.stop()


@pytest.fixture
def write_script(tmp_path: Path) -> Callable[..., None]:
    """Give a function that writes a script of its lines into this test's place."""

    def script(*lines: dict[str, Any]) -> None:
        (tmp_path / "place").mkdir(exist_ok=True)
        (tmp_path / "place" / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    return script


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)
