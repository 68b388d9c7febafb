"""Live progress of a run on stderr: a line for each call that is done, a moving one for what is under way."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kairos_mcp.cli.output import call_line
from kairos_mcp.cli.speech import plain
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.views.run_report import Heartbeat

if TYPE_CHECKING:
    from rich.status import Status


class ProgressScreen:
    """`quiet` shows nothing. Without a terminal there is no moving line, only the lines that stay."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=quiet, markup=False, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._shown: set[str] = set()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def line(self, text: str) -> None:
        self._console.print(plain(text))

    def calls(self, calls: Iterable[JsonObject]) -> None:
        """Print the calls that were not printed yet."""
        for call in calls:
            if call["ref"] not in self._shown:
                self._shown.add(call["ref"])
                self.line(call_line(call))

    def beat(self, beat: Heartbeat) -> None:
        if self._status is not None:
            from rich.markup import escape

            of = "" if beat.rounds is None else f"/{beat.rounds}"
            price = f"${beat.nano_usd / 1e9:.4f}" if beat.nano_usd else ""
            parts = (f"round {beat.round}{of}", beat.text, price)
            self._status.update(escape(plain(" · ".join(part for part in parts if part))))
