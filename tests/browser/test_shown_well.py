"""What a person looks for first: why a run failed, one project everywhere, Markdown, the whole navigation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.app import Place

from tests.browser.served_page import run_until_rest, says, serve_page

ANSWER = """## Found

One link in **docs/guide.md** is broken:

- it names `instal.md`
- the page is [here](https://example.com/page)

```
cat docs/guide.md
```
<img src=x onerror="window.ran=1"> [x](javascript:window.ran=1)
"""


def test_an_answer_is_markdown_and_nothing_more(site: Place, enter: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, "Look", [says(ANSWER)])
    page = enter(f"#/runs/{run_id}")
    shown = page.locator(".summary div.marked")
    shown.wait_for()
    assert shown.locator("h3").inner_text() == "Found"
    assert shown.locator("strong").inner_text() == "docs/guide.md"
    assert shown.locator("li").count() == 2
    assert shown.locator("pre").inner_text() == "cat docs/guide.md"
    assert "https://example.com/page" in shown.inner_text()  # an address is read, and not followed unseen
    assert shown.locator("img, a, script").count() == 0
    assert '<img src=x onerror="window.ran=1">' in shown.inner_text()
    assert page.evaluate("window.ran") is None


def test_a_failed_run_says_why_first_and_another_one_goes_on(site: Place, new_context: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, "Look", [])  # a script without a line for the round
    assert site.rows("select json_extract(outcome, '$.status') from run where id = ?", run_id) == [("failed",)]
    script = site.root / "page.jsonl"
    script.write_text(json.dumps(says("Nothing is missing.")) + "\n")
    with serve_page(site, KAIROS_SCRIPT=str(script), KAIROS_ROUTE="scripted") as served:
        page = new_context().new_page()
        page.goto(served.link)
        page.wait_for_selector("nav")
        page.goto(f"{served.address}#/runs/{run_id}")
        cause = page.locator(".cause")
        cause.wait_for()
        assert page.locator(".run > *").nth(1).get_attribute("class") == "still cause"
        assert "Why it failed" in cause.inner_text()
        cause.get_by_text("Try again").click()
        page.wait_for_selector(".pill.completed")
    assert site.rows("select json_extract(spec, '$.continues') from run where id <> ?", run_id) == [(run_id,)]


def test_one_switch_chooses_the_project_of_every_page(site: Place, enter: Callable[..., Any]) -> None:
    run_until_rest(site, "Here", [says("Done.")])
    page = enter("#/runs")
    page.get_by_text("Here").first.wait_for()
    page.evaluate("localStorage.setItem('scope', '/somewhere/else')")
    page.reload()
    page.get_by_text("No runs of this project").wait_for()
    page.select_option("select.scope", "")
    page.get_by_text("Here").first.wait_for()
    assert page.locator(".heads.run").inner_text().split() == [
        "status",
        "goal",
        "project,",
        "model",
        "work",
        "tokens",
        "cost",
        "started",
    ]


@pytest.mark.parametrize("width", [320, 390])
def test_the_whole_navigation_is_on_a_narrow_screen(
    width: int, site: Place, enter: Callable[..., Any], new_context: Callable[..., Any]
) -> None:
    run_until_rest(site, "Here", [says("Done.")])
    page = enter("#/runs")
    page.set_viewport_size({"width": width, "height": 844})
    links = page.locator("nav .pages a, nav .foot button")
    boxes = [links.nth(at).bounding_box() for at in range(links.count())]
    assert len(boxes) == 8
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes), boxes
