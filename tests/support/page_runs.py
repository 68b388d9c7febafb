"""Runs that wait, for the page to show."""

from __future__ import annotations

from typing import Any

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest
from support.app import ME, Place, rests, says

HOSTILE = '<img src=x onerror="window.pwned=1"></script><script>window.pwned=2</script>'


def writes(path: str, content: str) -> dict[str, Any]:
    return {
        "content": "I write it.",
        "tool_calls": [{"name": "write_file", "arguments": {"path": path, "content": content}}],
    }


async def ask_to_write(place: Place, *more: dict[str, Any], goal: str = "make it", **changes: Any) -> str:
    """Start a run that wants to write new.txt, and leave it waiting."""
    settings = place.settings(writes("new.txt", "new\n"), *(more or (says("done"),)), **changes)
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest(goal, tools=("write_file",)), ME)).run_id
        assert (await rests(app, run_id)).status == "input_required"
        return run_id
