"""How often a person is asked in ten small tasks: each call alone, in a stage, and where something goes wrong in one.

Task N has 3 to 12 edits of small modules, with tests in between, now and then a new file or a deletion. The program
itself runs it by a script, and a person approves all that is asked. Needs bubblewrap.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import shown
from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

TESTS = ["python3", "-B", "-m", "unittest", "-q"]
WAYS = ("today", "staged", "copied", "denied", "stale", "unclear")
OTHERS = "# of somebody else\n"
UNCLEAR = "touch started; sleep 1; echo '# of a program' >> m0.py; rm started"
PERSON = shown.PERSON
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
            asked = asyncio.run(_decide(place, way))
        return asked, _read(place / "ws") == task.wanted


async def _decide(place: Path, way: str) -> int:
    """Run the script of a place, and decide about each question; return how many there were."""
    found = load_settings(
        Flags(home=str(place / "state"), workspaces=(str(place / "ws"),)),
        {"KAIROS_SCRIPT": str(place / "script.jsonl")},
    )
    settings = replace(found, stage=way != "today", commands="bare" if way == "copied" else "sandboxed")
    before, asked = _read(place / "ws"), 0
    async with App.open(settings, via="command") as app:
        request = PlannerRequest("Do it.", tools=("*",), limits=Limits(rounds=60))
        run = (await app.runs.start(request, PERSON)).run_id
        while True:
            await app.runs.wait((run,), until="rest", wait_s=600, caller=PERSON)
            report = await app.runs.report(run, PERSON)
            if not report.waiting:
                return asked
            key, first = report.waiting[0]["key"], asked == 0
            assert way == "today" or not first or way == "unclear" or _read(place / "ws") == before, "changed unasked"
            asked += 1
            if way == "stale" and first:
                with (place / "ws/m0.py").open("a") as file:
                    file.write(OTHERS)
            if way == "denied" and first:
                await app.answers.decide(run, key, "deny", "more.py as well", PERSON)
            else:
                await app.answers.decide(run, key, "approve", None, PERSON)


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
