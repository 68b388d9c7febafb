"""What an operator looks for: runs by principal, status, age, model or server, and whatever an id names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Literal, NamedTuple

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.overview import Overview
from kairos_mcp.app.runs import Runs
from kairos_mcp.app.tasks import TASK_INFIX
from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.errors import BadArguments, NotFound, UnknownRun
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store import approvals, find_runs, mandates, ownership, queries, tasks
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.find_runs import ENDED, FoundRun, NumberedRun, WantedRuns
from kairos_mcp.store.rows import Session
from kairos_mcp.store.tasks import TaskRow
from kairos_mcp.views.run_report import RunReport

PAGE_RUNS = 100  # candidates that are looked at in one read
_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_TASK_KEY = re.compile(re.escape(TASK_INFIX.removeprefix("/")) + "([0-9]{1,9})")
_MANDATE_PREFIX = "mandate:"
IdKind = Literal["run", "step", "approval", "task", "mandate"]


class OwnedReport(NamedTuple):
    """The report of a run, and whose run it is."""

    principal: str
    report: RunReport


class NamedThing(NamedTuple):
    """What an id names: its kind, the run that it belongs to (none for a mandate), and its key there, or its id."""

    kind: IdKind
    run: FoundRun | None
    key: str
    principal: str


class Finder(Operations):
    """Find runs and other things, whoever's they are: for whoever owns the state folder or the database."""

    def __init__(self, context: AppContext, runs: Runs, overview: Overview) -> None:
        super().__init__(context)
        self._runs, self._overview = runs, overview

    async def list_runs(
        self, wanted: WantedRuns, limit: int, caller: Caller, *, everywhere: bool = True
    ) -> list[OwnedReport]:
        """Return the newest runs that are wanted, at most `limit`, newest first, as `caller` would see their own: of
        this server's workspaces, or `everywhere`."""
        if not everywhere:
            wanted = wanted._replace(workspaces=self._context.listed_workspaces)
        found: list[OwnedReport] = []
        before: int | None = None
        by_look = wanted.state not in (None, "queued", *ENDED)
        page_size = max(limit, PAGE_RUNS) if by_look else limit
        while self._store.exists and len(found) < limit:
            page = await self._store.read(partial(self._list_page, wanted=wanted, size=page_size, before=before))
            reports = await self._report_each(page, caller)
            found += [each for each in reports if not by_look or each.report.state == wanted.state]
            if len(page) < page_size:
                break
            before = page[-1].n
        return found[:limit]

    def _list_page(self, session: Session, wanted: WantedRuns, size: int, before: int | None) -> Sequence[NumberedRun]:
        is_queue = wanted.state == "queued"
        dead = ownership.dead_owners(session, self._store.owners, self._store.owner_number) if is_queue else ()
        return find_runs.list_wanted(session, wanted, size, dead=dead, before=before)

    async def _report_each(self, page: Sequence[NumberedRun], caller: Caller) -> list[OwnedReport]:
        reports: list[OwnedReport] = []
        for principal, runs in groupby(page, key=lambda run: run.principal):
            ids, owner = [run.run_id for run in runs], replace(caller, principal=principal)
            reports += [OwnedReport(principal, each) for each in await self._runs.list_reports(ids, owner)]
        return reports

    async def count_others(self, principal: str) -> int:
        """Count the runs of other principals."""
        return await self._store.read(lambda session: find_runs.count_others(session, principal))

    async def find(self, name: str, principal: str | None) -> NamedThing:
        """Return what an id names: a run (as `Overview.find_run`); RUN/PATH, a step, an approval or an MCP task of it;
        the beginning of an approval's digest; a mandate's id, also with `mandate:` before it.

        `principal`: whose it has to be. Raises UnknownRun where nothing has that id, BadArguments where several do.
        """
        head, slash, key = name.partition("/")
        try:
            run, _ = await self._overview.find_run(head, principal)
        except UnknownRun:
            if slash or not self._store.exists:
                raise
            found = await self._store.read(lambda session: self._find_no_run(session, name, principal))
            if not found:
                raise
            if len(found) > 1:
                whose = ", ".join(dict.fromkeys(each.principal for each in found))
                cure = f"Say whose it is, by --principal: {whose}." if "," in whose else "Give more of the id."
                raise BadArguments(f"Several things have the id {name[:40]!r}.", cure) from None
            return found[0]
        if not slash:
            return NamedThing("run", run, "", run.principal)
        kind = await self._store.read(lambda session: _kind_of_key(session, run, key))
        if kind is None:
            raise NotFound(
                f"Run {run.run_id} has no {key[:80]!r}.",
                f"`kairos-mcp show {run.run_id} --view events` lists what it has.",
            )
        return NamedThing(kind, run, key, run.principal)

    @staticmethod
    def _find_no_run(session: Session, name: str, principal: str | None) -> list[NamedThing]:
        mandate_id = name.removeprefix(_MANDATE_PREFIX)
        owners = sorted({row.principal for row in mandates.find_everywhere(session, mandate_id)})
        found = [NamedThing("mandate", None, mandate_id, owner) for owner in owners if principal in (None, owner)]
        if len(found) > 1 and LOCAL in owners and principal is None:
            found = [each for each in found if each.principal == LOCAL]
        if found or not _DIGEST.fullmatch(name):
            return found
        return [
            NamedThing("approval", run, key, run.principal)
            for run, key in find_runs.find_by_digest(session, name, 2)
            if principal in (None, run.principal)
        ]

    async def show(self, thing: NamedThing) -> JsonObject:
        """Return a step, an approval, a task or a mandate as JSON: its `kind`, and what its rows say."""
        if thing.run is None:
            return await self._show_mandate(thing)
        run_id, key = thing.run.run_id, thing.key
        base: JsonObject = {"kind": thing.kind, "run_id": run_id, "principal": thing.principal}
        if thing.kind == "step":
            steps = await self._overview.watch_steps(run_id)
            await self._overview.read_steps(steps)
            (step,) = (step for _, step in steps.since() if step["path"] == key)
            return {**base, "step_kind": step["kind"], **{name: step[name] for name in step if name != "kind"}}

        def read(session: Session) -> JsonObject:
            run = queries.run_by_id(session, run_id)
            if thing.kind == "task":
                row = tasks.find_task(session, run, _task_number(key))
                assert row is not None
                return {"task_id": f"{run_id}/{key}", **_task_json(row)}
            approval = approvals.find_by_key(session, run.n, key)
            assert approval is not None
            return {"key": key, **_approval_json(approval)}

        return {**base, **await self._store.read(read)}

    async def _show_mandate(self, thing: NamedThing) -> JsonObject:
        """Show a mandate of whatever workspace; the newest saved, where several have one of this id."""
        rows = await self._store.read(lambda session: mandates.find_by_id(session, thing.principal, thing.key))
        newest = max(rows, key=lambda row: row.saved_at)
        return {
            "kind": "mandate",
            "mandate_id": newest.id,
            "principal": newest.principal,
            "workspace": newest.workspace or None,
            "saved_at": format_timestamp(newest.saved_at),
            "mandate": newest.parse().as_json(),
        }


def _kind_of_key(session: Session, run: FoundRun, key: str) -> IdKind | None:
    row = queries.run_by_id(session, run.run_id)
    if queries.step_at(session, row.n, key) is not None:
        return "step"
    if approvals.find_by_key(session, row.n, key) is not None:
        return "approval"
    number = _task_number(key)
    return "task" if number and tasks.find_task(session, row, number) is not None else None


def _task_number(key: str) -> int:
    """Return which task of its run a key names; 0 where it names none."""
    found = _TASK_KEY.fullmatch(key)
    return 0 if found is None else int(found[1])


def _approval_json(row: ApprovalRow) -> JsonObject:
    return {
        "path": row.path,
        "name": row.tool,
        "effect": row.effect,
        "digest": row.digest,
        "preview": row.person_preview,
        "asked_at": format_timestamp(row.asked_at),
        "expires_at": format_timestamp(row.expires_at),
        "verdict": row.verdict,
        "by": row.decided_by,
        "through": row.via,
        "client": row.client,
        "feedback": row.feedback,
    }


def _task_json(row: TaskRow) -> JsonObject:
    times = {name: getattr(row, name) for name in ("created_at", "fetched_at", "cancelled_at", "ended_at")}
    shown = {name: None if at is None else format_timestamp(at) for name, at in times.items()}
    return {"client": row.client, "ending": row.ending, **shown}
