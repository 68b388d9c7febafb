"""The law of replay: unfolds a flow and its branches, says which steps wait, and feeds them their answers.

Pure: no I/O, no clock. What waits is a function of the flow and of the answers given so far, in whatever order they
came; so building a flow again and feeding it the recorded answers is the same act as going on with it.
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
    """One generator that is under way, the prefix of its steps, where its outcome goes (None: the run's), and whose
    its calls are."""

    flow: Generator[Any, Any, Any]
    prefix: str
    parent: _ActiveGather | None = None
    name: str = ""
    agent: str | None = None


@dataclass(slots=True)
class _ActiveGather:
    """A Gather that is under way: outcomes so far, names not yet started, and the strand that waits for it."""

    gather: Gather[Any]
    strand: _ActiveFlow
    outcomes: dict[str, Any] = field(default_factory=dict)
    unstarted: list[str] = field(default_factory=list)

    def next_startable(self) -> str | None:
        """The next branch in declared order, if one more may run and its forerunners have ended.

        No later one overtakes it: so what has been started follows from which branches have ended, not from the
        order in which they did, and a fold, which feeds answers in the order of the marks, starts the same.
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
        """What a branch of it with these limits is to have, with the branches as they are now."""
        return BranchShare(limits, len(self.gather.branches) - len(self.outcomes), self.gather.reserved)

    def dependency_outcomes(self, name: str) -> Mapping[str, Any]:
        return {before: self.outcomes[before] for before in self._dependencies(name)}


class Runner:
    """A flow as far as its answers carry it. `waiting` maps path to step, in the order in which they were asked;
    `branches` what each that runs with limits of its own is to have, outer ones first."""

    __slots__ = ("_places", "_used", "branches", "finished", "outcome", "waiting")

    def __init__(self, flow: Flow[Any]) -> None:
        self.waiting: dict[str, Step] = {}
        self.branches: dict[str, Callable[[], BranchShare]] = {}
        self.finished = False
        self.outcome: Any = None
        self._places: dict[str, tuple[_ActiveFlow | None, _ActiveGather | None]] = {}
        self._used: dict[str, None] = {}  # in less than half of the room of a set
        self._send(_ActiveFlow(flow, ""), None)

    def answer(self, path: str, answer: Answer) -> None:
        """Give the step at `path` its answer. Raises KeyError where no step waits."""
        del self.waiting[path]
        strand, gathering = self._places.pop(path)
        if strand is not None:
            self._send(strand, answer)
        elif gathering is not None:
            self._collect_outcome(gathering, path.removeprefix(gathering.strand.prefix), answer)

    def branch_of(self, path: str) -> str:
        """The path of the nearest branch with limits of its own above a step; empty where there is none."""
        while self.branches and (path := path.rpartition("/")[0]):
            if path in self.branches:
                return path
        return ""

    def agent_of(self, path: str) -> str | None:
        """Whose call the step is that waits at this path: the agent of the nearest branch around it that has one."""
        strand, gathering = self._places[path]
        inside = strand if strand is not None else gathering.strand if gathering is not None else None
        return inside.agent if inside is not None else None

    def replay_all(self, record: Iterable[RecordedStep]) -> None:
        """Feed what is recorded, in order of the marks. Raises ReplayDiffers."""
        for row in record:
            self.replay(row.path, row.digest, row.answer)

    def replay(self, path: str, digest: bytes, answer: Answer | None) -> Step:
        """Feed one recorded step, which must be one that waits, with this digest. Raises ReplayDiffers."""
        step = self.waiting.get(path)
        asked = step.digest if step is not None else b""
        if step is None or asked != digest:
            raise ReplayDiffers(path, digest.hex(), asked.hex())
        if answer is not None:
            self.answer(path, answer)
        return step

    def _send(self, strand: _ActiveFlow, value: Any) -> None:
        try:
            asked = strand.flow.send(value)
            while asked.kind == "gather" and not asked.branches:
                asked = strand.flow.send({})
        except StopIteration as end:
            self._finish_flow(strand, end.value)
        except GiveUp as reason:
            if strand.parent is None:
                raise
            self._finish_flow(strand, Failed(str(reason)))
        else:
            self._handle_request(strand, asked)

    def _handle_request(self, strand: _ActiveFlow, asked: Step | Gather[Any]) -> None:
        match asked:
            case Gather():
                gathering = _ActiveGather(asked, strand, unstarted=list(asked.branches))
                self._start_branches(gathering)
            case _:
                self._add_waiting(strand.prefix + asked.name, asked, strand, None)

    def _add_waiting(self, path: str, step: Step, strand: _ActiveFlow | None, gathering: _ActiveGather | None) -> None:
        if path in self._used:
            raise RuntimeError(f"the flow used the name {path} twice")
        self._used[path] = None
        self.waiting[path] = step
        self._places[path] = (strand, gathering)

    def _start_branches(self, gathering: _ActiveGather) -> None:
        while (name := gathering.next_startable()) is not None:
            gathering.unstarted.remove(name)
            prefix = gathering.strand.prefix
            match gathering.gather.branches[name]:
                case CallTool() as step:
                    self._add_waiting(prefix + name, step, None, gathering)
                case Branch(flow, limits, agent):
                    if limits is not None:
                        self.branches[prefix + name] = partial(gathering.branch_share, limits)
                    begun = flow(gathering.dependency_outcomes(name)) if callable(flow) else flow
                    self._send(
                        _ActiveFlow(begun, f"{prefix}{name}/", gathering, name, agent or gathering.strand.agent), None
                    )
        if gathering.unstarted and not gathering.running:
            name = gathering.unstarted[0]
            raise RuntimeError(f"{name} can't start: it must be declared after those that it waits for")

    def _collect_outcome(self, gathering: _ActiveGather, name: str, outcome: Any) -> None:
        gathering.outcomes[name] = outcome
        self._start_branches(gathering)
        if len(gathering.outcomes) == len(gathering.gather.branches):
            declared = {name: gathering.outcomes.pop(name) for name in gathering.gather.branches}
            self._send(gathering.strand, declared)

    def _finish_flow(self, strand: _ActiveFlow, outcome: Any) -> None:
        if strand.parent is not None:
            self.branches.pop(strand.prefix[:-1], None)
            self._collect_outcome(strand.parent, strand.name, outcome)
        else:
            self.finished, self.outcome = True, outcome
