"""Mandates, and what a model says in the phases of a cycle, as lines of a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kairos_mcp.app.app import App
from kairos_mcp.settings.table_values import GateRule
from support.app import Place, assert_all_lawful
from support.reviewers import UNHURRIED, Person, accepts, connect_person
from support.sampling_clients import ERAS, ConnectedClient

__all__ = ["ERAS", "Person", "accepts"]

PAGE = "# Index\n\nSee [one](oen.md), [two](tow.md) and [three](trhee.md).\n"
MANDATE = {
    "id": "links",
    "goal": "Every link in docs leads to a file.",
    "observe": ["file_tree", {"tool": "read_file", "args": {"path": "docs/index.md"}}],
}
LOOK = {"files": [{"path": "docs/index.md"}]}
EDITS_ALLOWED = (GateRule("edit_file", "allow"),)


def gives(value: Any, **more: Any) -> dict[str, Any]:
    """A line of a script: a turn whose text is this object, or this text."""
    return {"content": value if isinstance(value, str) else json.dumps(value), "finish": "stop", **more}


def orientation_line(**more: Any) -> dict[str, Any]:
    return gives({"summary": "A link is broken.", "priorities": ["Mend it."], "risk_level": "low", **LOOK, **more})


def edit(old: str, new: str, **more: Any) -> dict[str, Any]:
    words = {
        "action": "code_edit",
        "target": "docs/index.md",
        "old_string": old,
        "new_string": new,
        "intent": "mend it",
    }
    return gives({**words, **more})


def noop(reason: str = "Nothing to do.") -> dict[str, Any]:
    return gives({"action": "noop", "reason": reason})


def judgement_line(
    confidence: float = 0.5, *, lessons: tuple[str, ...] = (), remaining: tuple[str, ...] = ("more",)
) -> Any:
    said = {"assessment": "success", "lessons": list(lessons), "confidence": confidence, "remaining": list(remaining)}
    return gives(said)


def cycle(decision: Mapping[str, Any], **more: Any) -> tuple[Mapping[str, Any], ...]:
    """The three turns of a cycle."""
    return (orientation_line(), decision, judgement_line(**more))


MENDED = (
    *cycle(edit("oen.md", "one.md"), lessons=("Names are swapped.",)),
    *cycle(edit("tow.md", "two.md")),
    *cycle(edit("trhee.md", "three.md")),
)


def page(place: Place) -> str:
    return (place.workspace / "docs" / "index.md").read_text()


@asynccontextmanager
async def open_scripted_client(
    place: Place, era: str, *lines: Mapping[str, Any], person: Person | None = None, **changes: Any
) -> AsyncIterator[ConnectedClient]:
    """An app with this script, and a client of this era; in the end every run is held against the laws."""
    async with App.open(place.settings(*lines, **changes), via="mcp") as app:
        async with connect_person(app, era, person, patience=UNHURRIED) as client:
            yield client
        if place.db.exists():
            await assert_all_lawful(app)


async def resume_to_end(client: ConnectedClient, run: Mapping[str, Any]) -> dict[str, Any]:
    """Resume the run after every checkpoint; returns its result."""
    report = dict(run)
    while report["status"] in ("paused", "working"):
        if report["status"] == "paused":
            assert report["output"]["mandate_status"] == "paused_at_checkpoint"
            assert report["next"]["arguments"] == {"run_id": report["run_id"], "action": "resume"}
            await client.ask("run_control", report["next"]["arguments"])
        (report,) = (await client.ask("run_status", {"run_ids": [report["run_id"]], "until": "attention"}))["runs"]
    return report
