"""Make the pictures of the page in docs/pictures: `python tests/browser/pictures.py [FOLDER] [NAME ...]`.

They show the gallery, at 1,280 and 390 pixels. Needs chromium, pngquant, and for the fonts fonts-inter and
fonts-jetbrains-mono of Debian.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.browser.chromium import open_browser  # noqa: E402 - found by the path above
from tests.browser.gallery import Site, fill  # noqa: E402
from tests.browser.served_page import serve_page  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
CACHE = ROOT / ".pytest_cache" / "d" / "kairos-foreign"
SIZES = {1280: 860, 390: 844}
DARK = ("approval", "budget")  # where it tells something; wide alone
COLOURS = 128  # a picture of a page has few, and is a third as large
SETTLED_MS = 400


def make_pictures(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, open_browser(CACHE) as browser:
        place = Site(Path(made) / "me")
        gallery = fill(place)
        with serve_page(place, **gallery.environ) as served:
            for width, height in SIZES.items():
                for theme in ("light", "dark") if width == max(SIZES) else ("light",):
                    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                    page = context.new_page()
                    page.goto(served.make_link())
                    page.wait_for_selector("nav")
                    for name, (address, selector) in gallery.addresses.items():
                        if (names and name not in names) or (theme == "dark" and name not in DARK):
                            continue
                        page.goto("about:blank")
                        page.goto(served.address + address)
                        page.wait_for_selector(selector)
                        page.wait_for_timeout(SETTLED_MS)
                        target = folder / f"page-{name}-{width}{'-dark' if theme == 'dark' else ''}.png"
                        page.screenshot(path=target)
                        _shrink(target)
                    context.close()


def _shrink(picture: Path) -> None:
    subprocess.run(["pngquant", "--force", "--strip", "--output", picture, str(COLOURS), picture], check=True)


if __name__ == "__main__":
    where, *wanted = sys.argv[1:] or [str(PICTURES)]
    make_pictures(Path(where), wanted)
