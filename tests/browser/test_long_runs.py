"""Runs of a thousand and of ten thousand steps: seen whole or by their end, and the page still moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.app import Place

from tests.browser.chromium import wait_until
from tests.browser.served_page import looks, run_until_rest, says

TOOLS = ("read_file", "search_files")
MAX_LONG_TASK_MS = 1_500  # for drawing everything once, on a busy machine
COUNT_TASKS = """() => {
  window.tasks = [];
  const note = (list) => window.tasks.push(...list.getEntries().map(({ duration }) => duration));
  new PerformanceObserver(note).observe({ type: "longtask" });
}"""
PARTS_OF_A_PAGE = 60_000  # elements: more are not drawn, however long a run is


@pytest.mark.parametrize(("rounds", "shown"), [(333, 334), (3_333, 400)])
def test_a_long_run_is_drawn_and_can_be_read_to_its_beginning(
    rounds: int, shown: int, site: Place, enter: Callable[..., Any]
) -> None:
    lines = [looks(n) for n in range(1, rounds + 1)] + [says("All were looked at.")]
    run_id = run_until_rest(site, "Look at every page", lines, *TOOLS, KAIROS_CONTEXT_TOKENS="2000000")
    assert site.rows("select count(*) from step") == [(rounds * 3 + 1,)]
    page = enter()
    page.evaluate(COUNT_TASKS)
    page.evaluate(f"location.hash = '#/runs/{run_id}'")
    page.wait_for_selector(".summary")
    wait_until(page, f"document.querySelectorAll('.group').length === {shown}")
    assert page.evaluate("document.querySelectorAll('*').length") < PARTS_OF_A_PAGE
    assert max(page.evaluate("window.tasks"), default=0) < MAX_LONG_TASK_MS
    if shown < rounds:
        assert page.inner_text(".earlier").endswith(f"{rounds + 1 - shown:,} more")
        page.click(".earlier")
        wait_until(page, f"document.querySelectorAll('.group').length === {2 * shown}")
    page.evaluate(f"location.hash = '#/runs/{run_id}/round-1/call-1'")
    page.wait_for_selector(".details")
    assert "word1." in page.inner_text(".details")
