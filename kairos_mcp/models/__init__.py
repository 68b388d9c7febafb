"""Who thinks: a Model is a function that completes. Where there is none, the step is handed out and waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kairos_mcp.messages import Completion
from kairos_mcp.steps import Failure, RequestCompletion, Sent


@dataclass(frozen=True, slots=True)
class Asked:
    """A step on its way to a model: its path in the run, what the flow asked, what the hands added."""

    path: str
    step: RequestCompletion
    sent: Sent


Model = Callable[[Asked], Awaitable[Completion | Failure]]
