"""Read a result as a host's model does that is shown only its text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from scripted_model import GOAL, Json, next_answer


def parse_text(text: str) -> Json:
    """Parse run, status, summary and waiting items; a host may have added the structured content to the text."""
    first, *lines = text.split("\n")
    head = re.fullmatch(r"\w+ (run-\w+): (\w+)(?: \((\w+)\))?, (\d+) rounds?, route (\w+).*", first)
    assert head is not None, text
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {
        "run_id": head[1],
        "status": head[2],
        "stop_reason": head[3],
        "rounds": int(head[4]),
        "route": head[5],
        "summary": fields.get("summary"),
        "waiting": json.loads(fields.get("waiting items", "[]")),
    }


def next_call(texts: Sequence[str], arguments: Json | None = None) -> tuple[str, Json] | None:
    """Give the call that a host's model makes after these results, all that it has read; None once the run ended."""
    if not texts:
        return "planner_run", {"goal": GOAL, **(arguments or {})}
    result = parse_text(texts[-1])
    if result["status"] != "input_required":
        return None
    (item,) = result["waiting"]
    return "run_continue", {"run_id": result["run_id"], "answers": {item["key"]: next_answer(texts, len(texts) - 1)}}
