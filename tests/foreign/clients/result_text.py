"""Read a result as a host's model does that is shown only its text."""

from __future__ import annotations

import json
import re
from typing import Any

from scripted_model import GOAL, Json, answer_item


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


def next_call(text: str | None, arguments: Json | None = None) -> tuple[str, Json] | None:
    """Give the call that a host's model makes after this result of the one before; None when the run has ended."""
    if text is None:
        return "planner_run", {"goal": GOAL, **(arguments or {})}
    result: dict[str, Any] = parse_text(text)
    if result["status"] != "input_required":
        return None
    answers = {item["key"]: answer_item(item) for item in result["waiting"]}
    return "run_continue", {"run_id": result["run_id"], "answers": answers}
