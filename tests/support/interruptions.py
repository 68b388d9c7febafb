"""Stops the code that writes files before any one of its lines, to do there what another program would, or a crash."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from kairos_mcp.core.tool import ToolMemory
from kairos_mcp.tools.files import atomic_write, staging, transaction

WATCHED = frozenset(str(module.__file__) for module in (staging, transaction, atomic_write))


def struck(act: Callable[[], Any], blows: dict[int, Callable[[], None]]) -> tuple[Any, int]:
    """What the act gives when each blow falls before its line (from 1), and how many lines there were."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            lines += 1
            if lines in blows:
                blows[lines]()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return act(), lines
    finally:
        sys.settrace(before)


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
