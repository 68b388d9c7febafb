"""Wake those who wait for a change of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

EVERY_RUN = "*"  # whoever waits for a change of any run waits for this one


class ChangeSignal:
    """Notified of each commit, of this process or another; whoever waits for a change of some runs waits for the next
    one that concerns them, so that many calls side by side don't wake each other."""

    def __init__(self, on_commit: Callable[[str], None] | None = None) -> None:
        self._on_commit = on_commit
        self._waiting: dict[str, set[asyncio.Event]] = {}  # by run id
        self.urgent_listeners = 0  # waits for which a client's call waits

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for a change."""
        return bool(self._waiting)

    def notify(self, run_id: str) -> None:
        """Wake everybody who waits for this run, or for any."""
        if self._on_commit is not None:
            self._on_commit(run_id)
        for event in (*self._waiting.get(run_id, ()), *self._waiting.get(EVERY_RUN, ())):
            event.set()

    def notify_all(self) -> None:
        """Wake everybody: another process has written, perhaps of any run."""
        for run_id in self._waiting:
            self.notify(run_id)

    async def wait(self, run_ids: Collection[str], within_s: float, *, urgent: bool = True) -> None:
        """Return at the next notification for one of these runs, or after `within_s` seconds.

        `urgent`: a client's call waits, so that commits of other processes are checked for more often.
        """
        changed, concerned = asyncio.Event(), set(run_ids)
        for run_id in concerned:
            self._waiting.setdefault(run_id, set()).add(changed)
        self.urgent_listeners += urgent
        try:
            async with asyncio.timeout(within_s):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            self.urgent_listeners -= urgent
            for run_id in concerned:
                self._waiting[run_id].discard(changed)
                if not self._waiting[run_id]:
                    del self._waiting[run_id]
