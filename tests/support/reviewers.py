"""Runs that wait for approval, and clients whose user is shown a dialog, in both protocol eras."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import mcp_types as wire
from mcp.client.client import Client

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.execution.authorization import approval_digest
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY, WaitPolicy
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.page_server import serve_beside
from kairos_mcp.store import approvals
from kairos_mcp.store.approvals import ApprovalRequest
from support.app import ASK, ME, Place, asks, rests, says
from support.sampling_clients import ERAS, LEGACY, MODERN, ClientModel, ConnectedClient, capability, provide_app

__all__ = ["ERAS", "LEGACY", "MODERN"]

STEP = "round-1/call-1"
KEY = f"{STEP}/approval"
DIFF = "edit a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,1 +1,1 @@\n-alpha\n+omega"
APPROVE, DENY = {"decision": "approve"}, {"decision": "deny"}
UNHURRIED = replace(DEFAULT_WAIT_POLICY, instant_s=0.0)  # of a client in this process, which declines within no time
LASTS_MS = 72 * 3_600_000
NOW = 1_700_000_000_000


@dataclass
class Person:
    """Whoever sits before a client: what they do with each dialog, in turn. `seen` is what they were shown."""

    replies: list[wire.ElicitResult | wire.ErrorData] = field(default_factory=list)
    seen: list[wire.ElicitRequestFormParams] = field(default_factory=list)

    async def __call__(self, _ctx: object, params: wire.ElicitRequestFormParams) -> wire.ElicitResult | wire.ErrorData:
        self.seen.append(params)
        return self.replies[len(self.seen) - 1]


@dataclass
class Absent(Person):
    """Nobody ever touches the dialog; `shown` is set once it is there."""

    shown: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, _ctx: object, params: wire.ElicitRequestFormParams) -> wire.ElicitResult:
        self.seen.append(params)
        self.shown.set()
        await asyncio.Event().wait()
        raise AssertionError


@dataclass
class Thinking(Person):
    """Somebody who takes their time: they decide once `decided` is set; `shown` once they are asked, `closed` once the
    dialog was taken away."""

    shown: asyncio.Event = field(default_factory=asyncio.Event)
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, ctx: object, params: wire.ElicitRequestFormParams) -> wire.ElicitResult | wire.ErrorData:
        self.seen.append(params)
        self.shown.set()
        try:
            await self.decided.wait()
        except asyncio.CancelledError:
            self.closed.set()
            raise
        return self.replies[len(self.seen) - 1]


def accepts(**content: Any) -> wire.ElicitResult:
    return wire.ElicitResult(action="accept", content=content)


DECLINES, CANCELS = wire.ElicitResult(action="decline"), wire.ElicitResult(action="cancel")


@asynccontextmanager
async def connect_person(
    app: App,
    era: str,
    person: Person | None,
    *,
    patience: WaitPolicy = UNHURRIED,
    model: ClientModel | None = None,
    name: str = "a client",
    version: str = "1",
) -> AsyncIterator[ConnectedClient]:
    """A client of this era with this person as its user; without one it declares no dialogs."""
    client = Client(
        build_server(provide_app(app), app.settings, patience, serve_beside),
        mode=ERAS[era],
        client_info=wire.Implementation(name=name, version=version),
        elicitation_callback=person,  # type: ignore[arg-type]  # it is shown forms alone
        sampling_callback=model,
        sampling_capabilities=capability(model),
    )
    async with client:
        yield ConnectedClient(client, app)


@asynccontextmanager
async def open_asking_app(place: Place, *lines: Mapping[str, Any], **changes: Any) -> AsyncIterator[App]:
    """An app whose script asks for a call of the caller's own tool first."""
    script = lines or (asks("may I?"), says("done"))
    async with App.open(place.settings(*script, **changes), via="mcp") as app:
        yield app


async def waiting(
    app: App,
    place: Place,
    *,
    goal: str = "change it",
    caller: Caller = ME,
    preview: str = DIFF,
    key: str | None = None,
) -> str:
    """A run whose first call waits for approval."""
    request = PlannerRequest(goal, caller_tools=(ASK,), key=key)
    run_id = (await app.runs.start(request, caller)).run_id
    await app.runs.wait([run_id], until="rest", wait_s=20, caller=caller)
    assert asks_for(place, run_id, preview=preview)
    return run_id


def asks_for(place: Place, run_id: str, *, preview: str = DIFF, path: str = STEP, at: int | None = None) -> bool:
    """Ask for approval, as the commit does it; at the app's own time unless `at` is given. Returns whether it was
    asked at once."""
    ((n, mark, asked_at),) = place.rows(
        "select run.n, step.id, step.at from run join step on step.run = run.n where run.id = ? and path = ?",
        run_id,
        path,
    )
    asking = ApprovalRequest(
        key=path + approvals.KEY_SUFFIX,
        tool=ASK.name,
        effect=ASK.effect,
        digest=approval_digest(ASK, {"question": "may I?"}, None, preview, {}),
        preview=preview,
        base_hashes={"a.txt": "0" * 64},
        valid_for_ms=LASTS_MS,
    )
    with place.store().write_session() as session:
        approvals.add_approval(session, n, mark, asking, asked_at if at is None else at)
        ((is_asked,),) = session.rows(
            "select not unasked from approval where step = ? order by n desc limit 1", (mark,)
        )
        return bool(is_asked)


def digest(place: Place, run_id: str, key: str = KEY) -> str:
    """What the approval under this key is bound to."""
    statement = (
        "select approval.digest from approval join run on run.n = approval.run where run.id = ? and approval.key = ?"
    )
    ((found,),) = place.rows(statement, run_id, key)
    return str(found)


def shown_of(place: Place) -> list[dict[str, Any]]:
    """How much of each approval that was decided in a dialog was shown there, without the time that it was open."""
    found = [json.loads(shown) for (shown,) in place.rows("select shown from approval where shown is not null")]
    return [{name: value for name, value in shown.items() if name != "open_ms"} for shown in found]


def verdicts(place: Place) -> list[tuple[Any, ...]]:
    """What was decided about each approval, by whom, through what, and what they said."""
    return place.rows("select verdict, by, through, feedback from approval order by step")


async def status(app: App, run_id: str) -> str:
    return (await rests(app, run_id)).status
