"""What a team has come to: its phase, its tasks with their tries, what each used, and what waits in it."""

from __future__ import annotations

from typing import Literal

from kairos_mcp.core.limits import NOTHING, Units
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import loop_of
from kairos_mcp.core.text import count_of, truncate

DESCRIPTION_CHARS = 160
FOUND_CHARS = 300  # of a task's result, where all tasks are told

TeamPhase = Literal["planning", "tasks", "replanning", "answer"]


@dataclass(frozen=True, slots=True)
class TryView:
    """A try at a task. `used`: what is charged to it so far. `round`: the path of its newest round, if it has one."""

    path: str
    agent: str
    status: str
    stop_reason: str | None
    used: Units
    ref: str | None
    left_open: str
    round: str | None = None

    def as_json(self) -> JsonObject:
        return {
            "path": self.path,
            "agent": self.agent,
            "status": self.status,
            "stop_reason": self.stop_reason,
            **_amounts(self.used),
            "ref": self.ref,
            "open": self.left_open,
        }


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task: the words of the plan, what became of it, its tries, and the keys of what waits in it."""

    id: str
    path: str
    agent: str
    description: str
    depends_on: tuple[str, ...]
    kind: str
    status: str
    used: Units = NOTHING
    found: str = ""
    left_open: str = ""
    ref: str | None = None
    tries: tuple[TryView, ...] = ()
    waits: tuple[str, ...] = ()

    def as_plan_entry(self) -> JsonObject:
        """Return the task as a report's `plan` has it; its tries only where there are several."""
        entry: JsonObject = {
            "id": self.id,
            "path": self.path,
            "agent": self.agent,
            "description": truncate(" ".join(self.description.split()), DESCRIPTION_CHARS),
            "status": self.status,
            "depends_on": list(self.depends_on),
            "rounds": self.used.rounds,
            "usd": self.used.nano_usd / 1e9,
        }
        if len(self.tries) > 1:
            entry["tries"] = [
                {"agent": each.agent, "status": each.status, "rounds": each.used.rounds} for each in self.tries
            ]
        return entry

    def as_json(self) -> JsonObject:
        """Return the task as a trace shows it."""
        return {
            "id": self.id,
            "path": self.path,
            "agent": self.agent,
            "kind": self.kind,
            "description": self.description,
            "depends_on": list(self.depends_on),
            "status": self.status,
            **_amounts(self.used),
            "found": truncate(self.found, FOUND_CHARS),
            "ref": self.ref,
            "open": self.left_open,
            "tries": [each.as_json() for each in self.tries],
            "waiting": list(self.waits),
        }


@dataclass(frozen=True, slots=True)
class TeamView:
    """A team or a plan alone.

    `phase`: what it is at; None once the run has ended. `newest`: the path of the newest round or call of a task.
    """

    phase: TeamPhase | None
    tasks: tuple[TaskView, ...] = ()
    newest: str | None = None

    @property
    def newest_try(self) -> TryView | None:
        loop = loop_of(self.newest) if self.newest is not None else ""
        return next((each for task in self.tasks for each in task.tries if each.path == loop), None)

    def plan(self) -> tuple[JsonObject, ...]:
        return tuple(task.as_plan_entry() for task in self.tasks)

    def summarize(self) -> str:
        """Say what the tasks have found so far and what is open, without a model."""
        done = [task for task in self.tasks if task.status in ("done", "stopped")]
        lines = [f"{len(done)} of {count_of(len(self.tasks), 'task')} done."]
        for task in self.tasks:
            told = task.found if task in done else task.left_open
            words = truncate(" ".join(told.split()), FOUND_CHARS)
            rounds = f", {count_of(task.used.rounds, 'round')}" if task.used.rounds else ""
            lines.append(f"- {task.id} ({task.agent}: {task.status}{rounds})" + (f": {words}" if words else ""))
        return "\n".join(lines)


def _amounts(used: Units) -> JsonObject:
    return {"rounds": used.rounds, "tokens": used.total_tokens, "usd": used.nano_usd / 1e9}
