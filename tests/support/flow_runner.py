"""A tiny runner that feeds answers to a flow: no store, no clock, no model. What it was asked is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.steps import Answer, Branch, CallTool, Failed, Flow, Gather, GiveUp, RequestCompletion, Step

Answers = Sequence[Answer] | Mapping[str, Answer]
Tools = Callable[[CallTool], Answer]


def echo(step: CallTool) -> ToolResult:
    """A tool that gives a different result for each call."""
    return ToolResult(f"result of {step.name}")


@dataclass
class Fed:
    """A flow's outcome with every step that it yielded, in order, and its answer."""

    outcome: Any = None
    asked: list[tuple[str, Step, Answer]] = field(default_factory=list)
    gathers: list[list[str]] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    @property
    def requests(self) -> list[RequestCompletion]:
        return [step for _, step, _ in self.asked if isinstance(step, RequestCompletion)]

    @property
    def calls(self) -> list[CallTool]:
        return [step for _, step, _ in self.asked if isinstance(step, CallTool)]

    @property
    def digests(self) -> list[tuple[str, bytes]]:
        return [(path, step.digest) for path, step, _ in self.asked]

    @property
    def answers(self) -> dict[str, Answer]:
        return {path: answer for path, _, answer in self.asked}

    def request(self, path: str) -> RequestCompletion:
        return next(step for step in self.requests if step.name == path)


def feed(flow: Flow[Any], answers: Answers, tools: Tools = echo) -> Fed:
    """Drive the flow to its end: answers by path or, to requests, in order; calls are answered by `tools`."""
    fed = Fed()
    in_order = iter(() if isinstance(answers, Mapping) else answers)
    fed.outcome = _drive(flow, "", fed, lambda path, step: _answer(path, step, answers, in_order, tools))
    assert len(set(fed.paths)) == len(fed.paths), "a name was used twice"
    return fed


def _answer(path: str, step: Step, answers: Answers, in_order: Iterator[Answer], tools: Tools) -> Answer:
    if isinstance(answers, Mapping) and path in answers:
        return answers[path]
    return tools(step) if isinstance(step, CallTool) else next(in_order)


def _drive(flow: Flow[Any], prefix: str, fed: Fed, answer: Callable[[str, Step], Answer]) -> Any:
    reply: Any = None
    while True:
        try:
            wanted = flow.send(reply)
        except StopIteration as stop:
            return stop.value
        ask: Callable[..., Any] = _drive_group if isinstance(wanted, Gather) else _one
        reply = ask(wanted, prefix, fed, answer)


def _one(step: Step, prefix: str, fed: Fed, answer: Callable[[str, Step], Answer]) -> Answer:
    path = prefix + step.name
    reply = answer(path, step)
    fed.asked.append((path, step, reply))
    return reply


def _drive_group(gather: Gather[Any], prefix: str, fed: Fed, answer: Callable[[str, Step], Answer]) -> dict[str, Any]:
    fed.gathers.append([prefix + name for name in gather.branches])
    outcomes: dict[str, Any] = {}
    for name, branch in gather.branches.items():
        try:
            match branch:
                case Branch(flow=flow):
                    before = {other: outcomes[other] for other in gather.depends_on.get(name, ())}
                    begun = flow(before) if callable(flow) else flow
                    outcomes[name] = _drive(begun, f"{prefix}{name}/", fed, answer)
                case step:
                    outcomes[name] = _one(step, prefix, fed, answer)
        except GiveUp as reason:
            outcomes[name] = Failed(str(reason))
    return outcomes
