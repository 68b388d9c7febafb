"""Where the clients' environments lie, and where the results of a session go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.foreign.environs import Environ, Missing, make_environment
from tests.foreign.records import Records


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest) -> Path:
    """`$KAIROS_FOREIGN_CACHE`, or a folder in pytest's cache."""
    named = os.environ.get("KAIROS_FOREIGN_CACHE")
    folder = Path(named).absolute() if named else request.config.cache.mkdir("kairos-foreign")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def environment(cache: Path) -> Callable[[Environ], Path]:
    """The folder of a client's environment; the test is skipped where the machine can't have it."""

    def make_or_skip(environ: Environ) -> Path:
        try:
            return make_environment(environ, cache)
        except Missing as missing:
            pytest.skip(f"this machine lacks {missing}")

    return make_or_skip


@pytest.fixture(scope="session")
def records(cache: Path) -> Records:
    """What is found, written to `$KAIROS_FOREIGN_RECORDS` or into the cache; table.py reads it."""
    return Records(Path(os.environ.get("KAIROS_FOREIGN_RECORDS", cache / "records.json")))
