"""Read a result as a host's model does that is shown only its text."""

from __future__ import annotations

import json
import re

from scripted_model import Json

HEAD = re.compile(r"\w+ (?P<run_id>run-\w+): (?P<status>\w+)(?: \((?P<stop_reason>\w+)\))?")


def parse_text(text: str) -> Json:
    """Parse run, status, summary, waiting items and the next call.

    A host may have put words of its own around the text, or show the structured content in its place.
    """
    lines = text.split("\n")
    start = next((n for n, line in enumerate(lines) if line.startswith("{") or HEAD.match(line)), None)
    assert start is not None, text
    first, *lines = lines[start:]
    if first.startswith("{"):
        shown: Json = json.loads(first)
        return shown["runs"][0] if "runs" in shown else shown
    head = HEAD.match(first)
    assert head is not None
    rounds = re.search(r", (\d+) rounds?\b", first)
    route = re.search(r", route (\w+)", first)
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {
        **head.groupdict(),
        "rounds": int(rounds[1]) if rounds else None,
        "route": route[1] if route else None,
        "summary": fields.get("summary"),
        "waiting": json.loads(fields.get("waiting items", "[]")),
        "next": _parse_next(fields["next"]) if "next" in fields else None,
    }


def _parse_next(line: str) -> Json:
    """The call that a result names: a tool's name, and its arguments as JSON."""
    tool, _, rest = line.partition(" ")
    return {"tool": tool, "arguments": json.JSONDecoder().raw_decode(rest)[0]}
