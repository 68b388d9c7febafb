"""The conversations of a run that has several, each by the path of its phase.

Their prompts are made by the flow out of what was seen before, so no row has them: the run is built again from its
answers, and each request is asked what it said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kairos_mcp.core.messages import Completion, Message
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Answer, RecordedStep, RequestCompletion
from kairos_mcp.specs.build import LoadedSpec

_AGAIN = re.compile(r"/(?:repair|turn)-\d+$")  # a step that goes on with the conversation of the one that it is under


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation: the path of the phase that it is of, and its messages, the newest answer included."""

    path: str
    messages: tuple[Message, ...]


def talks(thawed: LoadedSpec, record: Iterable[RecordedStep]) -> list[Transcript]:
    """The conversations in the order in which they began. Raises ReplayDiffers where a row does not fit the flow."""
    runner = Runner(thawed.flow())
    found: dict[str, Transcript] = {}
    for row in record:
        step = runner.replay(row.path, row.digest, row.answer)
        if isinstance(step, RequestCompletion):
            path = _AGAIN.sub("", row.path)
            found[path] = Transcript(path, (*step.conversation, *_closing_turn(row.answer)))
    return list(found.values())


def _closing_turn(answer: Answer | None) -> tuple[Message, ...]:
    """The turn that ends a conversation, with the calls that nobody has answered in it yet."""
    match answer:
        case Completion(content=content, tool_calls=calls) if content.strip() or calls:
            return (Message("assistant", content, calls),)
        case _:
            return ()
