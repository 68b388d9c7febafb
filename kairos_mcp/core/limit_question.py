"""What a person is asked when a run reaches a limit of its own, and what an approval raises the limit to. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kairos_mcp.core.limits import UNITS, Limits
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.steps import Pause, Refused
from kairos_mcp.core.text import count_of, truncate

RUN_SCOPE = "run"  # of a limit that is the run's own
LIMIT_PAUSE = "limit"  # the reason of the pause in which a flow waits for the decision
BUDGET = "budget"  # what the approval is of, in the place of a tool
_FOUND_CHARS = 400


class LimitQuestion(NamedTuple):
    """A question about a limit: what a person is shown, and the cap that an approval sets."""

    preview: str
    unit: str
    cap: int


def limit_pause(name: str, refused: Refused, done: int, of: str, found: str) -> Pause:
    """Return the step in which a flow waits for a decision about its limit. `done` and `of`: how many rounds or cycles
    it has had; `found`: what came of them."""
    progress: JsonObject = {"limit": refused.limit, "used": refused.used, "allowed": refused.allowed}
    progress |= {"done": done, "of": of, "found": truncate(found.strip(), _FOUND_CHARS)}
    return Pause(name, LIMIT_PAUSE, progress)


def refusal_of(pause: Pause) -> Refused:
    """Return the refusal that such a pause is about: the answer of a person who leaves the limit as it is."""
    return Refused(pause.progress["limit"], pause.progress["used"], pause.progress["allowed"])


def ask_about(pause: Pause, most: Limits) -> LimitQuestion | None:
    """Return the question about the limit that a pause is about: whether the run may have as much again. None where the
    configuration (`most`) allows no more.

    What more would buy follows from what the rounds or cycles of this run have used, as they were reported.
    """
    unit, used, allowed = pause.progress["limit"], pause.progress["used"], pause.progress["allowed"]
    done, of, found, bound = pause.progress["done"], pause.progress["of"], pause.progress["found"], getattr(most, unit)
    cap = 2 * allowed if bound is None else min(2 * allowed, bound)
    if cap <= allowed:
        return None
    noun = UNITS[unit].noun
    lines = [f"The run has used {_show(unit, used)} of {_show(unit, allowed)} {noun} in {count_of(done, of)}."]
    lines.append(f"Approved, the limit is {_show(unit, cap)}{_buys(used, cap - allowed, done, of)}.")
    lines.append("Denied, the run sums up what it has, and ends.")
    return LimitQuestion("\n".join([*lines, *([f"So far: {found}"] if found else [])]), unit, cap)


def _buys(used: int, more: int, done: int, of: str) -> str:
    """Say how many rounds or cycles an amount buys at what one has used so far."""
    count = more * done // used if used else 0
    return f", which buys about {count_of(count, f'more {of}')} at what one has used so far" if count else ""


def _show(unit: str, amount: int) -> str:
    shown = limits_to_json(Limits(**{unit: amount}))[UNITS[unit].name]
    return f"{shown:,}" if isinstance(shown, int) else f"{shown:,.4f}"
