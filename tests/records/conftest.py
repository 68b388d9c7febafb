"""The shell of the commands."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.app import Place
from support.commands import Said, command


@pytest.fixture
def kairos(place: Place) -> Callable[..., Said]:
    """The real command on the state folder of the place."""

    def run_kairos(*words: str, typed: bytes = b"", **environ: str) -> Said:
        own = {"KAIROS_HOME": str(place.home), "NO_COLOR": "1", "COLUMNS": "200"}
        return command(*words, folder=place.workspace, environ={**os.environ, **own, **environ}, typed=typed)

    return run_kairos
