"""The eight limits of a run or a branch, and their words and units outside: dollars and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

CAPS = (
    "rounds",
    "model_calls",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "usd",
    "tool_calls",
    "seconds",
)
"""The eight limits in the words of the outside; inside, usd are nano-dollars and seconds milliseconds."""


DAY_CAPS = ("model_calls", "input_tokens", "output_tokens", "total_tokens", "usd")
"""What a day of one principal can be limited in: what model calls cost."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run or a branch may use at most; None is no limit. `usd` in nano-dollars, `seconds` in milliseconds
    (`nano_usd`, `milliseconds`): integers alone, so that sums are exact."""

    rounds: int | None = None
    model_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    nano_usd: int | None = None
    tool_calls: int | None = None
    milliseconds: int | None = None


UNLIMITED = Limits()


class BranchShare(NamedTuple):
    """What a branch that begins may have of the account around it: what was asked for it, how many branches divide
    what is left (those that have not ended, it among them), and what is set aside for what comes after them all."""

    limits: Limits
    open_branches: int
    reserved: Limits = UNLIMITED


def limits_to_json(limits: Limits) -> dict[str, int | float | None]:
    """Limits in the words and units of the outside: dollars and seconds."""
    usd, seconds = limits.nano_usd, limits.milliseconds
    return {
        "rounds": limits.rounds,
        "model_calls": limits.model_calls,
        "input_tokens": limits.input_tokens,
        "output_tokens": limits.output_tokens,
        "total_tokens": limits.total_tokens,
        "usd": None if usd is None else usd / 1e9,
        "tool_calls": limits.tool_calls,
        "seconds": None if seconds is None else seconds / 1000,
    }


def limits_from_json(given: Mapping[str, int | float]) -> dict[str, int]:
    """The fields of Limits for caps that were already checked, turned from dollars and seconds."""
    inside = {name: int(given[name]) for name in given if name not in ("usd", "seconds")}
    if "usd" in given:
        inside["nano_usd"] = round(given["usd"] * 1e9)
    if "seconds" in given:
        inside["milliseconds"] = round(given["seconds"] * 1000)
    return inside
