"""A run inside a host that others wrote: live in the inspector's page, decided on our page, completed there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from support.app import Place

from tests.browser.inspector import open_app, open_inspector
from tests.browser.served_page import EDITED, asks_to_edit, looks, says, serve_page
from tests.foreign.cells import Era

GOAL = "Mend the link in the guide"
CALL = {"goal": GOAL, "tools": ["read_file", "search_files", "edit_file"], "limits": {"rounds": 9}, "wait_s": 0}
LINES = [looks(n, delay_s=0.5) for n in range(1, 6)] + [asks_to_edit(), says("The guide leads to install.md now.")]


@pytest.mark.parametrize("era", get_args(Era))
def test_the_inspector_shows_a_run_that_is_decided_on_the_page(
    era: Era, site: Place, cache: Path, browser: Any
) -> None:
    site.script.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    script = {"KAIROS_SCRIPT": str(site.script), "KAIROS_ROUTE": "scripted"}
    script["KAIROS_APPROVALS"] = "person"  # else the inspector, to which the call is a task, lays its dialog over all
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    with open_inspector(site, cache, era, **script) as address, serve_page(site) as served:
        person = context.new_page()
        person.goto(served.link)
        person.wait_for_selector("nav")
        person.close()

        page = context.new_page()
        app = open_app(page, address, "Run a loop", CALL)
        app.locator(".pill.working").wait_for()
        rounds = app.locator(".meter:has-text('rounds') b")
        first = int(rounds.inner_text())
        app.locator(".diff .add").wait_for()
        assert int(rounds.inner_text()) > first  # it moved while it was looked at
        assert app.locator("h1").inner_text() == GOAL
        ((client, verdict),) = site.rows("select run.client, verdict from run join approval on approval.run = run.n")
        assert "inspector" in client
        assert verdict is None

        with context.expect_page() as opened:
            app.locator(".elsewhere button").click()
        opened.value.click("[data-approve]:not([disabled])")
        app.locator(".pill.completed").wait_for()
        assert "(install.md)" in (site.workspace / EDITED).read_text()
        assert site.rows("select verdict, through from approval") == [("approve", "page")]
    context.close()
