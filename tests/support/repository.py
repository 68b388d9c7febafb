"""A small repository as a person keeps one: under git, docs with dead links, a module whose tests fail."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

from support.cycles import cycle, gives, judgement_line, orientation_line

FILES = {
    ".gitignore": "__pycache__/\n",
    "README.md": "# Tally\n\nCounts words. Read [the guide](docs/guide.md).\n",
    "docs/guide.md": "# Guide\n\nInstall it as [told here](instal.md), then [use it](usage.md).\n",
    "docs/install.md": "# Installation\n\nNothing is needed. Back to [the guide](guide.md).\n",
    "docs/usage.md": "# Usage\n\nSee [the reference](refrence.md) and [the changes](../CHANGES.md).\n",
    "docs/reference.md": "# Reference\n\n`tally(text)` gives a count by word; see [usage](../usage.md).\n",
    "CHANGES.md": "# Changes\n\n- 1.0: first.\n",
    "tally.py": (
        '"""Counts words."""\n\n\n'
        "def tally(text):\n"
        "    counts = {}\n"
        "    for word in text.split(' '):\n"
        "        counts[word] = 1\n"
        "    return counts\n"
    ),
    "test_tally.py": (
        "from tally import tally\n\n\n"
        "def test_each_word_is_counted():\n"
        "    assert tally('a b a') == {'a': 2, 'b': 1}\n\n\n"
        "def test_lines_and_spaces_part_words():\n"
        "    assert tally('a  b\\na') == {'a': 2, 'b': 1}\n\n\n"
        "def test_nothing_has_no_words():\n"
        "    assert tally('') == {}\n"
    ),
}
_BARE = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTHONDONTWRITEBYTECODE=1"]  # it starts in a third of the time
PYTEST = [*_BARE, sys.executable, "-m", "pytest", "-qq", "--tb=no", "-p", "no:cacheprovider", "test_tally.py"]
LINKS = {
    "id": "links",
    "goal": "Every relative link in docs leads to a file that exists.",
    "observe": ["file_tree", {"tool": "search_files", "args": {"pattern": r"\]\(", "glob": "docs/*.md"}}],
    "decide_hints": {"prefer_scope": "docs"},
    "max_cycles": 3,
    "checkpoint_every": 3,
}
SUITE = {
    "id": "suite",
    "goal": "The tests pass.",
    "observe": ["file_tree", {"tool": "read_file", "args": {"path": "test_tally.py"}}],
    "decide_hints": {"prefer_scope": "*.py"},
    "acceptance": [{"check": "command_succeeds", "argv": PYTEST}],
    "max_cycles": 3,
    "checkpoint_every": 3,
}


def change(path: str, old: str, new: str) -> dict[str, object]:
    """A turn that decides on this edit."""
    words = {"target": path, "old_string": old, "new_string": new, "intent": f"mend {path}"}
    return gives({"action": "code_edit", **words})


def about(path: str, decision: dict[str, object], confidence: float = 0.5) -> tuple[dict[str, object], ...]:
    """The three turns of a cycle that is about this file."""
    return (orientation_line(files=[{"path": path}]), decision, judgement_line(confidence))


INSTALL = change("docs/guide.md", "(instal.md)", "(install.md)")
MENDS_LINKS = (
    *about("docs/guide.md", INSTALL),
    *about("docs/usage.md", change("docs/usage.md", "(refrence.md)", "(reference.md)")),
    *about("docs/reference.md", change("docs/reference.md", "(../usage.md)", "(usage.md)")),
)
COUNTS = "        counts[word] = counts.get(word, 0) + 1\n"
MENDS_SUITE = (  # one test, then a step in the wrong direction, then all
    *about("tally.py", change("tally.py", "        counts[word] = 1\n", COUNTS)),
    *about("tally.py", change("tally.py", "text.split(' ')", "text.split('\\n')"), 1.0),
    *about("tally.py", change("tally.py", "text.split('\\n')", "text.split()"), 1.0),
)

__all__ = ["FILES", "INSTALL", "LINKS", "MENDS_LINKS", "MENDS_SUITE", "PYTEST", "SUITE", "about", "change", "cycle"]


def repository_in(folder: Path) -> Path:
    """The repository in this folder, as git would find it there; git itself isn't needed."""
    for path, text in {**FILES, ".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n"}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for kept in ("objects", "refs/heads"):
        (folder / ".git" / kept).mkdir(parents=True)
    return folder


def changed_files(folder: Path) -> list[str]:
    """What differs from how it began, new files included, but for what git would ignore."""
    seen = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    there = {path.relative_to(folder).as_posix(): path for path in seen}
    kept = {name for name in there if not name.startswith(".git/") and "__pycache__/" not in name}
    return sorted(name for name in kept | set(FILES) if name not in there or there[name].read_text() != FILES.get(name))


def lines_changed(folder: Path, path: str) -> tuple[int, int]:
    """How many lines were added and taken away."""
    diff = list(difflib.ndiff(FILES[path].splitlines(), (folder / path).read_text().splitlines()))
    return sum(line.startswith("+ ") for line in diff), sum(line.startswith("- ") for line in diff)


def dead_links(folder: Path) -> list[str]:
    """The relative links in docs that lead nowhere."""
    found = []
    for page in sorted((folder / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if not (page.parent / target).is_file():
                found.append(f"{page.name}: {target}")
    return found


def suite_passes(folder: Path) -> bool:
    return subprocess.run(PYTEST, cwd=folder, capture_output=True, check=False).returncode == 0
