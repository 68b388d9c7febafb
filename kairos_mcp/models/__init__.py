"""Who thinks: a Model is a function that completes. Where there is none, the step is handed out and waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kairos_mcp.core.messages import Completion, Message, Private
from kairos_mcp.core.steps import Failure, RequestCompletion, Sent


def _nothing_private(_turn: Message) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A step on its way to a model: its path in the run, what the flow asked, what the hands added, and how to find
    what a provider wants back of an earlier turn."""

    path: str
    step: RequestCompletion
    sent: Sent
    private: Callable[[Message], Private | None] = _nothing_private


Model = Callable[[ModelInput], Awaitable[Completion | Failure]]
