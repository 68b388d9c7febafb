"""The downstream servers of each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.downstream import DownstreamServers, open_downstream


@pytest.fixture
def downstream(tmp_path: Path) -> Iterator[DownstreamServers]:
    with open_downstream(tmp_path / "servers") as made:
        yield made
