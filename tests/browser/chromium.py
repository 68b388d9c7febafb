"""Debian's chromium, driven by Playwright from an environment of its own."""

from __future__ import annotations

import importlib
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.foreign.environs import Missing, NodeEnv, PythonEnv, make_environment

if TYPE_CHECKING:
    Browser = Any

PLAYWRIGHT = PythonEnv("playwright", ("playwright==1.65.2",))
AXE = NodeEnv("axe", ("axe-core@4.14.1",))
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none")
PATIENCE_MS = 30_000


@contextmanager
def open_browser(cache: Path) -> Iterator[Browser]:
    """A browser until the block ends. Raises Missing."""
    program = shutil.which("chromium")
    if program is None:
        raise Missing("chromium (apt-get install chromium)")
    folder = make_environment(PLAYWRIGHT, cache)
    (packages,) = folder.glob("lib/python*/site-packages")
    if str(packages) not in sys.path:
        sys.path.append(str(packages))  # last, so that nothing of ours is taken from there
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def read_axe(cache: Path) -> str:
    """The source of axe-core. Raises Missing."""
    return (make_environment(AXE, cache) / "node_modules" / "axe-core" / "axe.min.js").read_text()


def watch_errors(context: Any) -> list[str]:
    """Collect what pages of this context write to the console as errors, and what their scripts raise."""
    found: list[str] = []
    context.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: found.append(str(error.error)))
    return found


def wait_until(page: Any, expression: str) -> None:
    """Wait until an expression holds in the page. Playwright's own wait makes code of a text there, which the page's
    policy forbids."""
    until = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < until, expression
        page.wait_for_timeout(20)
