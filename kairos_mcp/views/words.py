"""The words for what a run is: its status, what it has done and cost, where it works, what it waits for and from whom.

Results, the terminal and the page say them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of, on_one_line
from kairos_mcp.specs.kinds import kind_of


def as_json(value: Any) -> str:
    """Return a value as JSON on one line."""
    return on_one_line(to_json(value).decode())


def in_one_line(text: str) -> str:
    """Return the text itself, or as a JSON string if it has several lines: nothing is lost and no line added."""
    return text if len(text.splitlines()) <= 1 and not text.endswith("\n") else as_json(text)


def amounts_words(amounts: JsonObject) -> str | None:
    known = {name: value for name, value in amounts.items() if value is not None}
    told = {name: " and ".join(value) if isinstance(value, list) else value for name, value in known.items()}
    return ", ".join(f"{name} {value}" for name, value in told.items()) or None


def usage_words(usage: JsonObject) -> str | None:
    """Say what was used; nothing of what was not."""
    used = {name: value for name, value in usage.items() if value}
    return amounts_words(used) if used.keys() - {"exactness"} else None


def calls_words(calls: Sequence[JsonObject]) -> str | None:
    return "; ".join(map(_call_words, calls)) or None


def _call_words(call: JsonObject) -> str:
    status = f"{call['ref']} {call['name']} {'ok' if call['ok'] else 'failed'} {call['ms']} ms"
    return f"{status} {in_one_line(call['preview'])}" if "preview" in call else status


def waiting_words(items: Sequence[JsonObject]) -> str | None:
    return ", ".join(f"{item['key']} ({item['kind']})" for item in items) or None


def notes_words(notes: Sequence[str]) -> str | None:
    return " | ".join(map(in_one_line, notes)) or None


def next_words(call: JsonObject) -> str:
    return f"{call['tool']} {as_json(call['arguments'])}, because {in_one_line(call['why'])}"


def status_words(status: str, why: str | None) -> str:
    """Say how a run stands, and why it ended: "stopped (out of rounds)"."""
    return f"{status} ({why})" if why else status


def work_words(flow: str, rounds: int, model_calls: int) -> str:
    """Say how far a run is, in the unit that counts for its flow."""
    return count_of(rounds, "round") if kind_of(flow).counts == "rounds" else count_of(model_calls, "model call")


def cost_words(usd: float, unpriced: Sequence[str] | None) -> str:
    """Say what was spent, as far as it is known: a model without a known price was not free."""
    if not unpriced:
        return f"${usd:.4f}"
    return f"at least ${usd:.4f}" if usd else "price unknown"


def place_words(workspace: str | None) -> str:
    """Say in which folder a run works."""
    return "no workspace" if workspace is None else f"in {in_one_line(workspace)}"
