"""Read what a person types, beside whatever else is going on, and do with Ctrl-C what it means at that moment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kairos_mcp.cli.escape import escape_control
from kairos_mcp.cli.terminal import mark

if TYPE_CHECKING:
    from anyio import CancelScope

T = TypeVar("T")

SEEN_S = 0.3  # for which a question is there before a key can answer it
_CHUNK_BYTES = 65_536


def is_person_there() -> bool:
    """Whether somebody can be asked: what is shown and what is typed are both a terminal's."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Keyboard:
    """The lines of stdin. Ctrl-C while a line is awaited ends the wait; at any other time it does `on_interrupt`.

    `was_left`: the newest question got no line, but Ctrl-C or Ctrl-D.
    """

    def __init__(self) -> None:
        self.was_left = False
        self.on_interrupt: Callable[[], Awaitable[None]] | None = None
        self._waiting: CancelScope | None = None
        self._typed = b""
        self._has_ended = False
        self._mode: list[Any] | None = None  # the terminal's usual one, once typing has been hidden
        self._is_hidden = False

    @contextmanager
    def typing_hidden(self) -> Iterator[None]:
        """Until the block ends, what is typed is not shown among what is printed. It waits for the next question."""
        if not _owns_terminal():
            yield
            return
        import termios

        self._mode = termios.tcgetattr(sys.stdin.fileno())
        self._is_hidden = True
        _hide_typing(self._mode)
        try:
            yield
        finally:
            self._is_hidden = False
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._mode)

    @contextmanager
    def _typing_shown(self) -> Iterator[None]:
        """Take what was typed while it was hidden, and show what is typed until the block ends."""
        if self._mode is not None:
            self._typed += _take_typed(self._mode)
        try:
            yield
        finally:
            if self._mode is not None and self._is_hidden:
                _hide_typing(self._mode)

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

        `fresh`: the question has a question's mark, and what is typed before it has been there for SEEN_S seconds is no
        answer to it: it was typed for something else.
        """
        import anyio

        line = None
        with anyio.CancelScope() as self._waiting, self._typing_shown():
            if fresh:
                await self._show_unanswered(mark(question, sys.stderr))
            else:
                ahead, ends, _ = self._typed.partition(b"\n") if sys.stdin.isatty() else (b"", b"", b"")
                _show(question + escape_control(ahead.decode("utf-8", "replace")) + ("\n" if ends else ""))
            line = await self._next_line()
        self._waiting = None
        self.was_left = line is None
        if line is None and question:
            _show("\n")
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

    async def _show_unanswered(self, question: str) -> None:
        """Show a question for SEEN_S seconds, in which what is typed is not shown, and is dropped as all before it."""
        if not sys.stdin.isatty():
            return _show(question)
        import termios

        import anyio

        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        silent = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
        termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
        try:
            _show(question)
            await anyio.sleep(SEEN_S)
        finally:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)  # what was typed is dropped
            self._typed = b""


def _owns_terminal() -> bool:
    """Whether stdin is a terminal whose mode this process may change: another one in the foreground may not lose it."""
    if os.name == "nt" or not sys.stdin.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # it is not the terminal that this process belongs to, and so no shell's
        return True


def _hide_typing(shown: list[Any]) -> None:
    import termios

    hidden = [*shown[:3], shown[3] & ~termios.ECHO, *shown[4:]]
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, hidden)


def _take_typed(shown: list[Any]) -> bytes:
    """Take what was typed while it was hidden, also of a line without an end, and have typing shown from here on."""
    import termios

    terminal, typed = sys.stdin.fileno(), b""
    raw = [*shown[:3], shown[3] & ~(termios.ECHO | termios.ICANON), *shown[4:6], [*shown[6]]]
    raw[6][termios.VMIN] = raw[6][termios.VTIME] = 0  # a read returns at once
    termios.tcsetattr(terminal, termios.TCSANOW, raw)
    with suppress(OSError):  # the terminal is gone
        while chunk := os.read(terminal, _CHUNK_BYTES):
            typed += chunk
    termios.tcsetattr(terminal, termios.TCSANOW, shown)
    return typed.replace(b"\0", b"")  # Ctrl-D ends a question, and none was asked


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


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
