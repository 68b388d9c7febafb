"""What the tests of this folder found, cell by cell: a later session's cells take the place of earlier ones."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.foreign.cells import Cell
from tests.foreign.sessions import Session

Record = dict[str, Any]
RUN = "planner run"


class Records:
    """The cells that lie in a file; each new one is written as soon as it was found."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @contextmanager
    def record(self, place: Session | Cell, feature: str, **more: Any) -> Iterator[Record]:
        """Keep a cell: `result` is yes if the block ends, no if it raises. `how` may be filled in inside."""
        record: Record = {
            "client": place.client.name,
            "transport": place.transport,
            "era": place.era,
            "feature": feature,
            "way": place.way if isinstance(place, Cell) else "",
            "result": "no",
            "how": "",
            "date": datetime.now(UTC).date().isoformat(),
            **more,
        }
        try:
            yield record
            record["result"] = "yes"
        finally:
            self._save(record)

    def _save(self, record: Record) -> None:
        """Put a cell in the place of an earlier one at once; other processes may do so at the same time."""
        with self._file.open("a+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            cells = read_records(self._file) | {_key(record): record}
            lines = [json.dumps(cells[key]) for key in sorted(cells)]
            self._file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def read_records(file: Path) -> dict[tuple[str, ...], Record]:
    """The cells of a file, by client, transport, era, feature and way."""
    text = file.read_text()
    return {_key(record): record for record in json.loads(text or "[]")}


def find_record(cells: dict[tuple[str, ...], Record], place: Session | Cell, feature: str) -> Record | None:
    """The cell of a session, or of a run, as it was last found."""
    way = place.way if isinstance(place, Cell) else ""
    return cells.get((place.client.name, place.transport, place.era, feature, way))


def _key(record: Record) -> tuple[str, ...]:
    return tuple(record[name] for name in ("client", "transport", "era", "feature", "way"))
