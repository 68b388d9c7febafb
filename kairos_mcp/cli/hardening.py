"""Protect the secrets of this process: no other process of the same user reads its memory, no log line shows one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from types import TracebackType

from kairos_mcp.server.log_lines import write_log_lines

PR_SET_DUMPABLE = 4


def protect_secrets(environ: Mapping[str, str]) -> None:
    """Protect memory, log records and the traceback of a crash. Called once, before a command begins."""
    protect_memory()
    write_log_lines(environ, "text")
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
