"""Read what a person types, beside whatever else is going on, and do with Ctrl-C what it means at that moment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from anyio import CancelScope

T = TypeVar("T")

_CHUNK_BYTES = 65_536


def is_person_there() -> bool:
    """Whether somebody can be asked: what is shown and what is typed are both a terminal's."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Keyboard:
    """The lines of stdin. Ctrl-C while a line is awaited ends the wait; at any other time it does `on_interrupt`."""

    def __init__(self) -> None:
        self.on_interrupt: Callable[[], Awaitable[None]] | None = None
        self._waiting: CancelScope | None = None
        self._typed = b""
        self._has_ended = False

    async def watch_interrupts(self) -> None:
        """Handle each Ctrl-C until this is cancelled."""
        import anyio

        if os.name == "nt":  # no receiver of signals there: Ctrl-C ends the program, the run can be cancelled later
            return
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                if self._waiting is not None:
                    self._waiting.cancel()
                elif self.on_interrupt is not None:
                    await self.on_interrupt()
                else:
                    raise KeyboardInterrupt

    async def ask(self, question: str, *, fresh: bool = False) -> str | None:
        """Print a question to stderr and return the line that answers it; None if there is none: Ctrl-D, Ctrl-C.

        `fresh`: what was typed before the question was there is no answer to it.
        """
        if fresh:
            self._forget_typed()
        sys.stderr.write(question)
        sys.stderr.flush()
        line = await self.read_line()
        if line is None and question:
            sys.stderr.write("\n")
        return line

    async def read_line(self) -> str | None:
        """Return the next line without its end and the space around it; None after the last, or on Ctrl-C."""
        import anyio

        line = None
        with anyio.CancelScope() as self._waiting:
            line = await self._next_line()
        self._waiting = None
        return line

    async def _next_line(self) -> str | None:
        while b"\n" not in self._typed and not self._has_ended:
            chunk = await _read_when_ready(sys.stdin.fileno())
            self._typed += chunk
            self._has_ended = not chunk
        line, _, self._typed = self._typed.partition(b"\n")
        if self._has_ended and not line and not self._typed:
            self._has_ended = not sys.stdin.isatty()  # a terminal goes on after Ctrl-D
            return None
        return line.decode("utf-8", "replace").strip()

    def _forget_typed(self) -> None:
        if sys.stdin.isatty():
            import termios

            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            self._typed = b""


def confirm(question: str) -> bool:
    """Ask a question of the person at the terminal, outside of an open app: nothing is held while they think."""
    typed = run_on_keyboard(partial(Keyboard.ask, question=f"{question}? [y/N] ", fresh=True))
    return (typed or "").casefold() in ("y", "yes")


def run_on_keyboard(act: Callable[[Keyboard], Awaitable[T]]) -> T:
    """Have something asked, outside of an open app."""
    import anyio

    return anyio.run(act, Keyboard())


async def _read_when_ready(descriptor: int) -> bytes:
    """Read once there is something; empty at the end."""
    import anyio

    with suppress(OSError):  # of a file, which can't be waited for, and is always ready
        await anyio.wait_readable(descriptor)
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError:
        return b""  # the terminal is gone
