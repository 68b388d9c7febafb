"""What the log says of a store that can't be used: one line when that begins, one when it is over."""

from __future__ import annotations

import logging
import time

from kairos_mcp.core.errors import KairosError


class OutageLog:
    """Logs the outages that one part of a server meets. `name`: of its logger."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)
        self._began: float | None = None

    def note(self, error: KairosError) -> None:
        """Note that the store could not be used, for this reason."""
        if self._began is None:
            self._began = time.monotonic()
            self._log.warning("the store can't be used: %s", error)

    def end(self) -> None:
        """Note that the store was used."""
        if self._began is not None:
            self._log.warning("the store can be used again, after %.1f s", time.monotonic() - self._began)
            self._began = None
