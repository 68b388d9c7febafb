from __future__ import annotations

import pytest
from support import postgres


@pytest.fixture(scope="session")
def server(postgres_server: str) -> str:
    return postgres_server


@pytest.fixture
def database(server: str) -> str:
    return postgres.make_schema(server)
