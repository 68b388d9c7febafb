"""What one round runs, encodes, hashes and binds, early and late in a run: counted, not timed.

The counters stand in front of the doors that production code goes through (sha256, json's encoder, pydantic's
serialisers, the connections that apsw opens) and are put there before the app is imported, in an interpreter that
does nothing else. So nothing of the app is changed or patched, and nothing that it hashes or encodes can be missed
but by going to another library. Statements of the watcher, which runs by the clock, are left out by their text.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh

BY_THE_CLOCK = ("data_version", "select distinct run.owner", "from inbox where run")
SPAN = 10  # rounds over which a figure is taken, so that a digit more in a number does not show


class Counting:
    """Totals, and how they stood at each commit."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.at_commit: list[Counter[str]] = []

    def install(self) -> None:
        """Before kairos_mcp is imported: it takes these names as it finds them."""
        import apsw
        import pydantic
        import pydantic_core

        totals, sha256, to_json = self.totals, hashlib.sha256, pydantic_core.to_json
        make_adapter = pydantic.TypeAdapter.__init__

        class Hash:
            def __init__(self, content: bytes = b"") -> None:
                self._hash = sha256()
                self.update(content)

            def update(self, content: bytes) -> None:
                totals["hashed"] += len(content)
                self._hash.update(content)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._hash, name)

        def counted(encoder: Any) -> Any:
            def encode(*given: Any, **named: Any) -> Any:
                encoded = encoder(*given, **named)
                totals["encoded"] += len(encoded)
                return encoded

            return encode

        class Serializer:
            def __init__(self, serializer: Any) -> None:
                self._serializer, self.to_json = serializer, counted(serializer.to_json)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._serializer, name)

        def make_counted(adapter: Any, *given: Any, **named: Any) -> None:
            make_adapter(adapter, *given, **named)
            adapter.serializer = Serializer(adapter.serializer)

        def encode_text(encoder: json.JSONEncoder, value: Any) -> str:
            text = encode(encoder, value)
            totals["encoded"] += len(text)
            return text

        encode = json.JSONEncoder.encode
        # counted where they stand: in a process of its own, so that the app itself needs no seam for a benchmark
        hashlib.sha256 = Hash  # type: ignore[assignment, misc]  # see above
        json.JSONEncoder.encode = encode_text  # type: ignore[method-assign]  # see above
        pydantic_core.to_json = counted(to_json)
        pydantic.TypeAdapter.__init__ = make_counted  # type: ignore[method-assign]  # see above
        apsw.connection_hooks.append(self._trace)

    def _trace(self, connection: Any) -> None:
        def ran(_cursor: object, statement: str, bindings: Any) -> bool:
            if not any(part in statement for part in BY_THE_CLOCK):
                self.totals["statements"] += 1
                self.totals["bound"] += sum(len(each) for each in bindings or () if isinstance(each, (str, bytes)))
            if statement == "commit":
                self.at_commit.append(Counter(self.totals))
            return True

        connection.exec_trace = ran


async def counted(folder: Path, rounds: int) -> dict[str, float]:
    """Per round over the last rounds of a run of so many."""
    counting = Counting()
    counting.install()
    from benchmarks import subjects

    async with subjects.open_app(subjects.settings(folder, rounds, "process")) as app:
        runs = await subjects.start(app, rounds, ["measured"])
        await subjects.ended(app, runs)
        await subjects.must_have_run(app, runs, rounds)
    last = len(counting.at_commit) - 3  # the final answer comes after the last whole round
    late, early = counting.at_commit[last], counting.at_commit[last - 2 * SPAN]
    return {name: (late[name] - early[name]) / SPAN for name in late}


def figures(few: int = 100, many: int = 1_000) -> dict[str, float]:
    at_few, at_many = fresh(counted, few), fresh(counted, many)
    measured = {
        f"{name}_at_{rounds}": found[name] for rounds, found in ((few, at_few), (many, at_many)) for name in at_few
    }
    return measured | {f"{name}_grows": at_many[name] / at_few[name] for name in at_few}
