"""The law of replay: run a flow and its branches, say which steps wait, and feed them their answers.

Pure: no I/O, no clock. What waits depends only on the flow and on the answers so far, in whatever order they came.
So a run is resumed by building its flow again and feeding it the recorded answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kairos_mcp.core.errors import ReplayDiffers
from kairos_mcp.core.limits import BranchShare, Limits
from kairos_mcp.core.steps import Answer, Branch, CallTool, Failed, Flow, Gather, GiveUp, RecordedStep, Step


@dataclass(slots=True)
class _ActiveFlow:
    """A generator that has been started.

    `prefix` stands before the names of its steps; `parent` is the gather that gets its outcome (None for the
    run's own flow); `agent` is whose steps these are, `about` what they are for.
    """

    flow: Generator[Any, Any, Any]
    prefix: str
    parent: _ActiveGather | None = None
    name: str = ""
    agent: str | None = None
    about: str | None = None


@dataclass(slots=True)
class _ActiveGather:
    """A gather that has been started: the flow that waits for it, its outcomes so far, and the branches not started."""

    gather: Gather[Any]
    waiting_flow: _ActiveFlow
    outcomes: dict[str, Any] = field(default_factory=dict)
    unstarted: list[str] = field(default_factory=list)

    def next_startable(self) -> str | None:
        """Return the next branch in declared order, if one more may run and those it depends on have ended.

        No later branch overtakes it. So what has been started depends on which branches have ended and not on the order
        in which they did, and a replay, which feeds answers in the order the steps were started, starts the same ones.
        """
        if not self.unstarted or self.running >= self.gather.max_parallel:
            return None
        name = self.unstarted[0]
        return name if self.outcomes.keys() >= set(self._dependencies(name)) else None

    @property
    def running(self) -> int:
        return len(self.gather.branches) - len(self.unstarted) - len(self.outcomes)

    def _dependencies(self, name: str) -> tuple[str, ...]:
        return self.gather.depends_on.get(name, ())

    def branch_share(self, limits: Limits) -> BranchShare:
        """Return what a branch with these limits gets, with as many branches as are open now."""
        return BranchShare(limits, len(self.gather.branches) - len(self.outcomes), self.gather.reserved)

    def dependency_outcomes(self, name: str) -> Mapping[str, Any]:
        return {before: self.outcomes[before] for before in self._dependencies(name)}


class Runner:
    """A flow, run as far as its answers go. `agent`: whose steps are those outside of branches that have one.

    `waiting` maps paths to steps, in the order in which the flow yielded them. `branches` maps the path of each open
    branch that has limits of its own to what it gets, outer ones first.
    """

    __slots__ = ("_receivers", "_used_paths", "branches", "finished", "outcome", "waiting")

    def __init__(self, flow: Flow[Any], agent: str | None = None) -> None:
        self.waiting: dict[str, Step] = {}
        self.branches: dict[str, Callable[[], BranchShare]] = {}
        self.finished = False
        self.outcome: Any = None
        self._receivers: dict[str, tuple[_ActiveFlow | None, _ActiveGather | None]] = {}
        self._used_paths: dict[str, None] = {}  # keys alone; a dict needs less than half the memory of a set
        self._send(_ActiveFlow(flow, "", agent=agent), None)

    def answer(self, path: str, answer: Answer) -> None:
        """Give the step at `path` its answer. Raises KeyError where no step waits."""
        del self.waiting[path]
        waiting_flow, gathering = self._receivers.pop(path)
        if waiting_flow is not None:
            self._send(waiting_flow, answer)
        elif gathering is not None:
            self._collect_outcome(gathering, path.removeprefix(gathering.waiting_flow.prefix), answer)

    def branch_of(self, path: str) -> str:
        """Return the path of the nearest branch around a step that has limits of its own; empty where there is none."""
        while self.branches and (path := path.rpartition("/")[0]):
            if path in self.branches:
                return path
        return ""

    def agent_of(self, path: str) -> str | None:
        """Return whose step waits here: the agent of the nearest branch around it that has one, else the run's."""
        owner = self._owner_of(path)
        return owner.agent if owner is not None else None

    def about_of(self, path: str) -> str | None:
        """Return what the step is for that waits at this path, as the nearest branch around it says that does."""
        owner = self._owner_of(path)
        return owner.about if owner is not None else None

    def _owner_of(self, path: str) -> _ActiveFlow | None:
        """Return the flow that asked for the step that waits at this path."""
        waiting_flow, gathering = self._receivers[path]
        return waiting_flow if waiting_flow is not None else gathering.waiting_flow if gathering is not None else None

    def replay_all(self, record: Iterable[RecordedStep]) -> None:
        """Feed the recorded steps, in the order in which they were started. Raises ReplayDiffers."""
        for row in record:
            self.replay(row.path, row.digest, row.answer)

    def replay(self, path: str, digest: bytes, answer: Answer | None) -> Step:
        """Feed one recorded step and return it. Raises ReplayDiffers where no step with this digest waits there."""
        step = self.waiting.get(path)
        request = step.digest if step is not None else b""
        if step is None or request != digest:
            raise ReplayDiffers(path, digest.hex(), request.hex())
        if answer is not None:
            self.answer(path, answer)
        return step

    def _send(self, waiting_flow: _ActiveFlow, value: Any) -> None:
        try:
            request = waiting_flow.flow.send(value)
            while request.kind == "gather" and not request.branches:
                request = waiting_flow.flow.send({})
        except StopIteration as end:
            self._finish_flow(waiting_flow, end.value)
        except GiveUp as reason:
            if waiting_flow.parent is None:
                raise
            self._finish_flow(waiting_flow, Failed(str(reason)))
        else:
            self._handle_request(waiting_flow, request)

    def _handle_request(self, waiting_flow: _ActiveFlow, request: Step | Gather[Any]) -> None:
        match request:
            case Gather():
                gathering = _ActiveGather(request, waiting_flow, unstarted=list(request.branches))
                self._start_branches(gathering)
            case _:
                self._add_waiting(waiting_flow.prefix + request.name, request, waiting_flow, None)

    def _add_waiting(
        self, path: str, step: Step, waiting_flow: _ActiveFlow | None, gathering: _ActiveGather | None
    ) -> None:
        if path in self._used_paths:
            raise RuntimeError(f"the flow used the name {path} twice")
        self._used_paths[path] = None
        self.waiting[path] = step
        self._receivers[path] = (waiting_flow, gathering)

    def _start_branches(self, gathering: _ActiveGather) -> None:
        while (name := gathering.next_startable()) is not None:
            gathering.unstarted.remove(name)
            prefix = gathering.waiting_flow.prefix
            match gathering.gather.branches[name]:
                case CallTool() as step:
                    self._add_waiting(prefix + name, step, None, gathering)
                case Branch(flow, limits, agent, about):
                    if limits is not None:
                        self.branches[prefix + name] = partial(gathering.branch_share, limits)
                    started = flow(gathering.dependency_outcomes(name)) if callable(flow) else flow
                    around = gathering.waiting_flow
                    self._send(
                        _ActiveFlow(
                            started, f"{prefix}{name}/", gathering, name, agent or around.agent, about or around.about
                        ),
                        None,
                    )
        if gathering.unstarted and not gathering.running:
            name = gathering.unstarted[0]
            raise RuntimeError(f"{name} can't start: it must be declared after those that it waits for")

    def _collect_outcome(self, gathering: _ActiveGather, name: str, outcome: Any) -> None:
        gathering.outcomes[name] = outcome
        self._start_branches(gathering)
        if len(gathering.outcomes) == len(gathering.gather.branches):
            declared = {name: gathering.outcomes.pop(name) for name in gathering.gather.branches}
            self._send(gathering.waiting_flow, declared)

    def _finish_flow(self, waiting_flow: _ActiveFlow, outcome: Any) -> None:
        if waiting_flow.parent is not None:
            self.branches.pop(waiting_flow.prefix[:-1], None)
            self._collect_outcome(waiting_flow.parent, waiting_flow.name, outcome)
        else:
            self.finished, self.outcome = True, outcome
