"""Mandates saved and listed, and the runs that work on them: cycles, or one phase alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import apsw

from kairos_mcp.driving.days import day_to_charge
from kairos_mcp.errors import BadArguments, UnknownTool
from kairos_mcp.flows.ooda.order import EDITING
from kairos_mcp.flows.ooda.phases import PHASES
from kairos_mcp.freezing import freeze_ooda
from kairos_mcp.freezing.freeze_ooda import Ground
from kairos_mcp.freezing.orders import FLOWS, RUN, read_mandate
from kairos_mcp.hall.house import House
from kairos_mcp.hall.starting import Beginning, Started, begin, said
from kairos_mcp.mandates.mandate import Mandate, mandate_of
from kairos_mcp.mandates.schedules import due
from kairos_mcp.messages import JsonObject, canonical, digest_of
from kairos_mcp.reports.items import iso
from kairos_mcp.reports.mandated import mandate_status
from kairos_mcp.reports.report import Caller
from kairos_mcp.secrecy import masked
from kairos_mcp.spec import CyclesRequest, Phase, PhaseRequest, Route
from kairos_mcp.steps import UNLIMITED, Limits
from kairos_mcp.store import accounts, approvals, mandates
from kairos_mcp.store.codec import encode
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.tools.registry import Registry

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # as MANDATE_SCHEMA has it
ID_CHARS = 12  # of the digest, where a mandate has no id of its own
GOAL_CHARS = 200
LISTED_CHARS = 6_000  # of one page, as a run's result has
LOOKED_AT = 500  # mandates for one page, where most are of another status than the one asked for


@dataclass(frozen=True, slots=True)
class Meant:
    """The mandate that a call is about: one that was saved, one that stands in the call, or a bare goal."""

    mandate_id: str | None = None
    mandate: JsonObject | None = None
    goal: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller says of a run beside its mandate; `due`: the time of the schedule that it is for."""

    cycles: int | None = None
    route: Route = "auto"
    limits: Limits = UNLIMITED
    due: int | None = None


async def save(house: House, given: JsonObject, caller: Caller) -> JsonObject:
    """Save a mandate under its id, or one made of its digest. Raises BadArguments."""
    mandate, secrets = _read(house, given)
    registry = house.wiring.registry(house.wiring.workspace(mandate.workspace))
    mandate = _with_id(mandate)
    changed = await _saved(house, mandate, caller)
    told = _listed(house, mandates.named(house.store.reader, caller.principal, mandate.id or ""))
    notes = [*([masked.note(secrets)] if secrets else []), *_absent(registry, mandate)]
    following = {"tool": RUN, "arguments": {"mandate_id": mandate.id}, "why": "It runs its cycles."}
    return {**told, "changed": changed, "degraded": notes, "next": following}


def listed(house: House, status: str | None, cursor: str | None, caller: Caller) -> JsonObject:
    """A page of the caller's mandates by id, with the status of each, those of one status where it is given.

    {mandates, total: how many there are of every status, cursor: where the next page begins, null after the last}.
    A page may hold none and have a next one, since it ends with what it has looked at. Raises BadArguments.
    """
    if cursor is not None and not _ID.fullmatch(cursor):
        raise BadArguments("This cursor is not one of mandate_list.", "Take `cursor` from the page before, or none.")
    reader = house.store.reader
    rows = mandates.page(reader, caller.principal, cursor or "", LOOKED_AT + 1)
    found: list[JsonObject] = []
    room, last = LISTED_CHARS, ""
    for row in rows[:LOOKED_AT]:
        told = _listed(house, row)
        if status in (None, told["status"]):
            room -= len(canonical(told))
            if room < 0 and found:
                break
            found.append(told)
        last = row.id
    following = last if rows and rows[-1].id != last else None
    return {"mandates": found, "total": mandates.count(reader, caller.principal), "cursor": following}


async def run(house: House, meant: Meant, asked: Asked, caller: Caller) -> Started:
    """Start cycles of a mandate, or find its open run. Raises BadArguments, UnknownMandate, Stale, ConfigError."""
    await house.called()
    mandate, secrets = _found(house, meant, caller)
    mandate = _with_id(mandate)
    request = CyclesRequest(mandate, asked.cycles, asked.route, asked.limits, asked.due)
    ground = await _ground(house, mandate, caller)
    frozen = said(freeze_ooda.freeze_cycles(request, ground), secrets)
    if meant.mandate is not None:  # only now: nothing is saved where nothing can start
        await _saved(house, mandate, caller)
    start = digest_of(b"ooda_run", caller.principal.encode(), mandate.canonical.encode(), _rest(asked))
    wanted = Beginning(frozen, ground.workspace, start, mandate=mandate.id, due=asked.due)
    return await begin(house, wanted, caller)


async def phase(
    house: House, name: Phase, meant: Meant, given: JsonObject | None, asked: Asked, caller: Caller
) -> Started:
    """Start one phase alone. Raises BadArguments, also for what the phase before did not give; UnknownMandate."""
    await house.called()
    mandate, secrets = _found(house, meant, caller)
    if meant.mandate is not None and mandate.day != UNLIMITED:
        raise BadArguments(
            "mandate: day is counted for mandates that are saved.",
            "mandate_save it and give mandate_id, or leave day out.",
        )
    plain = None if given is None else masked.given(given, house.wiring.mask)
    before = PHASES[PHASES.index(name) - 1]
    giver = None if plain is None else mandates.gave(house.store.reader, caller.principal, FLOWS[before], plain)
    request = PhaseRequest(name, mandate, plain, asked.route, asked.limits, giver)
    ground = await _ground(house, mandate, caller)
    frozen = said(freeze_ooda.freeze_phase(request, ground), secrets)
    about = canonical({"mandate": mandate.as_json(), "given": plain}).encode()
    start = digest_of(FLOWS[name].encode(), caller.principal.encode(), about, _rest(asked))
    return await begin(house, Beginning(frozen, ground.workspace, start), caller)


def all_due(house: House, only: str | None, caller: Caller) -> list[tuple[str, int]]:
    """The mandates that are due now, each with the times to run it for, oldest first. Raises UnknownMandate."""
    reader, now = house.store.reader, house.clock()
    rows = mandates.saved(reader, caller.principal)
    if only is not None:
        rows = [mandates.named(reader, caller.principal, only)]
    found: list[tuple[str, int]] = []
    for row in rows:
        schedule = _of(row).schedule
        if schedule is None and only is not None:
            raise BadArguments(f"The mandate {row.id} has no schedule.", "Run it without --due.")
        if schedule is not None:
            last = row.saved_at if row.last_due is None else row.last_due
            found += [(row.id, at) for at in due(schedule, last, now)]
    return found


def _read(house: House, given: JsonObject) -> tuple[Mandate, int]:
    """A mandate from outside, and how many secrets were taken out of it."""
    checked = mandate_of(given)
    plain, secrets = masked.arguments(checked.as_json(), house.wiring.mask)
    return (mandate_of(plain), secrets) if secrets else (checked, 0)


def _absent(registry: Registry, mandate: Mandate) -> Iterator[str]:
    """What the mandate names and can't be had now; it may come yet, so it is said and not refused."""
    reads = {spec.name for spec in registry.select(None)} - EDITING
    for name in dict.fromkeys(look.tool for look in mandate.observe):
        if name not in reads and not registry.waits_for((name,)):
            yield f"observe: no tool that only reads is called {name!r} now, so it would be skipped."
    for name in mandate.tools or ():
        try:
            registry.select(() if registry.waits_for((name,)) else (name,))
        except UnknownTool as unknown:
            yield f"{unknown.message} A run of this mandate would be refused now."


def _with_id(mandate: Mandate) -> Mandate:
    return replace(mandate, id=mandate.id or f"m-{mandate.digest[:ID_CHARS]}")


async def _saved(house: House, mandate: Mandate, caller: Caller) -> bool:
    """Save it; what it says of a day holds from now on, today included."""
    row = MandateRow(
        caller.principal,
        mandate.id or "",
        encode(mandate.as_json()),
        mandate.digest,
        mandate.goal_hash,
        house.clock(),
    )
    at, zone = house.clock(), house.settings.time_zone

    def save(connection: apsw.Connection) -> bool:
        changed = mandates.save(connection, row)
        today = day_to_charge(connection, caller.principal, at, zone).day.name
        day = accounts.find_day(connection, caller.principal, today) if changed else None
        if day is not None and accounts.find_mandate(connection, day.id, row.id) is not None:
            accounts.mandate_account(connection, day.id, row.id, mandate.day)
        return changed

    return await house.store.submit(save)


def _found(house: House, meant: Meant, caller: Caller) -> tuple[Mandate, int]:
    match meant:
        case Meant(mandate_id=str(name), mandate=None, goal=None):
            return _of(mandates.named(house.store.reader, caller.principal, name)), 0
        case Meant(mandate_id=None, mandate=dict(given), goal=None):
            return _read(house, given)
        case Meant(mandate_id=None, mandate=None, goal=str(goal)):
            return _read(house, {"goal": goal})
        case _:
            raise BadArguments("Which mandate is meant?", "Give just one: mandate_id, mandate, or for a phase goal.")


def _of(row: MandateRow) -> Mandate:
    return read_mandate(row.body)


async def _ground(house: House, mandate: Mandate, caller: Caller) -> Ground:
    workspace = house.wiring.workspace(mandate.workspace)
    registry = await house.wiring.ready(workspace, mandate.tools)
    output = None
    if mandate.id is not None:
        output = mandates.newest_output(house.store.reader, caller.principal, mandate.id)
    return Ground(house.settings, registry, workspace, caller.samples, output)


def _rest(asked: Asked) -> bytes:
    told: dict[str, Any] = asdict(asked)
    return canonical(told).encode()


def _listed(house: House, row: MandateRow) -> JsonObject:
    mandate, reader = _of(row), house.store.reader
    goal = mandate.goal if len(mandate.goal) <= GOAL_CHARS else f"{mandate.goal[: GOAL_CHARS - 1]}…"
    told: JsonObject = {
        "mandate_id": row.id,
        "goal": goal,
        "status": "created",
        "digest": row.digest,
        "saved_at": iso(row.saved_at),
    }
    if mandate.schedule is not None:
        told["schedule"] = mandate.schedule.as_json()
        told["last_due"] = None if row.last_due is None else iso(row.last_due)
    newest = mandates.newest_run(reader, row.principal, row.id)
    if newest is None:
        return told
    waits = approvals.waits(reader, newest.n) if newest.outcome is None else None
    return {**told, **mandate_status(newest, waits), "run_id": newest.id}
