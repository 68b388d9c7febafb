"""The same view inside a conversation: live in a host's frame, decided on the page, completed in the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.app import Place

from tests.browser.chromium import wait_until
from tests.browser.mini_host import open_host
from tests.browser.served_page import EDITED, asks_to_edit, looks, says, serve_page

ERAS = {"2025-11-25": "legacy", "2026-07-28": "auto"}
LINES = [looks(n, delay_s=0.2) for n in range(1, 6)] + [asks_to_edit(), says("The guide leads to install.md now.")]
TOOLS = ["read_file", "search_files", "edit_file"]
GOAL = "Mend the link in the guide"
APPROVE = "[data-approve]:not([disabled])"


@pytest.fixture
def script(site: Place) -> dict[str, str]:
    site.script.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return {"KAIROS_SCRIPT": str(site.script), "KAIROS_ROUTE": "scripted"}


@pytest.mark.parametrize("era", ERAS)
def test_a_run_is_seen_in_the_conversation_and_decided_on_the_page(
    era: str, site: Place, script: dict[str, str], new_context: Callable[..., Any]
) -> None:
    with open_host(site, ERAS[era], **script) as host, serve_page(site) as served:
        result = host.open_app("planner_run", {"goal": GOAL, "tools": TOOLS, "limits": {"rounds": 9}, "wait_s": 0})
        run_id = result["structuredContent"]["run_id"]
        page = new_context().new_page()
        page.goto(host.address)
        app = page.frame_locator("iframe")
        app.locator(".group").nth(2).wait_for()
        assert app.locator("h1").inner_text() == GOAL
        app.locator(".diff .add").wait_for()
        assert app.locator("[data-approve], .decision").count() == 0  # it shows, and decides nothing
        assert app.locator(".group").count() == 3  # the newest ones
        assert app.locator("h1").evaluate("(element) => getComputedStyle(element).color") == "rgb(1, 2, 3)"
        app.locator("button:has-text('Larger')").click()
        app.locator(".group").nth(5).wait_for()
        app.locator(".elsewhere button").click()
        wait_until(page, "links.length === 1")
        (link,) = page.evaluate("links")
        assert link == f"{served.address}#/runs/{run_id}"

        person = page.context.new_page()
        person.goto(served.link)
        person.wait_for_selector("nav")
        person.goto(link)
        person.click("[data-approve]:not([disabled])")
        app.locator(".pill.completed").wait_for()
        assert "(install.md)" in (site.workspace / EDITED).read_text()
        wait_until(page, "contexts.length === 1")
        assert page.evaluate("contexts[0].content[0].text").startswith(f"Run {run_id} is completed.")
        assert set(page.evaluate("calls")) <= {"run_trace", "run_status"}
        page.close()


@pytest.mark.parametrize("era", ERAS)
def test_where_the_settings_trust_the_host_it_is_decided_in_the_conversation(
    era: str, site: Place, script: dict[str, str], new_context: Callable[..., Any]
) -> None:
    with open_host(site, ERAS[era], **script, KAIROS_APPROVALS="host") as host:
        host.open_app("planner_run", {"goal": GOAL, "tools": TOOLS, "limits": {"rounds": 9}, "wait_s": 0})
        page = new_context().new_page()
        page.goto(host.address)
        app = page.frame_locator("iframe")
        app.locator(".decision").wait_for()
        page.evaluate("declines.push('run_continue')")
        app.locator(APPROVE).click()
        app.locator(".failure:has-text('The user declined this call.')").wait_for()
        assert site.rows("select verdict from approval") == [(None,)]
        page.evaluate("declines.pop()")
        app.locator(".decision input").fill("As it should be.")
        app.locator(APPROVE).click()
        app.locator(".pill.completed").wait_for()
        assert "(install.md)" in (site.workspace / EDITED).read_text()
        assert site.rows("select verdict, through, feedback from approval") == [("approve", "mcp", "As it should be.")]
        assert page.evaluate("calls").count("run_continue") == 2
        assert page.evaluate("links") == []
        page.close()


def test_where_no_page_lives_the_command_is_named(
    site: Place, script: dict[str, str], new_context: Callable[..., Any]
) -> None:
    with open_host(site, "auto", **script) as host:
        host.open_app("planner_run", {"goal": GOAL, "tools": TOOLS, "limits": {"rounds": 9}, "wait_s": 0}, theme="dark")
        page = new_context().new_page()
        page.goto(host.address)
        app = page.frame_locator("iframe")
        app.locator(".elsewhere code").wait_for()
        assert "approve" in app.locator(".elsewhere code").inner_text()
        assert app.locator(":root").get_attribute("data-theme") == "dark"
        page.evaluate("tell('ui/notifications/host-context-changed', { theme: 'light' })")
        app.locator(":root[data-theme=light]").wait_for()
        page.close()
