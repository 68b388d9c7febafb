"""What the tests say of the store in a file, they say of PostgreSQL: folders of tests once more, with their rows there.

What is about the file itself is skipped with its reason (`state_file`); each run counts those.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import postgres

TESTS = Path(__file__).parents[1]
FOLDERS = (
    "agents", "approvals", "budgets", "commands", "core", "crash", "downstream", "histories", "http", "identity",
    "ooda", "page", "providers", "records", "registry", "sampling", "secrets", "server", "tasks", "teams", "telemetry",
    "tools",
)  # fmt: skip


@pytest.mark.postgres
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_holds_of_the_file_holds_of_the_database(postgres_server: str, folder: str, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", folder),
        cwd=TESTS,
        env=os.environ | {postgres.CHOICE: postgres_server},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    cases = ElementTree.parse(report).findall(".//testcase")
    reasons = Counter(skip.get("message", "") for case in cases for skip in case.findall("skipped"))
    print(f"{folder}: {len(cases)} tests, {reasons.total()} skipped: {dict(reasons)}")
    assert done.returncode == 0, done.stdout[-10_000:]
    assert reasons.total() < len(cases) / 2
