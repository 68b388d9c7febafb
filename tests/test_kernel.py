"""The kernel, which carries the promises of durability and budgets, can be read alone.

ARCHITECTURE.md lists its files in the order of reading. They import nothing of the rest.
"""

from __future__ import annotations

import re

import pytest
from test_imports import ROOT, _imported_modules, _package

GUIDE = (ROOT.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
PART = GUIDE.partition("## The kernel, in an hour\n")[2].partition("\n## ")[0]
KERNEL = re.findall(r"^\| \d+ \| `([a-z_/]+\.py)` \|", PART, flags=re.M)
MOST_MODULES, MOST_LINES = 28, 7_500  # what one reads in an hour
# Tables of the store that the kernel reads or writes by their own modules, without being about them.
OTHER_TABLES = {
    "approvals", "client_completions", "client_questions", "database", "force_cancel", "inbox", "integrity", "mandates",
    "more_rounds", "prefixes", "report_queries", "settlements", "tool_intents",
}  # fmt: skip
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
