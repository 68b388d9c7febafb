"""Build the documentation site: `python site/build.py [FOLDER]` (default: build/site). It needs `pip install zensical`.

Pages keep their places in the repository. Links between them stay as they are; a link to any other file of the
repository leads to its source on the web. `llms.txt` lists the pages, and each page is also there as Markdown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "site" / "zensical.toml"
SOURCE = "https://github.com/kairos-mcp/kairos-mcp/blob/main"
_FOREIGN_WORKER = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"[^>]*>')
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"(```.*?^ *```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def read_nav() -> list[tuple[str, str, str]]:
    """Return the pages as (section, title, path in the repository), in the order of the navigation."""
    nav = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]
    return list(_walk(nav, ""))


def _walk(entries: list[dict[str, object]], section: str) -> Iterator[tuple[str, str, str]]:
    for entry in entries:
        for title, found in entry.items():
            if isinstance(found, list):
                yield from _walk(found, title)
            else:
                yield section, title, str(found)


def convert(text: str, path: str, pages: set[str]) -> str:
    """Return a page's text with its links to other files of the repository led to their source.

    What belongs to a numbered item is indented by four columns, as the site's Markdown wants it.
    Raises ValueError for a link to a file that is not there.
    """

    def lead(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if ":" in target:
            return match[0]
        named = os.path.normpath(PurePosixPath(path).parent / target)
        if not (ROOT / named).exists():
            raise ValueError(f"{path} links {target}, which is not there")
        if named in pages or named.startswith("docs/pictures/"):
            return match[0]
        return f"{before}{SOURCE}/{named}{after}"

    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"^   (?=\S)", "    ", _LINK.sub(lead, part), flags=re.MULTILINE) for part in parts[::2]]
    return "".join(parts)


def first_sentence(text: str) -> str:
    """Return the first sentence after a page's heading, as plain text."""
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.strip().splitlines() if not line.startswith("#")]
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(lines)).strip()
        if re.match(r"[`*]*\w", plain) and not block.startswith("```"):
            return re.split(r"(?<=[.])\s", plain)[0].rstrip(":")
    return ""


def write_llms(folder: Path) -> None:
    """Write `llms.txt`: what Kairos is, and each page with its first sentence."""
    lines = ["# Kairos", "", f"> {first_sentence((ROOT / 'README.md').read_text(encoding='utf-8'))}"]
    current = ""
    for section, title, path in read_nav()[1:]:  # the first is the README, which is said above
        if section != current:
            lines += ["", f"## {section or 'Choosing and mending'}", ""]
            current = section
        about = first_sentence((ROOT / path).read_text(encoding="utf-8"))
        lines.append(f"- [{title}]({path}): {about}" if about else f"- [{title}]({path})")
    (folder / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def keep_requests_here(folder: Path) -> None:
    """Replace the one script that the theme loads from elsewhere. Raises ValueError if a page loads another one."""
    shutil.copy(ROOT / "site" / "file_worker.js", folder / "assets")
    for page in folder.rglob("*.html"):
        up = "../" * (len(page.relative_to(folder).parts) - 1)
        text = _FOREIGN_WORKER.sub(f'<script src="{up}assets/file_worker.js">', page.read_text(encoding="utf-8"))
        if re.search(r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:', text):
            raise ValueError(f"{page.relative_to(folder)} loads something from elsewhere")
        page.write_text(text, encoding="utf-8")


def build(folder: Path) -> None:
    """Build the site into a folder. Raises CalledProcessError or ValueError if a link or a page is wrong."""
    work = folder.parent / f"{folder.name}-work"
    shutil.rmtree(work, ignore_errors=True)
    pages = {path for _, _, path in read_nav()}
    for path in sorted(pages):
        target = work / "pages" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(convert((ROOT / path).read_text(encoding="utf-8"), path, pages), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", work / "pages" / "docs" / "pictures")
    shutil.copy(CONFIG, work / "zensical.toml")
    shutil.copy(ROOT / "site" / "site.css", work / "pages")
    program = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    subprocess.run(program, cwd=work, check=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(work / "site", folder)
    keep_requests_here(folder)
    for path in pages:
        shutil.copy(work / "pages" / path, folder / path)
    write_llms(folder)
    shutil.rmtree(work)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve())
