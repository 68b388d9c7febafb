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


SWEPT = ("agents", "budgets", "core", "crash", "http", "ooda", "tasks", "teams", "telemetry")
SWEEPS = "slow and not foreign and not browser and not postgres"


def assert_folder_passes(server: str, folder: str, tmp_path: Path, *options: str) -> None:
    """Run the tests of a folder with their rows in the database; fails as they do, or where half are skipped."""
    report = tmp_path / "report.xml"
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", *options, folder),
        cwd=TESTS,
        env=os.environ | {postgres.CHOICE: server},
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


@pytest.mark.postgres
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_holds_of_the_file_holds_of_the_database(postgres_server: str, folder: str, tmp_path: Path) -> None:
    assert_folder_passes(postgres_server, folder, tmp_path)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("folder", SWEPT)
def test_whole_sweeps_of_the_file_hold_of_the_database(postgres_server: str, folder: str, tmp_path: Path) -> None:
    """Of the folders whose sweeps write rows."""
    assert_folder_passes(postgres_server, folder, tmp_path, "-m", SWEEPS)
