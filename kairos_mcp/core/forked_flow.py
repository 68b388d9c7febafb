"""The law of a fork: a flow goes on at one of its steps as if it had been answered so far as an earlier run was.

Pure: the flow is built again, fed the answers of that run up to the step, and handed over there. What it yields from
then on are the steps of the new run; those before have no row in it, and nothing of them is charged to it. A fork is a
flow like any other, so a fork of a fork is one around the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kairos_mcp.core.errors import ReplayDiffers
from kairos_mcp.core.messages import Conversation, Message
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Answer, Flow, Gather, RequestCompletion, Step


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork begins: the path of the first step that is asked again, and the answers before it by path, in the
    order in which their steps were started. `words`: one more turn of the user, where that step asks a model."""

    path: str
    answers: Mapping[str, Answer]
    words: str = ""


def fork_flow(flow: Flow[Any], point: ForkPoint) -> Flow[Any]:
    """Run a flow, which has not been started, from the fork point on.

    Raises ReplayDiffers where these answers don't lead to that step, or more of the flow waits there than the step:
    then nobody could say what came before it.
    """
    request = _replay_to(flow, point)
    turn = _AddedTurn(point.words) if point.words else None
    while True:
        answer = yield request if turn is None else turn.add_to(request)
        try:
            request = flow.send(answer)
        except StopIteration as end:
            return end.value


def _replay_to(flow: Flow[Any], point: ForkPoint) -> Step | Gather[Any]:
    """Feed the flow its answers and return the steps that then wait."""
    newest: list[Step | Gather[Any]] = []
    runner = Runner(_watch(flow, newest))
    for path, answer in point.answers.items():
        if path not in runner.waiting:
            raise ReplayDiffers(path, "", "")
        runner.answer(path, answer)
    if runner.finished or point.path not in runner.waiting:
        raise ReplayDiffers(point.path, "", "")
    match newest.pop():
        case Gather(branches=branches) as gather:
            # Of a branch that is a flow, and so could not be started again, the steps have longer paths than its name.
            if runner.waiting.keys() == branches.keys():
                return gather
        case step:
            return step
    raise ReplayDiffers(point.path, "", "")


def _watch(flow: Flow[Any], newest: list[Step | Gather[Any]]) -> Flow[Any]:
    """Pass a flow through, and keep what it has asked for last."""
    answer: Any = None
    while True:
        try:
            request = flow.send(answer)
        except StopIteration as end:
            return end.value
        newest[:] = [request]
        answer = yield request


class _AddedTurn:
    """One more turn of the user, at the end of the conversation that the first step shows, and at the same place of
    each later one that goes on with it, as a repair does."""

    __slots__ = ("_asked", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked: Conversation | None = None

    def add_to(self, request: Step | Gather[Any]) -> Step | Gather[Any]:
        if not isinstance(request, RequestCompletion):
            return request
        shown = request.conversation
        if self._asked is None:
            self._asked = shown
        length = len(self._asked)
        if shown.digest_at(length) != self._asked.digest:
            return request
        extended = Conversation((*shown[:length], Message("user", self._text), *shown[length:]))
        return replace(request, conversation=extended, predecessor=None)
