from __future__ import annotations

import os

import pytest
from support import postgres


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> str:
    own = tmp_path_factory.getbasetemp()
    return postgres.start_server((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "postgres")


@pytest.fixture
def database(server: str) -> str:
    return postgres.make_schema(server)
