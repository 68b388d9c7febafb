"""A bench for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.downstream import Bench, bench_in


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path / "bench") as made:
        yield made
