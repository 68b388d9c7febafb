"""Runs that wait, for the page to show."""

from __future__ import annotations

from typing import Any

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest
from support.app import ME, Place, rests, says
from support.reviewers import MODERN, Person, accepts, connect_person, open_asking_app, waiting

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


async def approve_in_a_dialog(place: Place) -> str:
    """Start a run that is approved in a dialog of its client, and leave it waiting for the caller's own tool."""
    person = Person([accepts(decision="approve")])
    async with open_asking_app(place) as app, connect_person(app, MODERN, person) as client:
        run_id = await waiting(app, place)
        await client.ask("run_continue", {"run_id": run_id})
        return run_id
