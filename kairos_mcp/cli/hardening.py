"""Protect the secrets of this process: no other process of the same user reads its memory, no log line shows one."""

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
    """Formats log records, tracebacks included, with secrets redacted."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._environ = environ

    @cached_property
    def _redactor(self) -> Redactor:
        from kairos_mcp.core.redaction import Redactor  # at the first record: most processes log nothing

        return Redactor.from_environ(self._environ)

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.redact_text(super().format(record)).text


def protect_secrets(environ: Mapping[str, str]) -> None:
    """Protect memory, log records and the traceback of a crash. Called once, before a command begins."""
    protect_memory()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(environ))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    default_hook = sys.excepthook

    def log_crash(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            default_hook(kind, error, traceback)
        else:
            logging.getLogger("kairos_mcp").critical("unexpected failure", exc_info=(kind, error, traceback))

    sys.excepthook = log_crash


def protect_memory() -> None:
    """Keep other processes of this user, such as commands that tools start, from reading this process's memory and
    environment (`/proc/PID/environ`, ptrace), and write no core dump. On Linux alone; an exec undoes it."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError):
        return
