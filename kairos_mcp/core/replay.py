"""The law of replay: run a flow and its branches, say which steps wait, and feed them their answers.

Pure: no I/O, no clock. What waits depends only on the flow and on the answers so far, in whatever order they came.
So a run is resumed by building its flow again and feeding it the recorded answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import field
from functools import partial
from itertools import takewhile
from typing import Any

from kairos_mcp.core.errors import ReplayDiffers
from kairos_mcp.core.limits import BranchShare, Limits
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import (
    Answer,
    Branch,
    CallTool,
    Failed,
    Flow,
    Gather,
    GiveUp,
    RecordedStep,
    Step,
    enclosing_path,
)


@dataclass(slots=True)
class _ActiveFlow:
    """A generator that has been started.

    `prefix` precedes the names of its steps; `parent` is the gather that gets its outcome (None for the run's own
    flow); `agent` is the agent whose steps these are; `about` is their purpose.
    """

    flow: Generator[Any, Any, Any]
    prefix: str
    parent: _ActiveGather | None = None
    name: str = ""
    agent: str | None = None
    about: str | None = None


@dataclass(slots=True)
class _ActiveGather:
    """A gather that has been started: the flow that waits for it, and the outcomes of its ended branches, by name.

    `unstarted`: branches that wait for others to end. `begun`: branches that have begun a step and have not ended.
    `reserved`: the amounts that `gather.reserved` sets aside; None: they must be computed again, since a branch has
    ended.
    """

    gather: Gather[Any]
    waiting_flow: _ActiveFlow
    outcomes: dict[str, Any] = field(default_factory=dict)
    unstarted: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    reserved: Limits | None = None

    def take_startable(self) -> str | None:
        """Return the next branch whose dependencies have ended, or None."""
        for name in self.unstarted:
            if self.outcomes.keys() >= set(self.gather.depends_on.get(name, ())):
                self.unstarted.remove(name)
                return name
        return None

    def may_begin(self, name: str) -> bool:
        """Whether the branch has begun, or may. One that runs alone waits for earlier ones, and later ones for it."""
        if name in self.begun:
            return True
        alone = self.gather.alone
        before = [each for each in takewhile(name.__ne__, self.gather.branches) if alone and each not in self.outcomes]
        return len(self.begun) < self.gather.max_parallel and not any(each in alone or name in alone for each in before)

    def branch_share(self, name: str, limits: Limits) -> BranchShare:
        """Return this branch's share of the limits, given the branches open now."""
        gather, prefix = self.gather, self.waiting_flow.prefix
        unended = len(gather.branches) - len(self.outcomes)
        siblings = tuple([prefix + each for each in gather.branches if each in self.begun and each != name])
        if self.reserved is None:
            self.reserved = gather.reserved() if callable(gather.reserved) else gather.reserved
        return BranchShare(limits, unended, self.reserved, gather.max_parallel, gather.keeps_share, siblings)


class Runner:
    """Advances a flow through the answers it has. `agent`: the agent of steps whose branches name none.

    `waiting` maps paths to steps, in the order in which the flow yielded them; `try_begin` begins those that may begin.
    Every branch whose dependencies have ended is started, so what waits depends on the answers alone; a gather's
    `max_parallel` bounds how many of them have begun. `branches` maps the path of each begun branch with limits of its
    own to a function for its share, outer ones first. `branches_ended` counts the branches that have ended.
    """

    __slots__ = ("_receivers", "_used_paths", "branches", "branches_ended", "finished", "outcome", "waiting")

    def __init__(self, flow: Flow[Any], agent: str | None = None) -> None:
        self.waiting: dict[str, Step] = {}
        self.branches: dict[str, Callable[[], BranchShare]] = {}
        self.branches_ended = 0
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

    def try_begin(self, path: str) -> bool:
        """Begin the step that waits at this path, if it may begin, and return whether it has begun.

        The branches around it then count as begun. One that has begun is never held back; another one begins if its
        gather has room for it.
        """
        waiting_flow, gathering = self._receivers[path]
        if gathering is None and waiting_flow is not None and waiting_flow.parent is None:
            return True  # like most steps, it is in no branch
        around = self._enclosing_branches(path)
        if not all(gathering.may_begin(name) for gathering, name in around):
            return False
        for gathering, name in reversed(around):
            if name not in gathering.begun:
                gathering.begun.add(name)
                match gathering.gather.branches[name]:
                    case Branch(limits=Limits() as limits):
                        branch = gathering.waiting_flow.prefix + name
                        self.branches[branch] = partial(gathering.branch_share, name, limits)
                    case _:
                        pass
        return True

    def may_begin(self, path: str) -> bool:
        """Whether `try_begin` would let the step that waits at this path begin."""
        return all(gathering.may_begin(name) for gathering, name in self._enclosing_branches(path))

    def _enclosing_branches(self, path: str) -> list[tuple[_ActiveGather, str]]:
        """Return the branches around a waiting step, the innermost first. A bare step of a gather is its own branch."""
        around: list[tuple[_ActiveGather, str]] = []
        waiting_flow, gathering = self._receivers[path]
        if gathering is not None:
            around.append((gathering, path.removeprefix(gathering.waiting_flow.prefix)))
            waiting_flow = gathering.waiting_flow
        while waiting_flow is not None and waiting_flow.parent is not None:
            around.append((waiting_flow.parent, waiting_flow.name))
            waiting_flow = waiting_flow.parent.waiting_flow
        return around

    def branch_of(self, path: str) -> str:
        """Return the path of the nearest branch around a step that has limits of its own; "" if there is none."""
        while self.branches and (path := enclosing_path(path)):
            if path in self.branches:
                return path
        return ""

    def agent_of(self, path: str) -> str | None:
        """Return the agent of the waiting step: that of the nearest branch around it that has one, else the run's."""
        owner = self._owner_of(path)
        return owner.agent if owner is not None else None

    def about_of(self, path: str) -> str | None:
        """Return the purpose of the waiting step: the `about` of its nearest enclosing branch that has one."""
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
        self.try_begin(path)
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
            if request.kind == "gather":
                self._start_branches(_ActiveGather(request, waiting_flow, unstarted=list(request.branches)))
            else:
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
        while (name := gathering.take_startable()) is not None:
            prefix = gathering.waiting_flow.prefix
            match gathering.gather.branches[name]:
                case CallTool() as step:
                    self._add_waiting(prefix + name, step, None, gathering)
                case Branch(flow=flow, agent=agent, about=about):
                    if callable(flow):
                        before = gathering.gather.depends_on.get(name, ())
                        flow = flow({each: gathering.outcomes[each] for each in before})
                    around = gathering.waiting_flow
                    self._send(
                        _ActiveFlow(
                            flow, f"{prefix}{name}/", gathering, name, agent or around.agent, about or around.about
                        ),
                        None,
                    )
        if len(gathering.unstarted) == len(gathering.gather.branches) - len(gathering.outcomes) > 0:
            raise RuntimeError(f"{gathering.unstarted[0]} can't start: its dependencies depend on it")

    def _collect_outcome(self, gathering: _ActiveGather, name: str, outcome: Any) -> None:
        gathering.outcomes[name] = outcome
        gathering.begun.discard(name)
        gathering.reserved = None
        self._start_branches(gathering)
        if len(gathering.outcomes) == len(gathering.gather.branches):
            declared = {name: gathering.outcomes.pop(name) for name in gathering.gather.branches}
            self._send(gathering.waiting_flow, declared)

    def _finish_flow(self, waiting_flow: _ActiveFlow, outcome: Any) -> None:
        if waiting_flow.parent is not None:
            self.branches_ended += self.branches.pop(waiting_flow.prefix[:-1], None) is not None
            self._collect_outcome(waiting_flow.parent, waiting_flow.name, outcome)
        else:
            self.finished, self.outcome = True, outcome
