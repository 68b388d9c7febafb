"""What a command's exit code means, and which one a run's report asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kairos_mcp.core.outcomes import RunStatus
    from kairos_mcp.views.run_report import RunReport

COMPLETED = 0
FAILED = 1
USAGE = 2  # wrong words, a wrong setting, an unknown run, agent or tool
WAITING = 3  # the run waits for an answer, or is paused
STOPPED = 4  # a guard ended the run: a limit, or one against running in circles
CANCELLED = 130  # cancelled, or interrupted with Ctrl-C

_EXIT_CODES: Mapping[RunStatus, int] = {
    "working": WAITING,
    "input_required": WAITING,
    "paused": WAITING,
    "completed": COMPLETED,
    "stopped": STOPPED,
    "failed": FAILED,
    "cancelled": CANCELLED,
}


def exit_code_of(report: RunReport) -> int:
    """Return the exit code for a run that has ended or waits."""
    return _EXIT_CODES[report.status]
