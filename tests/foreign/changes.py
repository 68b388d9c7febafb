"""Twenty-four things that a person is asked about: edits of one to 200 lines, commands, calls of a server."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.waiting import wait_until

from tests.foreign.served import Place
from tests.foreign.terminal import PATIENCE_S, Call, Terminal

SERVER = Path(__file__).parents[1] / "downstream" / "peer.py"
WIDE = {3: 52, 6: 46, 9: 46, 12: 44}  # columns of the changed lines, by the size of an edit; others have short ones
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 50, 80, 120, 200)
LONG_LINE = (
    "    raise ValueError('the quick brown fox jumps over the lazy dog and goes on for a long time, ' + str(limit))"
)
LONG_COMMAND = shlex.split(
    "find . -name *.pyc -newer setup.cfg -not -path ./build/* -delete -print0 -maxdepth 7 -mindepth 1 -type f"
)


@dataclass(frozen=True)
class Change:
    """A call that asks, and what of it a person has to have seen before they can approve it.

    `before`: the files that it changes, by path. `is_plan`: the call makes a plan, which another one applies."""

    call: Call
    seen: tuple[str, ...]
    before: Mapping[str, str] = field(default_factory=dict)
    is_plan: bool = False


def make_changes() -> dict[str, Change]:
    """The changes by name."""
    edits = {f"edit-{size}": _edit(f"src/app/settings_{size}.py", *_texts(size)) for size in SIZES}
    return edits | dict(_others())


def _others() -> Iterator[tuple[str, Change]]:
    before = f"def check(limit):\n{LONG_LINE}\n"
    edit = _edit("src/app/check.py", before, before.replace("lazy dog", "lazy cat"))
    yield "long-line", Change(edit.call, ("lazy dog", "lazy cat"), edit.before)
    several = {f"src/{name}.py": _texts(size) for name, size in (("a", 20), ("b", 14), ("c", 10))}
    edits = [{"path": path, "old_string": old, "new_string": new} for path, (old, new) in several.items()]
    lines = tuple(line for texts in several.values() for line in _changed(*texts))
    texts = {path: old for path, (old, _) in several.items()}
    yield "several-files", Change(_calls("plan_edits", edits=edits), lines, texts, is_plan=True)
    for name, argv in (("command", ["echo", "tests/unit"]), ("long-command", LONG_COMMAND)):
        yield name, Change(_calls("run_command", argv=argv), (shlex.join(argv),))
    for name, text in (("call", "a wrong total"), ("long-call", "".join(f"line {n} of it\n" for n in range(31)))):
        yield name, Change(_calls("tracker__echo", text=text), tuple(text.splitlines()))


def _texts(size: int) -> tuple[str, str]:
    """A text before and after a change of so many lines: pairs, and an odd one added; every other change has lines
    between its pairs, which stay."""
    width, pairs = WIDE.get(size, 0), range(1, size // 2 + 1)
    old = "".join(
        f"value_{n} = old_{n:03}  ".ljust(width, "=").rstrip() + "\n" + f"keep_{n} = True\n" * (size % 2 == 0)
        for n in pairs
    )
    added = (f"added_{size} = {size}  ".ljust(width, "=").rstrip() + "\n") * (size % 2)
    return f"first = 1\n{old}", f"first = 1\n{old.replace('old_', 'new_')}{added}"


def _changed(old: str, new: str) -> tuple[str, ...]:
    """The changed lines with their signs."""
    before, after = old.splitlines(), new.splitlines()
    removed = (f"- {line}" for line in before if line not in after)
    return *removed, *(f"+ {line}" for line in after if line not in before)


def _edit(path: str, old: str, new: str) -> Change:
    return Change(_calls("edit_file", path=path, old_string=old, new_string=new), _changed(old, new), {path: old})


def _calls(tool: str, **arguments: object) -> Call:
    return "registry_call", {"name": tool, "arguments": arguments}


def lay_changes(place: Place, changes: Mapping[str, Change], settings: str = "") -> Place:
    """Write the files that the changes are about, and settings by which all of them can be asked about."""
    for change in changes.values():
        for path, text in change.before.items():
            file = place.workspace / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    place.home.mkdir(mode=0o700, exist_ok=True)
    server = f'[servers.tracker]\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\nsandbox = false\n'
    with (place.home / "kairos.toml").open("a") as file:
        file.write(f'commands = "bare"\n{server}{settings}')
    return place


def ask_about(shown: Terminal, name: str, change: Change, allow: Callable[[], object] = lambda: None) -> None:
    """Have the host's model make the change's call. `allow`: let it make one that asks nothing of ours."""
    shown.does(name, change.call)
    if change.is_plan:
        allow()
        plans = wait_until(  # between them may come what a host says of the task before
            lambda: set(re.findall(r"Plan ([0-9a-f]{32}):", "".join(shown.results()))), PATIENCE_S, shown.screen
        )
        (plan_id,) = plans
        shown.does(f"{name}-applied", _calls("apply_edit_plan", plan_id=plan_id))


def squeeze(text: str) -> str:
    """A text without what depends on a terminal's width: blanks, frames, and the arrow before a piece of a line."""
    return re.sub(r"[\s│┃↪]", "", text)
