"""A place for whole runs, and a server of the network that keeps what it hears."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.app import Place, place_in
from support.network import Peer, peer


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = place_in(tmp_path)
    (made.workspace / "customers.md").write_text("customers: ACME pays 1.2M, contact jane@acme.test, code 463820\n")
    return made


@pytest.fixture
def web() -> Iterator[Peer]:
    with peer() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Peer]:
    with peer() as made:
        yield made
