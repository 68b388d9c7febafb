"""A place for each test, and the shell of the commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.app import Place, place_in
from support.commands import Said, command


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "place")


@pytest.fixture
def kairos(place: Place) -> Callable[..., Said]:
    """The real command on the state folder of the place."""

    def run(*words: str, typed: bytes = b"", **environ: str) -> Said:
        own = {"KAIROS_HOME": str(place.home), "NO_COLOR": "1", "COLUMNS": "200"}
        return command(*words, folder=place.workspace, environ={**os.environ, **own, **environ}, typed=typed)

    return run
