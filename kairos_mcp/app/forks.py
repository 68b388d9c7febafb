"""Fork a plan, a team, a phase or cycles: start a run of the same flow that goes on at a step of an earlier one.

The new run takes over the answers before that step, and nothing else: it has limits and approvals of its own, and files
are as they are now. A run of cycles may be forked while its mandate is as it was and has no open run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kairos_mcp.app.context import AppContext
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import ReplayDiffers, Stale, replay_mismatch
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.text import truncate
from kairos_mcp.specs.build import BuiltSpec
from kairos_mcp.specs.fork import ForkSource, build_fork_spec, check_fork_request
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.store import mandates, queries, rows
from kairos_mcp.store.mandates import read_mandate
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session
from kairos_mcp.views.fork import fork_at_step

SHOWN_WORDS = 200


async def build_fork(
    context: AppContext, request: PlannerRequest, workspace: str | None, caller: Caller
) -> tuple[BuiltSpec, str | None] | None:
    """Build the spec of a fork, and name the mandate whose cycles it runs; None where the request goes on from a
    conversation, as a round of a loop has one.

    Raises BadArguments, UnknownRun, Stale, ConfigError.
    """
    path = request.from_round
    if request.continues is None or path is None:
        return None
    run = await context.find_run(request.continues, caller)
    kind = kind_of(run.flow)
    if not kind.forks_at_steps:
        return None
    with queries.name_run_in_errors(run):
        loaded = await context.factory.specs.load(run)
        record = await context.store.read(lambda session: queries.read_record(session, run.n))
        if any(row.path == path and row.kind == "round" for row in record):
            return None
        check_fork_request(request)
        context.factory.check_version(run)
        try:
            point, offered, notes = fork_at_step(loaded, record, path)
        except ReplayDiffers as mismatch:
            raise replay_mismatch(run.id, mismatch) from mismatch
        mandate = await context.store.read(lambda session: _read_mandate(session, loaded.spec.mandate_text))
        results = [each for each, answer in point.answers.items() if isinstance(answer, ToolResult)]
        whose = await asyncio.to_thread(context.factory.make_flow_view(run, loaded).label_results, results)
    if kind.has_cycles and mandate is not None:
        await _check_mandate(context, run, mandate)
    point = replace(point, words=request.goal)
    taken_over = dict(zip(results, whose, strict=True))
    source = ForkSource(loaded, point, offered, mandate, workspace, caller.samples, taken_over)
    built = build_fork_spec(request, source, context.settings)
    begins = f"It goes on at {point.path} of {run.id}, with that run's answers before it."
    words = (f"Said there in addition: {truncate(request.goal, SHOWN_WORDS)}",) if request.goal else ()
    return replace(built, notes=(begins, *words, *notes, *built.notes)), run.mandate


def _read_mandate(session: Session, content_hash: str | None) -> Mandate | None:
    text = None if content_hash is None else rows.read_text(session, content_hash)
    return None if text is None else read_mandate(text)


async def _check_mandate(context: AppContext, run: RunRow, mandate: Mandate) -> None:
    """Raise Stale where the mandate is no longer the one whose cycles this run did, or where a run of it is open."""

    def check(session: Session) -> None:
        saved = mandates.find(session, run.principal, run.workspace or "", run.mandate or "")
        if saved is None or saved.digest != mandate.digest:
            raise Stale(
                f"The mandate {run.mandate} has changed since that run, so its cycles can't continue.",
                "ooda_run starts cycles of the current mandate.",
                run_id=run.id,
            )
        open_run = mandates.open_run(session, run.principal, run.workspace or "", saved.id)
        if open_run is not None:
            raise Stale(
                f"The mandate {saved.id} has an open run, {open_run.id}, and can have only one.",
                f'Wait until it has ended, or end it: run_control run_id="{open_run.id}" action="cancel".',
                run_id=open_run.id,
            )

    await context.store.read(check)
