"""Make the pictures of the page in docs/pictures: `python tests/browser/pictures.py [FOLDER] [NAME ...]`.

They show the gallery, at 1,280 and 390 pixels, and the app in the inspector's page. Beside them the digest of the
page's files is written, by which a test knows when they are stale. Needs chromium, pngquant, npm, and for the fonts
fonts-inter and fonts-jetbrains-mono of Debian.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.browser.chromium import open_browser  # noqa: E402 - found by the path above
from tests.browser.gallery import Gallery, Site, fill  # noqa: E402
from tests.browser.inspector import open_app, open_inspector  # noqa: E402
from tests.browser.served_page import ServedPage, asks_to_edit, guide_in, looks, serve_page  # noqa: E402
from tests.page.pictured_files import DIGEST_FILE, digest_files  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
CACHE = Path(os.environ.get("KAIROS_FOREIGN_CACHE", ROOT / ".pytest_cache" / "d" / "kairos-foreign")).absolute()
SIZES = {1280: 860, 390: 844}
DARK = ("approval", "budget")  # where it tells something; wide alone
IN_INSPECTOR = "app-in-inspector"
COLOURS = 128  # a picture of a page has few, and is a third as large
SETTLED_MS = 400


def make_pictures(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, open_browser(CACHE) as browser:
        if not names or IN_INSPECTOR in names:
            _take_in_inspector(browser, Site(Path(made) / "host"), folder)
        place = Site(Path(made) / "me")
        gallery = fill(place)
        with serve_page(place, **gallery.environ) as served:
            for width in SIZES:
                for theme in ("light", "dark") if width == max(SIZES) else ("light",):
                    _take_gallery(browser, served, gallery, folder, names, width, theme)
    if not names:
        (folder / DIGEST_FILE).write_text(f"{digest_files()}\n")


def _take_gallery(
    browser: Any, served: ServedPage, gallery: Gallery, folder: Path, names: list[str], width: int, theme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=theme)
    page = context.new_page()
    page.goto(served.make_link())
    page.wait_for_selector("nav")
    for name, (address, selector) in gallery.addresses.items():
        if (names and name not in names) or (theme == "dark" and name not in DARK):
            continue
        page.goto("about:blank")
        page.goto(served.address + address)
        page.wait_for_selector(selector)
        _take_picture(page, folder / f"page-{name}-{width}{'-dark' if theme == 'dark' else ''}.png")
    context.close()


def _take_in_inspector(browser: Any, place: Site, folder: Path) -> None:
    place.workspace.mkdir(parents=True)
    guide_in(place)
    lines = [looks(1), looks(2), asks_to_edit()]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = {"KAIROS_SCRIPT": str(place.script), "KAIROS_ROUTE": "scripted"}
    tools = ["read_file", "search_files", "edit_file"]
    call = {"goal": "Mend the broken link in the guide", "tools": tools, "limits": {"rounds": 9}, "wait_s": 0}
    page = browser.new_context(viewport={"width": 1280, "height": 1240}).new_page()
    with serve_page(place), open_inspector(place, CACHE, "legacy", **script) as address:
        open_app(page, address, "Run a loop", call).locator(".diff .add").wait_for()
        _take_picture(page, folder / f"page-{IN_INSPECTOR}.png")
    page.context.close()


def _take_picture(page: Any, target: Path) -> None:
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=target)
    subprocess.run(["pngquant", "--force", "--strip", "--output", target, str(COLOURS), target], check=True)


if __name__ == "__main__":
    where, *wanted = sys.argv[1:] or [str(PICTURES)]
    make_pictures(Path(where), wanted)
