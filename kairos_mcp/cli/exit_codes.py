"""What a command's exit code means, and which one a run's report asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kairos_mcp.views.run_report import RunReport

COMPLETED = 0
FAILED = 1
USAGE = 2  # wrong words, a wrong setting, an unknown run, agent or tool
WAITING = 3  # the run waits for an answer, or is paused
CANCELLED = 130  # cancelled, or interrupted with Ctrl-C


def exit_code_of(report: RunReport) -> int:
    """The exit code for a run that has come to rest."""
    match report.status:
        case "completed":
            return COMPLETED
        case "failed":
            return FAILED
        case "cancelled":
            return CANCELLED
        case _:
            return WAITING
