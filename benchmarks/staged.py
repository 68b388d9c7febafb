"""How often a person is asked in ten small tasks: each call alone, in a stage, and where something goes wrong in one.

Task N has 3 to 12 edits of small modules, with tests in between, now and then a new file or a deletion. The program
itself runs it by a script; a person approves all that is asked by `kairos-mcp approve`. Needs bubblewrap.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import shown

TESTS = ["python3", "-B", "-m", "unittest", "-q"]
WAYS = ("today", "staged", "copied", "denied", "stale", "unclear")
OTHERS = "# of somebody else\n"
UNCLEAR = "touch started; sleep 1; echo '# of a program' >> m0.py; rm started"
Files = dict[str, str]
Line = dict[str, Any]


@dataclass
class Task:
    """The files that a task finds, the calls that it makes, and the files that it has to leave."""

    files: Files
    calls: list[Line]
    wanted: Files


def figures(tasks: int = 10) -> dict[str, float]:
    result = dict[str, float]()
    for way in WAYS:
        asked, right = zip(*(_ask(number, way) for number in range(tasks)), strict=True)
        result |= {f"{way}_asked": sum(asked) / tasks, f"{way}_most": max(asked), f"{way}_right": sum(right)}
    reader = asyncio.run(shown.measure(shown.fix, commands="sandboxed", stage=True))
    return {**result, "fix_asked": reader.decided, "fix_chars": reader.shown}


def make_task(number: int) -> Task:
    """Make a task; its tests pass once every edit is made."""
    edits = min(3 + number, 12)
    modules = [f"m{at}.py" for at in range(max(2, edits // 2))]
    files = {name: f"# {name}\n\n\nVALUE = {at}\n\n\nLIMIT = {at}\n\n\n" for at, name in enumerate(modules)}
    files["old.py"] = "DEAD = 1\n"
    wanted, calls = dict(files), list[Line]()
    for edit in range(edits):
        if edit % 5 == 4:
            wanted[f"n{edit}.py"] = f"NEW = {edit}\n"
            calls.append(_call("write_file", path=f"n{edit}.py", content=f"NEW = {edit}\n"))
        else:
            path, name = modules[edit % len(modules)], "VALUE" if edit < len(files) else "LIMIT"
            old = next(line for line in wanted[path].splitlines() if line.startswith(name))
            new = f"{name} = {100 + edit}"
            wanted[path] = wanted[path].replace(old, new)
            calls.append(_call("edit_file", path=path, old_string=old, new_string=new))
        if edit % 3 == 1 or edit == edits - 1:
            calls.append(_call("run_command", argv=TESTS))
    if number % 2:
        calls.append(_call("run_command", argv=["rm", "old.py"]))
        del wanted["old.py"]
    cases = [f"    def test_{path[:-3]}(self): self.check({path!r}, {text!r})" for path, text in wanted.items()]
    head = ["import unittest", "class Tests(unittest.TestCase):"]
    check = "    def check(self, path, text): self.assertEqual(open(path).read(), text)"
    files["test_all.py"] = wanted["test_all.py"] = "\n".join([*head, check, *cases, ""])
    return Task(files, calls, wanted)


def _call(name: str, **arguments: Any) -> Line:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def _ask(number: int, way: str) -> tuple[int, bool]:
    """Run a task in one way; return how often a person was asked, and whether it left the right files."""
    task, done = make_task(number), {"content": "done"}
    lines = [*task.calls, done]
    if way == "denied":
        task.wanted["more.py"] = "MORE = 1\n"
        lines += [_call("write_file", path="more.py", content="MORE = 1\n"), done]
    elif way == "stale":
        task.wanted["m0.py"] += OTHERS
        lines = [*task.calls, _call("submit_changes"), _call("submit_changes"), done]
    elif way == "unclear":
        task.wanted["m0.py"] = task.files["m0.py"] + OTHERS + "# again\n"
        again = _call("edit_file", path="m0.py", old_string=OTHERS, new_string=f"{OTHERS}# again\n")
        program = _call("run_command", argv=["sh", "-c", UNCLEAR])
        drops = _call("submit_changes", drop=["m0.py"])
        lines = [*task.calls, program, _call("submit_changes"), drops, again, done]
    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as name:
        place = Path(name)
        (place / "ws").mkdir()
        for path, text in task.files.items():
            (place / "ws" / path).write_text(text)
        (place / "script.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with _saving(place) if way == "unclear" else _nothing():
            asked = sum(1 for _ in _decide(place, way))
        return asked, _read(place / "ws") == task.wanted


def _decide(place: Path, way: str) -> Iterator[str]:
    """Run the script of a place, and decide about each question; yield its key."""
    stage = ["--no-stage"] if way == "today" else ["--stage"]
    said = _kairos(place, way, "run", "Do it.", "--write", "--shell", "--limit", "rounds=60", *stage)
    before = _read(place / "ws")
    for nth in count():
        if not said["waiting"]:
            return
        key = said["waiting"][0]["key"]
        yield key
        assert way == "today" or nth or _read(place / "ws") == before, "something changed before the decision"
        if way == "denied" and nth == 0:
            said = _kairos(place, way, "deny", said["run_id"], key, "--feedback", "more.py as well")
            continue
        if way == "stale" and nth == 0:
            with (place / "ws/m0.py").open("a") as file:
                file.write(OTHERS)
        said = _kairos(place, way, "approve", said["run_id"], key)


def _kairos(place: Path, way: str, *words: str) -> dict[str, Any]:
    """Run a command there, and return what it prints: a run that waits, or has ended."""
    environ = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "HOME": str(place),
        "KAIROS_HOME": str(place / "state"),
        "KAIROS_SCRIPT": str(place / "script.jsonl"),
        **({"KAIROS_COMMANDS": "bare"} if way == "copied" else {}),
    }
    command = [sys.executable, "-m", "kairos_mcp", *words, "--json"]
    ran = subprocess.run(command, cwd=place / "ws", env=environ, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 3):
        raise RuntimeError(ran.stderr[-2_000:] + ran.stdout[-2_000:])
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@contextmanager
def _saving(place: Path) -> Iterator[None]:
    """Save m0.py as somebody else does while a program of the run changes it."""
    has_ended = threading.Event()

    def save() -> None:
        while not has_ended.wait(0.01):
            if any((place / "state").glob("stages/*/upper/started")):
                with (place / "ws/m0.py").open("a") as file:
                    file.write(OTHERS)
                return

    thread = threading.Thread(target=save)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _read(folder: Path) -> Files:
    found: Iterable[Path] = folder.rglob("*")
    return {str(path.relative_to(folder)): path.read_text() for path in found if path.is_file()}
