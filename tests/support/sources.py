"""The files of the package, for tests of what stands in them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import kairos_mcp

PACKAGE = Path(kairos_mcp.__file__).parent


def nodes_with(words: Iterable[str]) -> Iterator[tuple[str, ast.AST]]:
    """All that is written in the files in which one of the words stands, each with the name of its file. To parse the
    package costs a second, and who looks for a name needs few of its files."""
    sought = tuple(words)
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in sought):
            name = path.relative_to(PACKAGE).as_posix()
            yield from ((name, node) for node in ast.walk(ast.parse(text)))
