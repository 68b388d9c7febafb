"""An agent: who works on a task, with which tools and in how many rounds; and its record, how its newest tasks ended.

Both are values: an agent is frozen into the spec of a run, a record says by kind how tasks ended and what the middle
one of them used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import count_of

MAX_ROUNDS = 10  # of an agent whose file gives none
PLANNER = "planner"  # the agent that plans; the only one that may have no tools, and none is chosen to do a task


@dataclass(frozen=True, slots=True)
class Agent:
    """A name, a prompt (the whole system prompt of its loop), and what belongs to it.

    `description` says what it is for, to whoever chooses one. `tools`: globs over the registry, as the file names them;
    None: those that only read; (): none. `model`: None for the model of the run. `origin`: "built-in", "user", or the
    path of a file in the workspace. `left_out`: what of that file has no counterpart here.
    """

    name: str
    description: str
    tools: tuple[str, ...] | None
    prompt: str
    model: str | None = None
    max_rounds: int = MAX_ROUNDS
    origin: str = "built-in"
    left_out: tuple[str, ...] = ()


MAX_TASKS = 200  # of an agent: what it did long ago, by another prompt or model, says little about today
OTHER = "other"  # the kind of a task that names none


@dataclass(frozen=True, slots=True)
class TriedTask:
    """One try of a task by an agent, and what it used. Money in nano-dollars; 0 also where there is no price."""

    agent: str
    kind: str
    is_done: bool
    rounds: int
    tokens: int
    nano_usd: int


@dataclass(frozen=True, slots=True)
class KindRecord:
    """How many tasks of a kind an agent tried, and how many of them it did."""

    kind: str
    tasks: int
    done: int


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """How an agent's newest tasks went. `rounds`, `tokens` and `nano_usd` are medians over all of them, failed or not.

    `kinds`: those with most tasks first.
    """

    agent: str
    tasks: int
    done: int
    kinds: tuple[KindRecord, ...]
    rounds: int
    tokens: int
    nano_usd: int

    @property
    def line(self) -> str:
        """The record in a line, as a planner and a person are shown it."""
        kinds = ", ".join(f"{each.kind} {each.done} of {each.tasks}" for each in self.kinds)
        used = f"{count_of(self.rounds, 'round')}, {count_of(self.tokens, 'token')}"
        cost = f", ${self.nano_usd / 1e9:.4f}" if self.nano_usd else ""
        return f"{self.done} of {self.tasks} tasks done ({kinds}); median {used}{cost}"

    def as_json(self) -> JsonObject:
        """Return it as `agents --json` shows it; money in dollars."""
        return {
            "tasks": self.tasks,
            "done": self.done,
            "kinds": [asdict(each) for each in self.kinds],
            "median": {"rounds": self.rounds, "total_tokens": self.tokens, "usd": self.nano_usd / 1e9},
        }


def make_records(tried: Iterable[TriedTask]) -> tuple[AgentRecord, ...]:
    """Make the record of each agent, by name, from tries of tasks, the newest first; older ones than MAX_TASKS of an
    agent don't count. A median is one of the figures: of two in the middle the smaller."""
    by_agent: dict[str, list[TriedTask]] = {}
    for each in tried:
        tasks = by_agent.setdefault(each.agent, [])
        if len(tasks) < MAX_TASKS:
            tasks.append(each)
    return tuple(_make_record(agent, by_agent[agent]) for agent in sorted(by_agent))


def _make_record(agent: str, tried: list[TriedTask]) -> AgentRecord:
    kinds = [
        KindRecord(kind, len(those), sum(each.is_done for each in those))
        for kind in {each.kind for each in tried}
        if (those := [each for each in tried if each.kind == kind])
    ]
    return AgentRecord(
        agent,
        len(tried),
        sum(each.is_done for each in tried),
        tuple(sorted(kinds, key=lambda each: (-each.tasks, each.kind))),
        _low_median(each.rounds for each in tried),
        _low_median(each.tokens for each in tried),
        _low_median(each.nano_usd for each in tried),
    )


def _low_median(figures: Iterable[int]) -> int:
    ordered = sorted(figures)  # `statistics` would be imported for this line alone
    return ordered[(len(ordered) - 1) // 2]
