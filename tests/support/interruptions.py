"""Stops the code that writes files before any one of its lines, to do there what another program would, or a crash."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.tools.files import atomic_write, staging, transaction

WATCHED = frozenset(str(module.__file__) for module in (staging, transaction, atomic_write))


def struck(act: Callable[[], Any], blows: dict[int, Callable[[], None]]) -> tuple[Any, int]:
    """What the act gives when each blow falls before its line (from 1), and how many lines there were."""

    def strike(line: int) -> None:
        if line in blows:
            blows[line]()

    return _watched(act, strike)


def telling_lines(
    act: Callable[[], Any], folder: Path, blows: Mapping[int, Callable[[], None]] = MappingProxyType({})
) -> list[int]:
    """The lines before which a crash leaves something else in a folder than before the line above.

    Before any other line it leaves the same, and what is left is all that a later process finds.
    """
    found: list[int] = []
    left: object = None

    def look(line: int) -> None:
        nonlocal left
        if line in blows:
            blows[line]()
        if (now := _everything_in(folder)) != left:
            found.append(line)
            left = now

    _watched(act, look)
    return found


def _watched(act: Callable[[], Any], before_line: Callable[[int], None]) -> tuple[Any, int]:
    lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            lines += 1
            before_line(lines)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return act(), lines
    finally:
        sys.settrace(before)


def _everything_in(folder: Path) -> dict[Path, tuple[int, int, str | bytes | None]]:
    """Every path below a folder: its mode, how many names it has, and what it holds or leads to."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        held = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[path] = (status.st_mode, status.st_nlink, held)
    return found


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(act: Callable[[], Any]) -> Any:
    """What a forked child's act gives, as JSON; None where it was killed."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: the child uses none
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == (not text), "the child failed by itself"
    return json.loads(text) if text else None


def memory_in(folder: Path) -> ToolMemory:
    """A memory that outlives its process: a file for each name."""
    folder.mkdir(exist_ok=True)

    def file(name: str) -> Path:
        return folder / name.replace("/", "+")

    def keep(name: str, text: str) -> None:
        known = recall(name)
        if known is None:
            whole = file(name + ".new")
            whole.write_bytes(text.encode())
            whole.rename(file(name))
        elif known != text:
            raise ValueError(f"{name} is kept already, otherwise")

    def recall(name: str) -> str | None:
        return file(name).read_bytes().decode() if file(name).exists() else None

    return ToolMemory(keep, recall)
