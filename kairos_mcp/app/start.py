"""Start runs: build a spec from a request, create the run or find it, and drive it; or continue an earlier run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kairos_mcp.app.context import AppContext, read_run
from kairos_mcp.app.redact_aside import redact_aside
from kairos_mcp.core import redact_values
from kairos_mcp.core.builtin_tools import FILE_TREE, LIST_FILES, SEARCH_FILES
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, ReplayDiffers, Stale, replay_mismatch
from kairos_mcp.core.messages import JsonObject, digest_of
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import PlannerRequest, Spec
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.gate_rules import unused_rules
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import BuiltSpec
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.specs.planner import ContinuedRun
from kairos_mcp.specs.short_prompts import (
    FileNames,
    FoundLines,
    GoalLines,
    choose_lines,
    drop_commonest,
    goal_words,
    search_arguments,
)
from kairos_mcp.store import ownership, queries, runs
from kairos_mcp.store.mandates import list_mandate_ids
from kairos_mcp.store.queries import RunRow, StepRow
from kairos_mcp.store.rows import Session, decode, encode
from kairos_mcp.store.runs import NewRun
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_redacted
from kairos_mcp.views import transcript
from kairos_mcp.views.fork import Fork, describe_rounds, fork_run

MAX_EARLIER_SUMMARIES = 3  # of earlier runs, for a run that continues them
ALL_FILES: JsonObject = {"glob": "*", "limit": 200}
FILE_NAMES_S = 0.05  # the longest that the names of a workspace's files are collected at a run's start
GOAL_LINES_S = 0.2  # the longest that a workspace is searched for the words of a goal; the model takes seconds
FILE_NAMES_GRACE_S = 1.0  # for a thread that is free, and what was found to be written out


@dataclass(frozen=True, slots=True)
class StartResult:
    """The run that a start made; `attached`: an identical start had made it before."""

    run_id: str
    attached: bool


def note_redactions(built: BuiltSpec, secrets: int) -> BuiltSpec:
    """Add a note to the spec if secrets (their number) were redacted in its request."""
    return built if not secrets else replace(built, notes=(*built.notes, redact_values.redaction_note(secrets)))


async def note_idle_rules(
    context: AppContext, built: BuiltSpec, registry: ToolRegistry, own_tools: Sequence[str] = ()
) -> BuiltSpec:
    """Add a note to the spec for each rule of the gate that fits nothing that the run could call; `own_tools` are those
    of the caller."""
    if not context.settings.gate:
        return built
    withheld = [rule.tools for rule in context.settings.gate if registry.can_resolve((rule.tools,))]
    names = (*registry.names, *own_tools, *withheld)
    return replace(
        built, notes=(*built.notes, *await find_idle_rules(context, registry, names, registry.unknown_sources))
    )


async def find_idle_rules(
    context: AppContext, registry: ToolRegistry, names: Iterable[str], unmet: Iterable[str]
) -> tuple[str, ...]:
    """Return a sentence for each rule of the gate that fits none of these names of tools, or no category, agent or
    mandate. `unmet`: servers whose tools are not known yet."""
    rules = context.settings.gate
    agents = mandates = None
    if any(rule.agent is not None for rule in rules):
        agents = await asyncio.to_thread(_agent_names, context.settings)
    if any(rule.mandate is not None for rule in rules):
        mandates = await context.store.read(list_mandate_ids) if context.store.exists else ()
    return unused_rules(
        rules,
        names,
        (f"{name}__" for name in unmet),
        categories=registry.categories,
        agents=agents,
        mandates=mandates,
    )


def _agent_names(settings: Settings) -> tuple[str, ...] | None:
    """Return the names of all agents, None where a workspace may bring more."""
    from kairos_mcp.settings.agents import load_agents

    if settings.claude_agents:
        return None
    files = load_agents(settings)
    return (*files.agents, *(each.name for each in files.disabled))


@dataclass(frozen=True, slots=True)
class NewRunPlan:
    """A run to be started.

    `start_digest` is equal for identical starts in one workspace. `mandate`: the id of the mandate whose cycles it
    runs; `due`: the scheduled time that it is for, in milliseconds since 1970. `is_another`: an open run of an
    identical start is left as it is.
    """

    built: BuiltSpec
    workspace: str | None
    start_digest: bytes
    key: str | None = None
    mandate: str | None = None
    due: int | None = None
    is_another: bool = False


async def start_run(context: AppContext, plan: NewRunPlan, caller: Caller) -> StartResult:
    """Create the run and drive it, or leave it to a server; or find the run of an identical start. Raises BadArguments,
    Stale."""
    built, redactor, tracing = plan.built, context.factory.redactor, context.factory.tracing
    marked = built.spec if tracing is None else tracing.mark_spec(built.spec)
    spec, texts, secrets = await redact_aside(redact_values.redact_spec, marked, built.texts, redactor)
    built = note_redactions(built, secrets)
    if context.settings.keep_days is not None:
        context.retention.sweep_if_due()
    at = context.clock()
    is_left = await context.leaves_start(plan.workspace, spec.route, caller)
    place = None if plan.workspace is None else context.settings.place
    owner = ownership.ANY_SERVER if is_left else await context.store.register_owner(at)
    new = NewRun(
        id=context.new_id(),
        flow=spec.flow,
        version=kind_of(spec.flow).specs.version,
        spec=encode(spec),
        texts=texts,
        notes=built.notes,
        limits=built.limits,
        route=spec.route,
        principal=caller.principal,
        via=caller.via,
        client=caller.client,
        key=None if plan.key is None else redactor.redact_text(plan.key).text,
        start_digest=plan.start_digest if place is None else digest_of(plan.start_digest, place.encode()),
        workspace=plan.workspace,
        at=at,
        mandate=plan.mandate,
        due=plan.due,
        is_another=plan.is_another,
        place=place,
    )
    if is_left:
        before = await context.store.submit(lambda session: runs.create_run(session, new, owner))
    else:
        before = await context.pool.create_run(new, spec, owner)
    return StartResult(new.id if before is None else before.id, before is not None)


async def choose_workspace(context: AppContext, request: PlannerRequest, caller: Caller) -> str | None:
    """Return the folder that the run works in: the requested one, else that of the run it continues, else the first.

    Raises BadArguments where a run would be continued in another folder.
    """
    if request.continues is None:
        return context.factory.find_workspace(request.workspace)
    run = await context.find_run(request.continues, caller)
    before, is_here = run.workspace, context.factory.has_folder(run)
    if request.workspace is None and is_here:
        return before
    if before is None or not is_here or context.factory.find_workspace(request.workspace) != before:
        where = "in no folder" if before is None else f"in {caller.visible_path(before)}"
        raise BadArguments(
            f"That run worked {where}, and a run that continues it must work there too.",
            "Leave out workspace, on a server of that folder; or start without `continues`.",
            run_id=request.continues,
        )
    return before


async def read_file_names(context: AppContext, workspace: str | None) -> FileNames:
    """Return the names of a workspace's files, through the gate: the paths of all where they are few, else as
    `file_tree` shows them; none where a rule forbids that, or where it would take long."""
    resources = context.factory.resources(workspace)
    gate, calls = resources.gate, list[tuple[Tool, JsonObject, GatedCall]]()
    for name, arguments in ((LIST_FILES.name, ALL_FILES), (FILE_TREE.name, {})):
        tool = resources.registry.find(name)
        if tool is None or gate.judge(call := GatedCall(tool.spec, arguments)).decision != "allow":
            return FileNames()
        calls.append((tool, arguments, call))

    def read_names() -> FileNames:
        for tool, _, _ in calls:
            assert tool.schema  # compiled before the clock runs: the first one of a process imports jsonschema
        deadline, names = time.monotonic() + FILE_NAMES_S, FileNames()
        for tool, arguments, call in calls:
            ctx = ToolContext("", deadline, lambda _ref: None, is_hidden=gate.hidden_path_test(call))
            names = FileNames.of_result(call_redacted(context.factory.redactor, tool, arguments, ctx))
            if names.is_whole:
                break
        return names

    try:
        return await resources.workers.call(FILE_NAMES_GRACE_S, read_names)
    except TimeoutError:
        return FileNames()


async def read_goal_lines(context: AppContext, workspace: str | None, goal: str) -> GoalLines:
    """Return the lines of a workspace that hold the rarer words of a goal, found by `search_files` through the gate;
    none where a rule forbids that. Where the time ends the search, it is what was found until then."""
    resources, words = context.factory.resources(workspace), goal_words(goal)
    tool = resources.registry.find(SEARCH_FILES.name)
    if tool is None or not words:
        return GoalLines()
    call = GatedCall(tool.spec, search_arguments(words))
    if resources.gate.judge(call).decision != "allow":
        return GoalLines()

    def search() -> GoalLines:
        assert tool.schema  # compiled before the clock runs
        deadline, left = time.monotonic() + GOAL_LINES_S, words
        ctx = ToolContext("", deadline, lambda _ref: None, is_hidden=resources.gate.hidden_path_test(call))
        while True:
            found = FoundLines.of_result(call_redacted(context.factory.redactor, tool, search_arguments(left), ctx))
            if not found.is_cut or len(left) == 1 or time.monotonic() >= deadline:
                return choose_lines(left, found)
            left = drop_commonest(left, found)

    try:
        return await resources.workers.call(FILE_NAMES_GRACE_S, search)
    except TimeoutError:
        return GoalLines()


async def read_continued_run(context: AppContext, request: PlannerRequest, caller: Caller) -> ContinuedRun | None:
    """Read the conversation of the run that a request continues, and the newest summaries of the runs before the new
    one; None where it continues none.

    That run has ended or can't go on; cut at one of its rounds it may be any run. Raises UnknownRun, BadArguments,
    Stale.
    """
    if not request.goal and (request.from_round is None or request.context is not None or request.messages):
        raise BadArguments(
            "There is no goal.",
            "State a goal. Only a run that continues another at a round (continues and from) needs none; it then "
            "takes no context and no messages.",
        )
    if request.continues is None:
        if request.from_round is not None:
            raise BadArguments("from needs continues.", "Give the run to go on from in continues too.")
        return None
    run = await context.find_run(request.continues, caller)
    if request.from_round is None and run.outcome is None and not await _is_stuck(context, run):
        raise Stale(
            "That run has not ended.",
            "Wait for it with run_status, cancel it, or go on from one of its rounds (from).",
            run_id=run.id,
        )
    with queries.name_run_in_errors(run):
        loaded = await context.factory.specs.load(run)
        record = await context.store.read(lambda session: queries.read_record(session, run.n))
        if request.from_round is not None:
            cut = _cut_run(context, run, loaded, record, request.from_round)
        elif loaded.planner_input is not None:
            answers, kinds = transcript.answers_by_path(record), transcript.kinds_by_path(record)
            entries = transcript.list_entries(loaded.planner_input, answers, kinds)
            cut = Fork(tuple(each.message for each in entries), loaded.planner_input.user, ())
        else:
            rounds = describe_rounds(record)
            cure = f"`from` goes on from a round: {rounds}." if rounds else "Start without `continues`."
            raise BadArguments("That run is not a planner run, so it has no single conversation.", cure)
        view, calls = context.factory.make_flow_view(run, loaded), [each.tool_call_id for each in cut.conversation]
        whose = await asyncio.to_thread(view.label_results, calls)
    summaries = await context.store.read(lambda session: _read_summaries(session, request, caller))
    return ContinuedRun(run.id, cut.conversation, summaries, loaded.spec.goal, cut.user, cut.notes, tuple(whose))


def _cut_run(context: AppContext, run: RunRow, loaded: LoadedSpec, record: Sequence[StepRow], path: str) -> Fork:
    """Cut a run's conversation at a round. Raises BadArguments; Stale where its rows don't fit its flow up to there."""
    context.factory.check_version(run)
    try:
        return fork_run(loaded, record, path)
    except ReplayDiffers as mismatch:
        raise replay_mismatch(run.id, mismatch) from mismatch


async def _is_stuck(context: AppContext, run: RunRow) -> bool:
    """Whether the run's record no longer fits its flow: a new run may continue it, but it can't go on itself."""
    try:
        await context.pool.state_of(run)
    except Stale:
        return True
    return False


def _read_summaries(session: Session, request: PlannerRequest, caller: Caller) -> tuple[str, ...]:
    """Read the summaries of the run that is continued and of those that it continues, oldest first.

    A run that was cut at a round has none: it would say what came after that.
    """
    summaries: list[str] = []
    later: PlannerRequest | Spec = request
    while later.continues is not None and len(summaries) < MAX_EARLIER_SUMMARIES:
        run = read_run(session, later.continues, caller)
        if later.from_round is None:
            if run.outcome is None:
                summary = transcript.summarize_run(queries.read_record(session, run.n))
            else:
                summary = decode(Outcome, run.outcome).text
            summaries.append(summary)
        later = decode(Spec, run.spec)
    return tuple(reversed(summaries))
