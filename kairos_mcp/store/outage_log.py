"""What the log says of a store that can't be used: one line when that begins, one when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock

from kairos_mcp.core.calendar import format_timestamp


class OutageLog:
    """Logs the outages that one part of a server meets, from whatever thread. `name`: of its logger. `on_change` is
    told since when the store has been away, by `time.monotonic`; or None, and how many seconds that lasted."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)
        self._lock = Lock()
        self._began: float | None = None
        self.on_change: Callable[[float | None, float], None] = lambda since, lasted: None

    def note(self, error: Exception, began: float | None = None) -> None:
        """Note that the store could not be used, for this reason. `began`: since when, by `time.monotonic`; now."""
        with self._lock:
            if self._began is not None:
                return
            self._began = time.monotonic() if began is None else began
            self.on_change(self._began, 0.0)
        self._log.warning("the store can't be used: %s", error)

    def end(self) -> None:
        """Note that the store was used."""
        with self._lock:
            if self._began is None:
                return
            lasted, self._began = time.monotonic() - self._began, None
            self.on_change(None, lasted)
        since = format_timestamp(int((time.time() - lasted) * 1000))
        self._log.warning("the store can be used again, after %.1f s, since %s", lasted, since)
