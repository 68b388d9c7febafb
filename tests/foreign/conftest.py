"""Where the clients' environments lie, and where the results of a session go."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.environs import Environ, Missing, make_environment


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
def results(cache: Path) -> Iterator[list[dict[str, Any]]]:
    """What the session found, written to `$KAIROS_FOREIGN_RESULTS` or into the cache; table.py reads it."""
    found: list[dict[str, Any]] = []
    yield found
    target = Path(os.environ.get("KAIROS_FOREIGN_RESULTS", cache / "results.json"))
    target.write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="session")
def features(cache: Path) -> Iterator[list[dict[str, Any]]]:
    """What the session found of the clients' features, written to `$KAIROS_FOREIGN_FEATURES` or into the cache."""
    found: list[dict[str, Any]] = []
    yield found
    if found:
        target = Path(os.environ.get("KAIROS_FOREIGN_FEATURES", cache / "features.json"))
        target.write_text(json.dumps(found, indent=1) + "\n")
