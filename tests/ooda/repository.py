"""A small repository as a person keeps one: under git, docs with dead links, a module whose tests fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ooda.scenes import cycle, gives, judged, oriented

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
    return (oriented(files=[{"path": path}]), decision, judged(confidence))


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
    """The repository in this folder, all of it committed."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def git(folder: Path, *words: str) -> str:
    """What git says, whoever's machine this is."""
    nobody = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    named = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *named, *words], cwd=folder, env=os.environ | nobody, capture_output=True, text=True, check=True
    )
    return done.stdout


def changed(folder: Path) -> list[str]:
    """What differs from the commit, files that are new to git included."""
    return [line[3:] for line in git(folder, "status", "--porcelain", "-uall").splitlines()]


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
