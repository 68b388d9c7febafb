"""Runs one measurement in an interpreter of its own, so that no figure rests on what another one has warmed or bent."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FORKED = False  # forks instead of interpreters, where only the running is tested and no figure is judged


def fresh(sample: Callable[..., Any], *arguments: Any, under: Sequence[str] = ()) -> Any:
    """What `sample(folder, *arguments)` returns, from a new interpreter and a new folder; `under`: strace and such."""
    with tempfile.TemporaryDirectory(prefix="kairos-bench-") as folder:
        if FORKED and not under:
            return _forked(sample.__module__, sample.__name__, folder, json.dumps(arguments))
        words = [sys.executable, "-m", "benchmarks.fresh", sample.__module__, sample.__name__, folder]
        ran = subprocess.run(
            [*under, *words, json.dumps(arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(ran.stdout)


def _forked(*words: str) -> Any:
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(writes, 1)
        code = 1
        try:
            _main(*words)
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    os.close(writes)
    with os.fdopen(reads, encoding="utf-8") as pipe:
        printed = pipe.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise ChildProcessError(f"{words}: {printed}")
    return json.loads(printed)


def _main(module: str, name: str, folder: str, arguments: str) -> None:
    sample = getattr(importlib.import_module(module), name)
    made = sample(Path(folder), *json.loads(arguments))
    print(json.dumps(asyncio.run(made) if inspect.iscoroutine(made) else made))


if __name__ == "__main__":
    _main(*sys.argv[1:])
