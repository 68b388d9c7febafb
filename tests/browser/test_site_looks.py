"""The documentation site: it is built strictly, asks nothing of any other machine, and its search works from a file."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import PATIENCE_MS
from tests.browser.test_accessible import RULES
from tests.foreign.environs import Missing, PythonEnv, make_environment

ROOT = Path(__file__).resolve().parents[2]
ZENSICAL = PythonEnv("zensical", ("zensical==0.0.73",))
LOOK = """async (rules) => (await axe.run(document, { runOnly: rules, preload: false })).violations
  .map(({ id, nodes }) => [id, nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`)])"""
SOME = ("index.html", "docs/concepts/recovery.html", "docs/how-to/backup.html", "docs/commands.html")


@pytest.fixture(scope="module")
def site(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        python = make_environment(ZENSICAL, cache) / "bin" / "python"
    except Missing as missing:
        pytest.fail(f"this machine lacks {missing}")
    folder = tmp_path_factory.mktemp("built") / "site"
    built = subprocess.run([python, ROOT / "site" / "build.py", folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_search_works_from_a_file_and_nothing_is_asked_elsewhere(
    site: Path, new_context: Callable[..., Any]
) -> None:
    page = new_context().new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("pg_dump")
    page.get_by_text("contains everything but files").first.wait_for(timeout=PATIENCE_MS)  # of docs/operations.md
    assert [url for url in asked if not url.startswith("file:")] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_the_site(theme: str, site: Path, axe: str, new_context: Callable[..., Any]) -> None:
    found = {}
    page = new_context(color_scheme=theme).new_page()
    for name in SOME:
        page.goto((site / name).as_uri())
        page.evaluate(f"() => {{ {axe} }}")
        if violations := page.evaluate(LOOK, RULES):
            found[name] = violations
    assert found == {}


def test_no_page_is_wider_than_a_narrow_screen(site: Path, new_context: Callable[..., Any]) -> None:
    page = new_context(viewport={"width": 390, "height": 844}).new_page()
    for name in SOME:
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
