"""Scenarios of OODA for the histories: a mandate's cycles, and each phase alone."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from support.app import ME, Place, rests, says

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PhaseRequest
from kairos_mcp.settings.table_values import GateRule

ORIENTED = {"summary": "a.txt is old.", "priorities": ["Renew it."], "risk_level": "low", "files": [{"path": "a.txt"}]}
EDIT = {"action": "code_edit", "target": "a.txt", "old_string": "alpha", "new_string": "omega", "intent": "renew it"}
JUDGED = {"assessment": "success", "lessons": ["It was short."], "confidence": 0.95, "remaining": []}
DECIDED = {**EDIT, "base": {"a.txt": sha256(b"alpha\n").hexdigest()}}
NOTHING = {"action": "noop", "reason": "All is well."}
ACTED = {
    "status": "noop",
    "decision": NOTHING,
    "risk": "low",
    "files": [],
    "effect": {"digest": "0" * 64, "said": "noop: All is well."},
}
MANDATE = {
    "id": "renew",
    "goal": "a.txt says omega.",
    "observe": ["file_tree"],
    "acceptance": [{"check": "file_exists", "path": "c.txt"}],
}
GIVEN = {
    "observe": None,
    "orient": {"observations": []},
    "decide": ORIENTED,
    "act": DECIDED,
    "reflect": ACTED,
}
SAID = {"orient": ORIENTED, "decide": EDIT, "reflect": JUDGED}


async def cycles(app: App, place: Place) -> str:
    """Three cycles with a repair, a read that decide asks for, a changed file and checkpoints."""
    run_id = (await app.runs.start(CyclesRequest(MandateRef(mandate=MANDATE)), ME)).run_id
    while (await rests(app, run_id)).status == "paused":
        await app.control.request(run_id, "resume", ME)
    return run_id


cycles.lines = (  # type: ignore[attr-defined]  # a scenario is a function with what it needs
    *(says(json.dumps(text)) for text in (ORIENTED, EDIT, JUDGED)),
    *(says(json.dumps(text)) for text in ({**ORIENTED, "files": []}, EDIT)),
    {"content": "", "tool_calls": [{"name": "read_file", "arguments": {"path": "b.txt"}}]},
    *(says(json.dumps(text)) for text in (NOTHING, JUDGED | {"confidence": 0.2})),
    *(says(text) for text in ("no idea", "none", "at all")),
)
cycles.settings = {"gate": (GateRule("edit_file", "allow"),)}  # type: ignore[attr-defined]  # as above


def alone(phase: Any) -> Callable[[App, Place], Awaitable[str]]:
    """The scenario of one phase."""

    async def scenario(app: App, place: Place) -> str:
        started = await app.runs.start(PhaseRequest(phase, MandateRef(mandate=MANDATE), GIVEN[phase]), ME)
        await rests(app, started.run_id)
        return started.run_id

    scenario.lines = (says(json.dumps(SAID.get(phase, NOTHING))),)  # type: ignore[attr-defined]  # as above
    scenario.settings = cycles.settings  # type: ignore[attr-defined]  # as above
    return scenario
