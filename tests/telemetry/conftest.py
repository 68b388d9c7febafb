"""A place, spans in memory, and a receiver; none of it without the extra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.app import Place, place_in

for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "prometheus_client"):
    pytest.importorskip(package, reason="needs kairos-mcp[telemetry], which the extra dev brings")

if TYPE_CHECKING:
    from support.telemetry import Collector, Telemetry


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
