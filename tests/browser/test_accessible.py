"""For everybody: axe-core finds nothing on any page, in both themes; nothing is wider than a narrow screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.app import Place
from support.http_server import Site as HttpSite
from support.http_server import tokens_of

from tests.browser.gallery import Gallery, Site, fill
from tests.browser.served_page import ServedPage, serve_page

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
LOOK = """async (rules) => (await axe.run(document, { runOnly: rules })).violations
  .map(({ id, nodes }) => [id, nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`)])"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Gallery]:
    place = Site(tmp_path_factory.mktemp("gallery") / "place")
    return place, fill(place)


@pytest.fixture(scope="module")
def shown(filled: tuple[Place, Gallery]) -> Iterator[ServedPage]:
    with serve_page(filled[0], **filled[1].environ) as page:
        yield page


@pytest.fixture
def pages(
    filled: tuple[Place, Gallery], shown: ServedPage, new_context: Callable[..., Any]
) -> Callable[..., Iterator[Any]]:
    """Open each page in turn, by its name; the link is used once a test."""

    def open_each(**options: Any) -> Iterator[Any]:
        page = new_context(**options).new_page()
        page.goto(shown.make_link())
        page.wait_for_selector("nav")
        for name, (address, selector) in filled[1].addresses.items():
            page.goto("about:blank")
            page.goto(shown.address + address)
            page.wait_for_selector(selector)
            page.wait_for_timeout(100)
            yield name, page

    return open_each


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(theme: str, axe: str, pages: Callable[..., Iterator[Any]]) -> None:
    found = {}
    for name, page in pages(color_scheme=theme, bypass_csp=True):
        page.add_style_tag(content=".group { content-visibility: visible !important }")
        page.evaluate(f"() => {{ {axe} }}")
        if violations := page.evaluate(LOOK, RULES):
            found[name] = violations
    assert found == {}, json.dumps(found, indent=1)


@pytest.mark.parametrize("width", [390, 768])
def test_nothing_is_wider_than_the_screen(width: int, pages: Callable[..., Iterator[Any]]) -> None:
    too_wide = {}
    for name, page in pages(viewport={"width": width, "height": 844}):
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            too_wide[name] = wide
    assert too_wide == {}


OPERATORS_VIEWS = {
    "runs": ("#/runs", "tbody tr"),
    "waits": ("#/waits", "main > *:nth-child(2)"),
    "budget": ("#/budget", "main > *:nth-child(2)"),
    "servers": ("#/servers", "main > *:nth-child(2)"),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_for_operators_has_no_fault_and_is_not_too_wide(
    theme: str, axe: str, filled: tuple[Place, Gallery], new_context: Callable[..., Any]
) -> None:
    root = filled[0].root
    token = tokens_of(root).add(f"olga-{theme}", scopes=("observe",))
    served = HttpSite.start(root, token=token)
    found, too_wide = {}, {}
    try:
        page = new_context(color_scheme=theme, bypass_csp=True, viewport={"width": 390, "height": 844}).new_page()
        page.goto(f"{served.url}/observe/")
        page.wait_for_selector("#token")

        def look(name: str) -> None:
            page.evaluate(f"() => {{ {axe} }}")
            if violations := page.evaluate(LOOK, RULES):
                found[name] = violations
            if (wide := page.evaluate("document.documentElement.scrollWidth")) > 390:
                too_wide[name] = wide

        look("sign in")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("nav")
        for name, (address, selector) in OPERATORS_VIEWS.items():
            page.goto(f"{served.url}/observe/{address}")
            page.wait_for_selector(f'nav a[aria-current="page"][href="{address}"]')
            page.wait_for_selector(selector)
            look(name)
        page.goto(f"{served.url}/observe/#/runs")
        page.wait_for_selector("tbody tr a")
        page.click("tbody tr a")
        page.wait_for_selector(".group")
        look("run")
    finally:
        served.stop()
    assert (found, too_wide) == ({}, {}), json.dumps([found, too_wide], indent=1)


def test_nothing_moves_for_those_who_want_it_so(pages: Callable[..., Iterator[Any]]) -> None:
    for _, page in pages(reduced_motion="reduce"):
        assert page.evaluate("document.getAnimations().length") == 0
