"""Find a function, a class or a constant of the package by its name, in whichever module it is, and change it there.

A name is qualified: `Gate.judge`, `edit_tool.propose_changes`. `annotations:describe` is that of one module, for a name
that several modules have.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from guard_changes import Change, DoesNotApply, apply_change

import kairos_mcp

PACKAGE = Path(kairos_mcp.__file__).parent
_DEFINED = re.compile(r"^ *(?:(?:async )?def |class )(\w+)|^ *(\w+)\b[^=(\n]* \|?= ", re.MULTILINE)


class ChangedModule(NamedTuple):
    """`file` below the package, and its text with one definition changed."""

    file: Path
    text: str


@cache  # two tests go through the whole table
def change_module(name: str, changes: tuple[Change, ...]) -> ChangedModule:
    """Return the one module in which these changes of what has this name can be made. Raises DoesNotApply."""
    definitions = find_definitions(name)
    if not definitions:
        raise DoesNotApply(f"kairos_mcp has no `{name}`. Find what it is called now, and name that in the row")
    found, reasons = [], []
    for file, definition in definitions:
        changed = definition
        try:
            for change in changes:
                changed = apply_change(change, changed)
            found.append(ChangedModule(file, _splice(file, definition, changed)))
        except DoesNotApply as reason:
            reasons.append(f"in {name} ({file}) {reason}. Quote the part as it is now, or more of it")
    if len(found) == 1:
        return found[0]
    if not found:
        raise DoesNotApply("; ".join(reasons))
    files = " and ".join(str(each.file) for each in found)
    raise DoesNotApply(f"{name} is in {files}. Write `module:{name}`, or quote more of the part")


def find_definitions(name: str) -> list[tuple[Path, ast.stmt]]:
    """Return everything of this name, each with its file below the package."""
    module, _, qualified = name.rpartition(":")
    return [
        (file, definition)
        for file in _index_modules().get(qualified.rpartition(".")[2], ())
        if not module or f".{'.'.join(file.with_suffix('').parts)}".endswith(f".{module}")
        for definition in _index_definitions(file).get(qualified, ())
    ]


@cache
def _index_definitions(file: Path) -> dict[str, list[ast.stmt]]:
    """Return what a module defines by its qualified name."""
    index: dict[str, list[ast.stmt]] = {}
    for name, definition in _list_definitions(ast.parse(_read_text(file)).body, ""):
        index.setdefault(name, []).append(definition)
    return index


def _list_definitions(nodes: Sequence[ast.AST], prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in nodes:
        below = prefix
        if isinstance(node, ast.stmt):
            yield from ((f"{prefix}{name}", node) for name in _names_of(node))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            below = f"{prefix}{node.name}."
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _list_definitions(getattr(node, field, ()), below)


def _names_of(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(name)) | ast.AugAssign(target=ast.Name(name)):
            return {name}
        case ast.Assign(targets=targets):
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def _splice(file: Path, definition: ast.stmt, changed: ast.stmt) -> str:
    """Return the file's text with this definition changed; all around it stays as it is."""
    lines = _read_text(file).split("\n")
    depth = definition.col_offset // 4
    for _ in range(depth):
        changed = ast.If(ast.Constant(True), [changed], [])
    written = ast.unparse(changed).split("\n")[depth:]
    first = min(each.lineno for each in (definition, *getattr(definition, "decorator_list", ())))
    return "\n".join([*lines[: first - 1], *written, *lines[definition.end_lineno :]])


@cache
def _index_modules() -> dict[str, list[Path]]:
    """Return for each name the modules that may define it, so that no other need be parsed."""
    index: dict[str, list[Path]] = {}
    for file in sorted(file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py")):
        for name in {found[1] or found[2] for found in _DEFINED.finditer(_read_text(file))}:
            index.setdefault(name, []).append(file)
    return index


@cache
def _read_text(file: Path) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")
