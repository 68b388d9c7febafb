"""Keeps the keys of this process to itself: no other process of the same user reads its memory, no log shows one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kairos_mcp.core.redaction import Redactor

PR_SET_DUMPABLE = 4


class RedactingFormatter(logging.Formatter):
    """A log's lines, tracebacks included, without secrets."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._environ = environ

    @cached_property
    def _mask(self) -> Redactor:
        from kairos_mcp.core.redaction import Redactor  # at the first line: most processes log nothing

        return Redactor.of(self._environ)

    def format(self, record: logging.LogRecord) -> str:
        return self._mask.text(super().format(record)).text


def guard(environ: Mapping[str, str]) -> None:
    """To be called once, when a command begins that holds keys or starts tools."""
    close_memory()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(environ))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    untold = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            untold(kind, error, where)
        else:
            logging.getLogger("kairos_mcp").critical("it broke", exc_info=(kind, error, where))

    sys.excepthook = told


def close_memory() -> None:
    """Linux alone: other processes of this user, the commands that tools start among them, can't read our memory or
    environment (`/proc/PID/environ`, ptrace), and no core is dumped. What is executed later may be read again."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError):
        return
