"""A run of each flow from its start to its end, with a person who decides and settles; and what each does outside.

Nothing here imports the protocol library: zygote.py drives these in forks that have to be quick.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, Phase, PhaseRequest, PlannerRequest, TeamRequest
from kairos_mcp.core.urls import parse_host_rule
from kairos_mcp.settings.http_tool_table import parse_http_tool
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule
from support.app import ASK, ME, PERSON, Place, asks, reads, rests, says

TURNS = 60  # of a person with a run; none needs half as many
BEFORE, POSTS = "posts-before", "posts"


@dataclass(frozen=True)
class Journey:
    """A run: the lines of its script, how it is started, what the configuration allows, the approvals that are denied.

    `outside` tells from the world, not from the rows, what it has done by now.
    """

    start: Callable[[App], Awaitable[str]]
    lines: tuple[Mapping[str, Any], ...] = ()
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    outside: Callable[[Place], Any] = lambda place: None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, place: Place) -> Settings:
        gate = tuple(GateRule(name, "allow") for name in self.allowed)
        changes = {"gate": gate, "commands": "bare", **self.changes}
        port = place.root.parent / "port"
        if "note" in self.allowed:
            changes |= {"http_tools": (note(int(port.read_text())),)}
            changes |= {"private_hosts": (parse_host_rule(f"127.0.0.1:{port.read_text()}"),)}
        return place.settings(*self.lines, **changes)


async def gone_through(
    app: App, place: Place, journey: Journey, look: Callable[[str], Awaitable[None]] | None = None
) -> None:
    """Start the run, or find it, and bring it to its end as a person would. `look`: called wherever it rests."""
    known = await app.runs.newest_ids(ME)
    run_id = known[0] if known else await journey.start(app)
    for _ in range(TURNS):
        report = await rests(app, run_id)
        if look is not None:
            await look(run_id)
        if report.status in ("completed", "stopped", "failed", "cancelled"):
            return
        if report.status == "paused":
            await app.control.request(run_id, "resume", ME)
        for item in report.waiting:
            await _answer_item(app, place, journey, run_id, item)
    raise AssertionError(f"it never ended: {report}")


async def _answer_item(app: App, place: Place, journey: Journey, run_id: str, item: Mapping[str, Any]) -> None:
    key = item["key"]
    match item["kind"]:
        case "approval":
            await app.answers.decide(run_id, key, "deny" if key in journey.denied else "approve", "not that", PERSON)
        case "settle":  # by what is there, as a person who looks
            await app.answers.settle(
                run_id, key, "already_done" if is_done(place, item["name"]) else "reattempt", PERSON
            )
        case _:
            await app.answers.submit(run_id, {key: {"content": "yes"}}, ME)


def is_done(place: Place, tool: str) -> bool:
    """Whether somebody who looks finds that the call has taken effect."""
    return bool(count_posted(place) if tool == "note" else count_made(place))


# -- the world outside -------------------------------------------------------------------------------------------------


def count_made(place: Place) -> int:
    """The lines that the command of a run has left."""
    file = place.workspace / "made.txt"
    return file.read_text().count("\n") if file.exists() else 0


def count_posted(place: Place) -> int:
    """What has reached the server on loopback since this place was made."""
    return _posts(place.root.parent) - int((place.root / BEFORE).read_text())


def _posts(root: Path) -> int:
    return (root / POSTS).read_text().count("\n")


def arrive(place: Place) -> None:
    """Before a run begins here: what was posted until now was posted by others."""
    place.root.joinpath(BEFORE).write_text(str(_posts(place.root.parent)))


def counting(root: Path) -> int:
    """A process that serves on loopback and leaves a line for each POST in a file; its id. `root/port` is where."""
    (root / POSTS).touch()
    serving = socket.create_server(("127.0.0.1", 0), backlog=64)
    (root / "port").write_text(str(serving.getsockname()[1]))
    child = os.fork()
    if child:
        serving.close()
        return child
    with (root / POSTS).open("a", buffering=1) as posts:
        while True:
            _serve_post(serving.accept()[0], posts)


def _serve_post(connection: socket.socket, posts: Any) -> None:
    with connection:
        heard = b""
        while b"\r\n\r\n" not in heard:
            if not (chunk := connection.recv(65_536)):
                return
            heard += chunk
        head, _, body = heard.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        while len(body) < length and (chunk := connection.recv(65_536)):
            body += chunk
        posts.write(f"{body.decode()}\n")  # before it is answered: what was heard counts
        payload = b'{"ok": true}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(payload) + payload)


def note(port: int) -> Any:
    text = {"name": "text", "in": "body", "required": True, "schema": {"type": "string"}}
    given = {"name": "note", "description": "Leaves a note.", "method": "POST", "parameters": [text]}
    return parse_http_tool({**given, "url": f"http://127.0.0.1:{port}/notes", "effect": "irreversible"})


# -- the runs ----------------------------------------------------------------------------------------------------------


def _calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def _start_planner(**asked: Any) -> Callable[[App], Awaitable[str]]:
    async def start(app: App) -> str:
        request = PlannerRequest("look around", key="reference", **asked)
        return (await app.runs.start(request, ME)).run_id

    return start


def _start_call(name: str, **arguments: Any) -> Callable[[App], Awaitable[str]]:
    async def start(app: App) -> str:
        return await app.runs.start_call(name, arguments, ME)

    return start


EDIT = {"path": "a.txt", "old_string": "alpha", "new_string": "alpha alpha"}
WRITING = (
    reads("a.txt", "b.txt"),
    _calls("edit_file", **EDIT),
    _calls("run_command", argv=["sh", "-c", "echo made >> made.txt"]),
    _calls("note", text="once"),
    _calls("write_file", path="c.txt", content="never\n"),
    says("done"),
)


def _read_outside(place: Place) -> Any:
    files = {path.name: path.read_text() for path in sorted(place.workspace.iterdir())}
    return {"files": files, "made": count_made(place), "posted": count_posted(place)}


ORIENTED = {"summary": "a.txt is old.", "priorities": ["Renew it."], "risk_level": "low", "files": [{"path": "a.txt"}]}
CHANGED = {"action": "code_edit", "target": "a.txt", "old_string": "alpha", "new_string": "omega", "intent": "renew it"}
UNWANTED = {**CHANGED, "target": "a.txt", "old_string": "omega", "new_string": "omega omega"}
JUDGED = {"assessment": "success", "lessons": ["It was short."], "confidence": 0.4, "remaining": ["more"]}
DECIDED = {**CHANGED, "base": {"a.txt": sha256(b"alpha\n").hexdigest()}}
ACTED = {
    "status": "noop",
    "decision": {"action": "noop", "reason": "All is well."},
    "risk": "low",
    "files": [],
    "effect": {"digest": "0" * 64, "said": "noop: All is well."},
}
MANDATE = {"id": "renew", "goal": "a.txt says omega.", "observe": ["file_tree"]}
GIVEN: Mapping[Phase, Any] = {
    "observe": None,
    "orient": {"observations": []},
    "decide": ORIENTED,
    "act": DECIDED,
    "reflect": ACTED,
}
SAID: Mapping[str, Any] = {"orient": ORIENTED, "decide": CHANGED, "reflect": JUDGED}


def _phase(phase: Phase) -> Journey:
    async def start(app: App) -> str:
        return (await app.runs.start(PhaseRequest(phase, MandateRef(mandate=MANDATE), GIVEN[phase]), ME)).run_id

    return Journey(start, (says(json.dumps(SAID.get(phase, JUDGED))),), outside=_read_outside)


async def _cycles(app: App) -> str:
    return (await app.runs.start(CyclesRequest(MandateRef(mandate=MANDATE), cycles=2), ME)).run_id


TWO_CYCLES = tuple(says(json.dumps(said)) for said in (ORIENTED, CHANGED, JUDGED, ORIENTED, UNWANTED, JUDGED))
WHY = "The edit is made, and what it has changed is still to be read in all files; that takes two rounds more."
MORE = {"additional": 2, "justification": WHY, "progress_summary": "a.txt is edited."}
PLAN = {
    "analysis": "Three parts, of which the first two need nothing of each other.",
    "strategy": "decomposed",
    "tasks": [
        {"id": "edit", "agent": "file_manager", "description": "Edit a.txt."},
        {"id": "run", "agent": "system_operator", "description": "Run the command."},
        {"id": "look", "agent": "code_analyzer", "description": "Look at both.", "depends_on": ["edit", "run"]},
    ],
}
TURNS_OF_TASKS = {
    1: (reads("a.txt"), _calls("edit_file", **EDIT), _calls("request_more_rounds", **MORE), says("edited")),
    2: (reads("b.txt", "b.txt"), _calls("run_command", argv=["sh", "-c", "echo made >> made.txt"]), says("run")),
    3: (reads("a.txt"), says("looked")),
}
TEAM_LINES = (
    {"for": "synthesis", **says("all of it")},
    *(
        {"for": f"task-{task}/try-1/round-{number}", **turn}
        for task, turns in TURNS_OF_TASKS.items()
        for number, turn in enumerate(turns, 1)
    ),
)


async def _team(app: App) -> str:
    return (await app.runs.start(TeamRequest("see to it", PLAN, key="team"), ME)).run_id


Name = Literal[
    "planner", "team", "writing", "observe", "orient", "decide", "act", "reflect", "cycles", "call", "call-writing"
]
JOURNEYS: Mapping[Name, Journey] = {
    "planner": Journey(
        _start_planner(caller_tools=(ASK,)), (reads("a.txt", "b.txt", "a.txt"), asks("why"), says("done"))
    ),
    "writing": Journey(
        _start_planner(tools=("*",)),
        WRITING,
        allowed=("note",),
        denied=("round-5/call-1/approval",),
        outside=_read_outside,
    ),
    "team": Journey(_team, TEAM_LINES, outside=_read_outside),
    **{phase: _phase(phase) for phase in GIVEN},
    "cycles": Journey(_cycles, TWO_CYCLES, denied=("cycle-2/act/call-1/approval",), outside=_read_outside),
    "call": Journey(_start_call("read_file", path="a.txt"), (says("never"),)),
    "call-writing": Journey(_start_call("edit_file", **EDIT), (says("never"),), outside=_read_outside),
}
