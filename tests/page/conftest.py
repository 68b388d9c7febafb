"""A place with a run that waits for an approval, and the page over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.app import Place, place_in
from support.http_server import Site
from support.page import Visitor, served_page
from support.page_runs import ask_to_write


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return place_in(tmp_path_factory.mktemp("page") / "place")


@pytest.fixture(scope="module")
def waiting_run(shared_place: Place) -> str:
    """A run that waits for an approval to write a file."""
    return asyncio.run(ask_to_write(shared_place))


@pytest.fixture(scope="module")
def visitor(shared_place: Place, waiting_run: str) -> Iterator[Visitor]:
    with served_page(shared_place.home, "--workspace", str(shared_place.workspace)) as found:
        yield found


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Callable[[], Visitor]]:
    """Serves MCP over HTTP in this test's place, and gives a browser that has entered the page beside it."""
    started: list[Site] = []

    def start() -> Visitor:
        site = Site.start(tmp_path / "beside")
        started.append(site)
        assert site.still_answers()  # a client has called: now there is a state folder
        return Visitor(f"{site.url}/ui/", site.home).enter()

    yield start
    for site in started:
        site.stop()
