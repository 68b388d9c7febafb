"""Starts runs: a request is frozen, its run made or found, and driven. What a new run takes over from an old one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kairos_mcp.app.context import AppContext
from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import BadArguments, Stale
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.messages import JsonObject, digest_of
from kairos_mcp.core.outcome import Outcome
from kairos_mcp.core.run_spec import PlannerRequest, Spec
from kairos_mcp.specs import build
from kairos_mcp.specs.build import BuiltSpec, ContinuedRun
from kairos_mcp.store import queries, runs
from kairos_mcp.store.codec import decode, encode
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.runs import NewRun
from kairos_mcp.views import transcript

EARLIER = 3  # summaries of earlier runs that a continued one is shown


@dataclass(frozen=True, slots=True)
class StartResult:
    """The run of a start; `attached`: an identical start had made it before."""

    run_id: str
    attached: bool


async def planner(context: AppContext, request: PlannerRequest, caller: Caller) -> StartResult:
    """Start a planner run. Raises BadArguments and its leaves, UnknownRun, UnknownTool, Stale, ConfigError."""
    await context.register_use()
    request, secrets = redact_values.redact_request(request, context.factory.mask)
    asked = encode(replace(request, workspace=None))  # it has a column of its own beside the digest
    start = digest_of(b"planner_run", caller.principal.encode(), asked.encode())
    workspace = _workspace(context, request, caller)
    past = _past(context, request.continues, caller) if request.continues is not None else None
    registry = await context.factory.ready_registry(workspace, request.tools)
    frozen = note_redactions(
        build.build_planner_spec(request, context.settings, registry, past, samples=caller.samples), secrets
    )
    return await begin(context, NewRunPlan(frozen, workspace, start, request.key), caller)


async def call(context: AppContext, name: str, arguments: JsonObject, caller: Caller) -> str:
    """Start a run of one tool call. Raises UnknownTool, BadArguments."""
    await context.register_use()
    workspace = context.factory.workspace(None)
    given, secrets = redact_values.redact_arguments(arguments, context.factory.mask)
    registry = await context.factory.ready_registry(workspace, (name,))
    frozen = note_redactions(build.build_call_spec(name, given, context.settings, registry), secrets)
    unique = context.new_id().encode()  # a call made twice is two calls
    return (await begin(context, NewRunPlan(frozen, workspace, digest_of(b"registry_call", unique)), caller)).run_id


def note_redactions(frozen: BuiltSpec, secrets: int) -> BuiltSpec:
    """With a note where secrets were taken out."""
    return frozen if not secrets else replace(frozen, notes=(*frozen.notes, redact_values.redaction_note(secrets)))


@dataclass(frozen=True, slots=True)
class NewRunPlan:
    """A run that is to begin. `start_digest` is equal for identical starts in one workspace; `mandate` is the id of the
    one whose cycles it runs, `due` the time of its schedule that it is for."""

    frozen: BuiltSpec
    workspace: str | None
    start_digest: bytes
    key: str | None = None
    mandate: str | None = None
    due: int | None = None


async def begin(context: AppContext, wanted: NewRunPlan, caller: Caller) -> StartResult:
    """Make the run and drive it, or find the one that it would be. Raises BadArguments, Stale."""
    frozen = wanted.frozen
    spec, texts = redact_values.redact_spec(frozen.spec, frozen.texts, context.factory.mask)
    at = context.clock()
    owner = await context.store.register_owner(at)
    new = NewRun(
        id=context.new_id(),
        flow=spec.flow,
        version=frozen.version,
        spec=encode(spec),
        texts=texts,
        notes=frozen.notes,
        limits=frozen.limits,
        route=spec.route,
        principal=caller.principal,
        via=caller.via,
        client=caller.client,
        key=wanted.key,
        start_digest=wanted.start_digest,
        workspace=wanted.workspace,
        at=at,
        mandate=wanted.mandate,
        due=wanted.due,
    )
    made = await context.store.submit(lambda connection: runs.create_run(connection, new, owner))
    if not made.is_attached:
        context.pool.start(made.run, made.run.fence)
    return StartResult(made.run.id, made.is_attached)


def _workspace(context: AppContext, request: PlannerRequest, caller: Caller) -> str | None:
    """The folder that the run is to work in: the one that is asked for, else that of the run it continues, else the
    first. Raises BadArguments where it would go on in another folder than the run before it."""
    if request.continues is None:
        return context.factory.workspace(request.workspace)
    before = context.find_run(request.continues, caller).workspace
    if request.workspace is None and context.serves(before):
        return before
    if before is None or context.factory.workspace(request.workspace) != before:
        where = "in no folder" if before is None else f"in {caller.visible_path(before)}"
        raise BadArguments(
            f"That run worked {where}, and a run that continues it works in the same.",
            "Leave out workspace, on a server of that folder; or start without `continues`.",
            run_id=request.continues,
        )
    return before


def _past(context: AppContext, run_id: str, caller: Caller) -> ContinuedRun:
    """The conversation of a run that has ended or can't go on, and the newest summaries of those that led to it."""
    run = context.find_run(run_id, caller)
    if run.outcome is None and not _is_stuck(context, run):
        raise Stale("That run has not ended.", "Wait for it with run_status, or cancel it.", run_id=run_id)
    with queries.name_run_in_errors(run):
        brief = context.factory.load_spec(run).planner_input
        told = (
            transcript.conversation(brief, queries.read_record(context.store.reader, run.n))
            if brief is not None
            else ()
        )
    if brief is None:
        raise BadArguments("That run is no planner run; it has no one conversation.", "Start without `continues`.")
    summaries: list[str] = []
    before: str | None = run_id
    while before is not None and len(summaries) < EARLIER:
        earlier = context.find_run(before, caller)
        summaries.append(_summary(context, earlier))
        spec: Spec = decode(Spec, earlier.spec)
        before = spec.continues
    return ContinuedRun(run_id, told, tuple(reversed(summaries)))


def _is_stuck(context: AppContext, run: RunRow) -> bool:
    """Whether the run's record does not fit its flow any more: a new run may go on from it, itself it can't."""
    try:
        context.pool.state_of(run)
    except Stale:
        return True
    return False


def _summary(context: AppContext, run: RunRow) -> str:
    if run.outcome is None:
        return transcript.summary(queries.read_record(context.store.reader, run.n))
    outcome: Outcome = decode(Outcome, run.outcome)
    return outcome.summary or ""
