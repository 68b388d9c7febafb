"""Each guard switched off makes its own test fail: in a copy of the package, so that the guard is known to be held."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import guardtable
import pytest
from guard_changes import DoesNotApply
from guard_names import PACKAGE, ChangedModule, change_module
from guardtable import GUARDS, Guard

ROOT = PACKAGE.parent
WITHIN_S = 120
NOT_A_FAILURE = re.compile(r"\b(ImportError|ModuleNotFoundError|SyntaxError|IndentationError)\b")

LOOKS = """
from pathlib import Path
import kairos_mcp
assert Path(kairos_mcp.__file__).is_relative_to(Path(__file__).parent), kairos_mcp.__file__
"""


def describe(guard: Guard) -> str:
    return f"{guard.name}: {' and '.join(map(str, guard.changes))[:80]}".replace("::", ":")


def switch_off(guard: Guard) -> ChangedModule:
    try:
        return change_module(guard.name, guard.changes)
    except DoesNotApply as reason:
        pytest.fail(f"A row of tests/guards/guardtable.py does not apply: {reason}.", pytrace=False)


def copy_without(guard: Guard, root: Path) -> None:
    """Make a copy of the package in which the guard is switched off."""
    changed = switch_off(guard)
    for folder in (PACKAGE.name, "config", "skills"):
        shutil.copytree(ROOT / folder, root / folder)  # with what is compiled of all other files
    (root / "looks.py").write_text(LOOKS)
    file = root / PACKAGE.name / changed.file
    file.write_text(changed.text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def run_guard_test(guard: Guard, root: Path) -> subprocess.CompletedProcess[str]:
    """Run its test on the copy alone: also processes that it starts import that one."""
    words = ["-n", "0", "-x", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "looks", "-m", ""]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-c", ROOT / "pyproject.toml", ROOT / "tests" / guard.test],
        cwd=root,
        env={**environ, "PYTHONPATH": str(root), "HYPOTHESIS_STORAGE_DIRECTORY": str(root / "examples")},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


@pytest.mark.parametrize(
    "guard", [pytest.param(each, marks=() if each.quick else pytest.mark.slow) for each in GUARDS], ids=describe
)
def test_without_its_guard_its_test_fails(guard: Guard, tmp_path: Path) -> None:
    copy_without(guard, tmp_path)
    done = run_guard_test(guard, tmp_path)
    said = done.stdout + done.stderr
    assert re.search(r"^FAILED ", done.stdout, re.MULTILINE), said[-4_000:]
    assert not re.search("ERROR (at setup|collecting)", done.stdout), said[-4_000:]  # at teardown runs are replayed
    assert not NOT_A_FAILURE.search(done.stdout), said[-4_000:]


def test_every_guard_stands_where_its_row_says_and_its_test_is_there() -> None:
    """Seen at once, and not only when the slow rows are run."""
    for guard in GUARDS:
        switch_off(guard)
        file, _, name = guard.test.partition("::")
        defined = rf"^(async )?def {re.escape(name.partition('[')[0])}\("
        assert re.search(defined, (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), guard.test


def test_no_guard_is_switched_off_by_a_name_that_is_not_there(tmp_path: Path) -> None:
    """Its test would fail for that alone, and so it would for text that is no Python, which is found here as well."""
    for number, guard in enumerate(GUARDS):
        (tmp_path / f"{number}.py").write_text(switch_off(guard).text, encoding="utf-8")
    words = ["ruff", "check", "--isolated", "--no-cache", "--select=F821", "--output-format=concise", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    unknown = re.findall(r"(\d+)\.py:\d+:\d+: (.*)", done.stdout)
    assert [(GUARDS[int(number)], what) for number, what in unknown] == []
    assert done.returncode == 0, done.stderr


def test_every_row_that_is_written_is_in_the_table() -> None:
    groups = [each for each in vars(guardtable).values() if isinstance(each, tuple) and isinstance(each[0], Guard)]
    assert {guard for group in groups for guard in group} == set(GUARDS)


def test_every_guard_is_switched_off_in_another_way() -> None:
    assert len(GUARDS) >= 60
    assert len({(each.name, each.changes) for each in GUARDS}) == len(GUARDS)
    assert sum(each.quick for each in GUARDS) >= 10
