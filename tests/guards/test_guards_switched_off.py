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
from guardtable import GUARDS, Guard

import kairos_mcp

ROOT = Path(kairos_mcp.__file__).parent.parent
WITHIN_S = 120
NOT_A_FAILURE = re.compile(r"\b(ImportError|ModuleNotFoundError|SyntaxError|IndentationError)\b")

LOOKS = """
from pathlib import Path
import kairos_mcp
assert Path(kairos_mcp.__file__).is_relative_to(Path(__file__).parent), kairos_mcp.__file__
"""


def ids(guard: Guard) -> str:
    return f"{guard.file}: {guard.text.strip()[:60]}".replace("::", ":")


def switched_off(guard: Guard, root: Path) -> None:
    """A copy of the package in which the guard does not stand. Fails where it did not stand there exactly once."""
    for folder in ("kairos_mcp", "config", "skills"):
        shutil.copytree(ROOT / folder, root / folder)  # with what is compiled of all other files
    (root / "looks.py").write_text(LOOKS)
    file = root / "kairos_mcp" / guard.file
    text = file.read_text(encoding="utf-8")
    assert text.count(guard.text) == 1, f"the guard stands {text.count(guard.text)} times in {guard.file}: {guard.text}"
    file.write_text(text.replace(guard.text, guard.without), encoding="utf-8")
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
    "guard", [pytest.param(each, marks=() if each.quick else pytest.mark.slow) for each in GUARDS], ids=ids
)
def test_without_its_guard_its_test_fails(guard: Guard, tmp_path: Path) -> None:
    switched_off(guard, tmp_path)
    done = run_guard_test(guard, tmp_path)
    said = done.stdout + done.stderr
    assert re.search(r"^FAILED ", done.stdout, re.MULTILINE), said[-4_000:]
    assert not re.search("ERROR (at setup|collecting)", done.stdout), said[-4_000:]  # at teardown runs are replayed
    assert not NOT_A_FAILURE.search(done.stdout), said[-4_000:]


def test_every_guard_stands_where_its_row_says_and_its_test_is_there() -> None:
    """Seen at once, and not only when the slow rows are run."""
    for guard in GUARDS:
        text = (ROOT / "kairos_mcp" / guard.file).read_text(encoding="utf-8")
        assert text.count(guard.text) == 1, f"{guard.file}: {guard.text}"
        compile(text.replace(guard.text, guard.without), guard.file, "exec")
        file, _, name = guard.test.partition("::")
        defined = rf"^(async )?def {re.escape(name.partition('[')[0])}\("
        assert re.search(defined, (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), guard.test


def test_no_guard_is_switched_off_by_a_name_that_is_not_there(tmp_path: Path) -> None:
    """Its test would fail for that alone."""
    for number, guard in enumerate(GUARDS):
        text = (ROOT / "kairos_mcp" / guard.file).read_text(encoding="utf-8")
        (tmp_path / f"{number}.py").write_text(text.replace(guard.text, guard.without), encoding="utf-8")
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
    assert len({(each.file, each.text, each.without) for each in GUARDS}) == len(GUARDS)
    assert sum(each.quick for each in GUARDS) >= 10
