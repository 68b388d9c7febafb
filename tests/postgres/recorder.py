"""A plugin for pytest: writes the statements that the program itself executes on any state file, and no test by itself,
into the folder that KAIROS_STATEMENTS names, a file for each process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import apsw
import pytest

import kairos_mcp
from kairos_mcp.store import connection

PROGRAM = str(Path(kairos_mcp.__file__).parent)

_executed: set[str] = set()


def _record(_cursor: object, statement: str, _bindings: object) -> bool:
    caller = sys._getframe(1)
    while caller.f_code.co_filename == connection.__file__ and caller.f_back is not None:
        caller = caller.f_back
    if caller.f_code.co_filename.startswith(PROGRAM):
        _executed.add(statement)
    return True


def _watch(opened: apsw.Connection) -> None:
    opened.exec_trace = _record


apsw.connection_hooks.append(_watch)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    folder = Path(os.environ["KAIROS_STATEMENTS"])
    (folder / f"{os.getpid()}.json").write_text(json.dumps(sorted(_executed)))
