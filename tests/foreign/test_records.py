"""What the matrix of clients says was recorded by the tests that ran it: held in the default run, without a client."""

from __future__ import annotations

import pytest

from tests.foreign.cells import CELLS, Cell
from tests.foreign.records import RUN, find_record, read_records
from tests.foreign.sessions import FEATURES, HARMS, SESSIONS, Harm, Session
from tests.foreign.table import PAGE, RECORDS, document


def test_the_page_is_made_of_the_records() -> None:
    assert PAGE.read_text() == document(read_records(RECORDS))


@pytest.mark.parametrize("place", [*SESSIONS, *CELLS], ids=str)
def test_each_cell_was_recorded_and_held_with_the_version_that_is_pinned(place: Session | Cell) -> None:
    cells = read_records(RECORDS)
    names = place.features if isinstance(place, Session) else (RUN,)
    found = [find_record(cells, place, name) for name in names]
    held = [record and (record["result"], record["version"]) for record in found]
    assert held == [("yes", place.client.pinned)] * len(names)


@pytest.mark.parametrize("session", SESSIONS, ids=str)
def test_what_a_client_lacks_is_a_feature_with_a_reason(session: Session) -> None:
    assert set(session.lacks) <= set(FEATURES)
    assert all(session.lacks.values())


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.name)
def test_what_was_recorded_of_a_behaviour_held(harm: Harm) -> None:
    cells = read_records(RECORDS)
    found = [record for place in harm.places if (record := find_record(cells, place, harm.recorded_as)) is not None]
    assert [record["result"] for record in found] == ["yes"] * len(found)
