"""An agent: who works on a task, with which tools and in how many rounds. A value, frozen into the spec of a run."""

from __future__ import annotations

from dataclasses import dataclass

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
