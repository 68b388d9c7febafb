"""The program with one more version of the store: what it adds, and a copy of the package that has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import kairos_mcp
from kairos_mcp.store.schema import MIGRATIONS

ADDED = "alter table run add column colour text; create table hat(id integer primary key, body text);"
NEXT = len(MIGRATIONS) + 1
ROOT = Path(kairos_mcp.__file__).parent.parent


def copy_next_version(root: Path) -> dict[str, str]:
    """Copy the program, with one more version of the store, into a folder; return what a process of it needs."""
    for folder in ("kairos_mcp", "config", "skills"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "kairos_mcp" / "store" / "migrations" / f"{NEXT}.sql").write_text(f"{ADDED}\n", encoding="utf-8")
    return {"PYTHONPATH": str(root)}
