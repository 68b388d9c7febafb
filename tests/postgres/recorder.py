"""A plugin for pytest: writes the statements that are executed on any state file into the folder that
KAIROS_STATEMENTS names, a file for each process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import apsw
import pytest

_executed: set[str] = set()


def _record(_cursor: object, statement: str, _bindings: object) -> bool:
    _executed.add(statement)
    return True


def _watch(connection: apsw.Connection) -> None:
    connection.exec_trace = _record


apsw.connection_hooks.append(_watch)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    folder = Path(os.environ["KAIROS_STATEMENTS"])
    (folder / f"{os.getpid()}.json").write_text(json.dumps(sorted(_executed)))
