"""Build the MCP bundle (.mcpb) that hosts install with a click: the sources and a manifest, started by uv.

    python packaging/bundle.py [FILE]

Nothing compiled is in it: uv, which such hosts bring, installs the dependencies for the machine at hand at the first
start. Two builds of the same sources are the same bytes.
"""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kairos_mcp", "config", "skills")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time of every file in the archive


def manifest() -> dict[str, object]:
    """The manifest, with the version of the project."""
    read: dict[str, object] = json.loads((ROOT / "packaging" / "manifest.json").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read | {"version": project["version"], "description": project["description"]}


def sources() -> Iterator[Path]:
    """The files of the bundle besides its manifest."""
    yield from (ROOT / name for name in FILES)
    for folder in FOLDERS:
        found = sorted(path for path in (ROOT / folder).rglob("*") if path.is_file())
        yield from (path for path in found if "__pycache__" not in path.parts)


def build(target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json", LONG_AGO), json.dumps(manifest(), indent=2) + "\n")
        for path in sources():
            entry = zipfile.ZipInfo(path.relative_to(ROOT).as_posix(), LONG_AGO)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    named = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / f"kairos-mcp-{manifest()['version']}.mcpb"
    named.parent.mkdir(parents=True, exist_ok=True)
    build(named)
    sys.stdout.write(f"{named}\n")
