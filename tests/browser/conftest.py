"""A browser for the session, and for each test a context of its own whose errors fail it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.app import Place

from tests.browser.chromium import PATIENCE_MS, open_browser, read_axe, watch_errors
from tests.browser.served_page import ServedPage, guide_in, serve_page, start_run
from tests.foreign.environs import Missing

EXPECTED = (
    "Failed to load resource",
    "net::ERR_",
)  # a refusal or a server that is gone is written by the browser itself


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.join(Path(__file__).parent, "")
    for item in items:  # all tests that there are
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest) -> Path:
    named = os.environ.get("KAIROS_FOREIGN_CACHE")
    folder = Path(named).absolute() if named else request.config.cache.mkdir("kairos-foreign")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browser(cache: Path) -> Iterator[Any]:
    try:
        with open_browser(cache) as opened:
            yield opened
    except Missing as missing:
        pytest.fail(f"this machine lacks {missing}, so nothing was tried in a browser")


@pytest.fixture(scope="session")
def axe(cache: Path) -> str:
    try:
        return read_axe(cache)
    except Missing as missing:
        pytest.fail(f"this machine lacks {missing}, so nothing was looked at by axe-core")


@pytest.fixture
def new_context(browser: Any) -> Iterator[Callable[..., Any]]:
    """Make contexts, which share no cookies; what their pages write as errors fails the test."""
    contexts, errors = [], []

    def make(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        errors.append(watch_errors(context))
        return context

    yield make
    for context in contexts:
        context.close()
    assert [text for found in errors for text in found if not text.startswith(EXPECTED)] == []


@pytest.fixture
def site(place: Place) -> Place:
    """A place whose guide has a link that leads nowhere."""
    guide_in(place)
    return place


@pytest.fixture
def move(site: Place) -> Iterator[Callable[..., Any]]:
    """Start runs in processes of their own, which end with the test at the latest."""
    started: list[Any] = []

    def begin(*arguments: Any, **variables: str) -> Any:
        started.append(start_run(site, *arguments, **variables))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(10)


@pytest.fixture
def served(site: Place) -> Iterator[ServedPage]:
    with serve_page(site) as page:
        yield page


@pytest.fixture
def enter(new_context: Callable[..., Any], served: ServedPage) -> Callable[..., Any]:
    """Open the page in a context of its own, and go to an address of it."""

    def open_page(address: str = "#/runs", **options: Any) -> Any:
        page = new_context(**options).new_page()
        page.goto(served.link)
        page.wait_for_selector("nav")
        if address != "#/runs":
            page.goto(served.address + address)
        return page

    return open_page
