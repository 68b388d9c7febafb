"""The kernel, which carries the promises of durability and budgets, can be read alone.

ARCHITECTURE.md leads through one round by its functions, and lists its files. They import nothing of the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from test_imports import ROOT, _imported_modules, _package

GUIDE = (ROOT.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
PART = GUIDE.partition("## The kernel, in an hour\n")[2].partition("\n## ")[0]
KERNEL = re.findall(r"^\| \d+ \| `([a-z_/]+\.py)` \|", PART, flags=re.M)
MOST_MODULES, MOST_LINES = 28, 7_500
MOST_TOUR_LINES = {
    "a round": (range(1, 14), 1_050),
    "a crash": (range(14, 16), 250),
}  # what one reads in 60 and in 20 minutes
# Tables of the store that the kernel reads or writes by their own modules, without being about them.
OTHER_TABLES = {
    "approvals", "client_completions", "client_questions", "database", "force_cancel", "inbox", "integrity", "mandates",
    "more_rounds", "prefixes", "report_queries", "settlements", "tool_intents",
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
NOTES = "budget/notes.py"  # sentences for people
BELOW = {"core", "budget", "store", "execution"}  # packages to which everything belongs that the kernel comes to
DRIVER = (
    "store/connection.py"  # a file's driver, which a damaged file leads to; a type of the settings says how it syncs
)


def test_the_list_is_bounded() -> None:
    assert len(KERNEL) == len(set(KERNEL))
    assert {"core/steps.py", "core/replay.py", "execution/worker.py"} < set(KERNEL)
    assert len(KERNEL) <= MOST_MODULES
    assert sum(len((ROOT / module).read_text(encoding="utf-8").splitlines()) for module in KERNEL) <= MOST_LINES


@pytest.mark.parametrize("module", KERNEL)
def test_a_module_of_the_kernel_imports_the_kernel_core_and_tables(module: str) -> None:
    allowed = {*KERNEL, NOTES, *(f"store/{name}.py" for name in OTHER_TABLES)}
    others = {
        each for each in _imported_modules(module) if _package(each) != "core" and not each.endswith("__init__.py")
    }
    assert others <= allowed


def test_no_path_of_imports_leads_from_the_kernel_to_what_uses_it() -> None:
    """Else one would have to read on to know what an authorization, a tool or a setting does to a run."""
    reached: set[str] = set()
    following = set(KERNEL)
    while following:
        reached |= following
        following = set().union(*(_imported_modules(each) for each in following - {DRIVER})) - reached
    assert {each for each in reached if _package(each) not in BELOW} <= {"__init__.py"}


def test_one_module_of_the_kernel_takes_the_paths_of_steps_apart() -> None:
    taking = re.compile(r"""split\(["']/["']|partition\(["']/["']""")
    assert [module for module in KERNEL if taking.search((ROOT / module).read_text(encoding="utf-8"))] == [
        "core/steps.py"
    ]


def _list_tour() -> Iterator[tuple[int, str, str]]:
    """Yield what the tour names, as (stop, module, name)."""
    for stop, row in re.findall(r"^\| (\d+) \| (`[a-z_/]+\.py`: .+?) \|", PART, flags=re.M):
        module = ""
        for name in re.findall(r"`([^`]+)`", row):
            module = name if name.endswith(".py") else module
            if name != module:
                yield int(stop), module, name


def _count_lines(module: str, name: str) -> int:
    """Count the lines of a function; of a class, those before its first function."""
    body = ast.parse((ROOT / module).read_text(encoding="utf-8")).body
    for part in name.split("."):
        (found,) = (node for node in body if isinstance(node, DEFINITIONS) and node.name == part)
        body = found.body
    first = (
        next((node for node in body if isinstance(node, FUNCTIONS)), None) if isinstance(found, ast.ClassDef) else None
    )
    end = found.end_lineno if first is None else first.lineno - len(first.decorator_list) - 1
    assert end is not None
    return end - found.lineno + 1


def test_the_tour_names_what_exists_and_is_as_short_as_it_says() -> None:
    tour = list(_list_tour())
    named = [(module, name) for _, module, name in tour]
    assert len(named) == len(set(named))
    assert {("execution/worker.py", "RunWorker._advance"), ("execution/decide.py", "decide")} < set(named)
    assert {module for module, _ in named} <= {*KERNEL, "flows/planner.py"}
    assert {stop for stop, *_ in tour} == {stop for stops, _ in MOST_TOUR_LINES.values() for stop in stops}
    for stops, most in MOST_TOUR_LINES.values():
        assert sum(_count_lines(module, name) for stop, module, name in tour if stop in stops) <= most
        assert f"at most {most:,} lines" in PART
