"""What a client that is shown only the text of a result makes of it."""

from __future__ import annotations

import json
import re
from typing import Any

WAITING = "waiting items: "


def read(text: str) -> dict[str, Any]:
    """Run, status, summary and waiting items, as the text tells them."""
    first, *lines = text.splitlines()
    head = re.fullmatch(r"\w+ (run-\w+): (\w+)(?: \((\w+)\))?, (\d+) rounds, route (\w+).*", first)
    assert head is not None, first
    summary = next((line.removeprefix("summary: ") for line in lines if line.startswith("summary: ")), None)
    waiting = next((json.loads(line.removeprefix(WAITING)) for line in lines if line.startswith(WAITING)), [])
    return {
        "run_id": head[1],
        "status": head[2],
        "stop_reason": head[3],
        "rounds": int(head[4]),
        "route": head[5],
        "summary": summary,
        "waiting": waiting,
    }
