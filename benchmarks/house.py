"""How much code there is, and in how many places a kind of thing is known: `python benchmarks/house.py [DIR ...]`.

One column for each checkout, so that a change is seen beside what was there before (`git worktree add DIR COMMIT`).
Names are counted as text is read, without resolving them: two functions of one name count as one with more references.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeGuard

PHASES = ("observe", "orient", "decide", "act", "reflect")
# Those of the first count: old checkouts are counted too. The test of the register looks for each flow that there is.
FLOWS = ("planner", "call", "plan", "team", "ooda_run", *(f"ooda_{phase}" for phase in PHASES))
ROUTES = ("provider", "sampling", "caller", "scripted")
REGISTERS = {"flow": ("run_spec.py", "kinds.py"), "route": ("routes.py",)}  # files that may name each of them
FEW_LINES = 4
Function = ast.FunctionDef | ast.AsyncFunctionDef


def measure(root: Path) -> dict[str, int]:
    """Count what a checkout has. Returns the figures by what they are called."""
    sources = {file: file.read_text(encoding="utf-8") for file in sorted((root / "kairos_mcp").rglob("*.py"))}
    trees = {file: ast.parse(source) for file, source in sources.items()}
    names = Counter(name for tree in trees.values() for name in _list_names(tree))
    called = {file: Counter(_list_calls(tree)) for file, tree in trees.items()}
    calls = sum(called.values(), Counter[str]())
    functions = [(node, name, called[file]) for file, tree in trees.items() for node, name in _list_functions(tree)]
    once = [(node, name in here) for node, name, here in functions if names[name] == 1]
    short = [is_called_here for node, is_called_here in once if _body_lines(node) <= FEW_LINES]
    records = [node for tree in trees.values() for node in ast.walk(tree) if _is_record(node)]
    return {
        "lines of the package": sum(len(source.splitlines()) for source in sources.values()),
        "lines of tests": sum(
            len(file.read_text(encoding="utf-8").splitlines()) for file in (root / "tests").rglob("*.py")
        ),
        "modules": len(sources),
        "functions": len(functions),
        "functions with one reference": len(once),
        f"of these with a body of at most {FEW_LINES} lines": len(short),
        "of these called, and that in their own module": sum(short),
        "classes that only hold fields": len(records),
        "of these made in at most one place": sum(calls[node.name] <= 1 for node in records),
        "lines that compare a flow's name, outside its register": _count_lines(trees, compares_flow, REGISTERS["flow"]),
        "lines with a route's name, outside its register": _count_lines(trees, _names_route, REGISTERS["route"]),
    }


def _list_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text


def _list_functions(tree: ast.AST) -> Iterator[tuple[Function, str]]:
    """Yield functions and methods with their names, except those within functions and those that Python calls."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            if not node.name.startswith("__"):
                yield node, node.name
        else:
            yield from _list_functions(node)


def _body_lines(node: Function) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


def _is_record(node: ast.AST) -> bool:
    """Whether it is a class with fields and no method."""
    if not isinstance(node, ast.ClassDef):
        return False
    has_fields = any(isinstance(each, ast.AnnAssign) for each in node.body)
    return has_fields and not any(isinstance(each, Function) for each in node.body)


def _list_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield name


def _count_lines(
    trees: dict[Path, ast.Module], find_lines: Callable[[ast.AST], Iterator[int]], register: tuple[str, ...]
) -> int:
    return len(
        {
            (file, line)
            for file, tree in trees.items()
            if file.name not in register
            for node in ast.walk(tree)
            for line in find_lines(node)
        }
    )


def compares_flow(node: ast.AST, flows: tuple[str, ...] = FLOWS) -> Iterator[int]:
    """Yield the lines in which this comparison, or this `match`, compares a flow with the name of one."""
    match node:
        case ast.Compare() if any(map(_is_flow, ast.walk(node))):  # "call" and "plan" are other things too
            yield from (each.lineno for each in ast.walk(node) if _is_text(each, flows))
        case ast.Match(subject=subject, cases=cases) if any(map(_is_flow, ast.walk(subject))):
            patterns = (each for case in cases for each in ast.walk(case.pattern))
            yield from (each.lineno for each in patterns if _is_text(each, flows))


def _is_flow(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="flow") | ast.Name(id="flow") | ast.Constant(value="flow"):
            return True
        case _:
            return False


def _names_route(node: ast.AST) -> Iterator[int]:
    if _is_text(node, ROUTES):
        yield node.lineno


def _is_text(node: ast.AST, texts: tuple[str, ...]) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and node.value in texts


def main() -> None:
    """Print the figures of each checkout beside each other."""
    roots = [Path(word) for word in sys.argv[1:]] or [Path(__file__).parent.parent]
    columns = [measure(root) for root in roots]
    for name in columns[0]:
        print(f"{name:58}" + "".join(f"{column[name]:>10,}" for column in columns))


if __name__ == "__main__":
    main()
