"""What parts of a server count that know of no telemetry: refused tokens, outages of the store, failures of providers.

One tally serves the process, as one set of exporters does. Metrics are read from it; without telemetry nobody reads it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from threading import Lock

from kairos_mcp.telemetry.names import (
    COUNTED,
    MAX_LABEL_VALUES,
    OTHER,
    STORE_OUTAGE_SECONDS,
    STORE_OUTAGES,
    Metric,
)


class Tally:
    """Counts by metric and labels, from any thread."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[tuple[str, ...]]] = {
            metric.name: Counter(dict.fromkeys(zero, 0)) for metric, zero in COUNTED.items()
        }
        self._lock = Lock()
        self.store_away_since: float | None = None

    def add(self, metric: Metric, *labels: str, amount: float = 1) -> None:
        """Add to what is counted under these values of the metric's labels."""
        with self._lock:
            counts = self._counts[metric.name]
            known = labels in counts or len(counts) < MAX_LABEL_VALUES
            counts[labels if known else (OTHER,) * len(labels)] += amount  # type: ignore[assignment]  # also seconds

    def read(self, metric: Metric) -> Mapping[tuple[str, ...], float]:
        """Return what was counted so far."""
        with self._lock:
            return dict(self._counts[metric.name])

    def note_outage(self, since: float | None, lasted: float) -> None:
        """Count an outage of the store that begins, `since` then by `time.monotonic`; or ends (None) after so long."""
        self.store_away_since = since
        if since is None:
            self.add(STORE_OUTAGE_SECONDS, amount=lasted)
        else:
            self.add(STORE_OUTAGES)

    def read_outage(self) -> Mapping[tuple[str, ...], float]:
        """Return for how many seconds this process has been without its store."""
        since = self.store_away_since
        return {(): 0.0 if since is None else time.monotonic() - since}


PROCESS_TALLY = Tally()
"""The tally of this process."""
