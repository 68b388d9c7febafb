"""A place, spans in memory, a receiver. Without the extra telemetry, which dev brings, none of these tests is run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.app import Place, place_in

if TYPE_CHECKING:
    from support.telemetry import Collector, Telemetry

try:
    import_module("kairos_mcp.telemetry.providers")
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


@pytest.fixture
def telemetry() -> Telemetry:
    from support.telemetry import Telemetry

    return Telemetry()


@pytest.fixture
def receiver() -> Iterator[Collector]:
    from support.telemetry import collector

    with collector() as found:
        yield found
