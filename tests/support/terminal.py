"""A command on a terminal of its own: what it shows there, and what a person types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from support.forked_program import start

PATIENCE_S = 30.0
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal with `kairos-mcp` in it. `text` is all that it has shown, without colours and movements."""

    def __init__(self, *words: str, folder: Path, environ: Mapping[str, str], columns: int = 100) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        given = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        plain = {name: value for name, value in environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        self._program = start(words, cwd=folder, env=plain | {"TERM": "xterm"}, **given)
        self._theirs = theirs  # held open, so that what was shown last can still be read
        self.raw = ""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._program.kill()
        self._program.wait(PATIENCE_S)
        os.close(self._theirs)
        os.close(self._ours)

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def text(self) -> str:
        return _CONTROLS.sub("", self.raw).replace("\r\n", "\n").replace("\r", "")

    def shows(self, part: str) -> str:
        """Wait until this is shown, after what was waited for before, and return what stands between."""
        until = time.monotonic() + PATIENCE_S
        while (at := self.text.find(part, self._seen)) < 0:
            assert time.monotonic() < until, self.text
            if not self._read():
                assert self._program.poll() is None, self.text
        before, self._seen = self.text[self._seen : at], at + len(part)
        return before

    def types(self, line: str) -> None:
        """Type a line, and Enter, once what is typed is shown: a question takes no answer in its first moment."""
        self._wait_for_echo()
        self.types_at_once(line)

    def _wait_for_echo(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not termios.tcgetattr(self._theirs)[3] & termios.ECHO:
            assert time.monotonic() < until, self.text
            self._read()

    def types_at_once(self, line: str) -> None:
        """Type a line, and Enter, whatever the program does."""
        os.write(self._ours, f"{line}\n".encode())

    def leaves(self) -> None:
        """Press Ctrl-D."""
        self._wait_for_echo()
        os.write(self._ours, b"\x04")

    def interrupts(self) -> None:
        """Press Ctrl-C, as the terminal of a shell passes it on."""
        self._program.send_signal(signal.SIGINT)

    def kills(self) -> None:
        self._program.kill()
        self._program.wait(PATIENCE_S)

    def ends(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        until = time.monotonic() + PATIENCE_S
        while self._program.poll() is None:
            assert time.monotonic() < until, self.text
            self._read()
        while self._read():
            pass
        assert "Traceback" not in self.text, self.text
        code = self._program.poll()
        assert code is not None
        return code

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 0.02)[0]:
            return False
        self.raw += os.read(self._ours, 65_536).decode("utf-8", "replace")
        return True
