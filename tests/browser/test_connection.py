"""The line of events: a server that goes and comes, many tabs, a tab that nobody sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.app import Place

from tests.browser.served_page import ServedPage, looks, run_until_rest, says, serve_page, wait_for_rows

TOOLS = ("read_file", "search_files")
HIDE = """(value) => {
  Object.defineProperty(document, "hidden", { value, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_line_that_broke_goes_on_where_it_was(
    site: Place, enter: Callable[..., Any], move: Callable[..., Any]
) -> None:
    move("Take long", [looks(n, delay_s=0.2) for n in range(1, 25)] + [says("Done.")], *TOOLS)
    ((run_id,),) = wait_for_rows(site, "select id from run")
    page = enter(f"#/runs/{run_id}")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "api/events" in request.url else None)
    page.wait_for_selector(".group:nth-child(3)")
    page.evaluate(HIDE, True)
    page.wait_for_timeout(300)  # what was on its way is drawn
    shown = page.locator(".group").count()
    page.wait_for_timeout(1_000)
    assert page.locator(".group").count() == shown  # a tab that nobody sees is told nothing
    page.evaluate(HIDE, False)
    page.wait_for_selector(".pill.completed")
    assert "after=" in asked[-1]
    assert page.locator(".group").count() == 25
    assert page.locator(".step").count() == 24 * 3 + 1


def test_a_server_that_comes_back_asks_for_a_new_link(site: Place, new_context: Callable[..., Any]) -> None:
    run_until_rest(site, "Look around", [says("Done.")])
    with serve_page(site) as first:
        page = new_context().new_page()
        page.goto(first.link)
        page.wait_for_selector(".runs li")
        first.kill()
        page.wait_for_selector(".line:not(.up)")
        assert page.locator(".runs li").count() == 1  # what was seen stays
    with serve_page(site, port=first.port) as second:
        page.wait_for_selector(".locked")
        page.goto(second.link)
        page.wait_for_selector(".line.up")
        assert page.locator(".runs li").count() == 1


def test_many_tabs_each_see_a_run_and_can_still_act(
    site: Place, served: ServedPage, enter: Callable[..., Any], move: Callable[..., Any]
) -> None:
    page = enter()
    tabs = [page]
    for _ in range(3):
        tab = page.context.new_page()
        tab.goto(served.address)
        tab.wait_for_selector("nav")
        tabs.append(tab)
    move("Take long", [looks(n, delay_s=0.2) for n in range(1, 40)] + [says("Done.")], *TOOLS)
    ((run_id,),) = wait_for_rows(site, "select id from run")
    for tab in tabs:
        tab.evaluate(f"location.hash = '#/runs/{run_id}'")
    for tab in tabs:
        tab.wait_for_selector(".group:nth-child(4)")
    tabs[-1].click("button:has-text('Cancel run')")
    tabs[-1].click("dialog .danger")
    for tab in tabs:
        tab.wait_for_selector(".pill.cancelled")
    ((outcome,),) = site.rows("select outcome from run")
    assert json.loads(outcome)["status"] == "cancelled"
