"""Plan the runs that work on a mandate: cycles, or one phase alone."""

from __future__ import annotations

from dataclasses import replace

from kairos_mcp.app.context import AppContext
from kairos_mcp.app.saved_mandates import SavedMandates, with_id
from kairos_mcp.app.start import NewRunPlan, note_idle_rules
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import JsonObject, canonical_json, digest_of
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.routes import AUTO
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PhaseRequest, Spec
from kairos_mcp.flows.ooda.phase_kinds import PHASES, PhaseKind, phase_before
from kairos_mcp.specs import ooda
from kairos_mcp.specs.kinds import CYCLES, PHASE_KINDS, kind_of
from kairos_mcp.specs.ooda import CycleSources, PhaseInput
from kairos_mcp.store import mandates, queries, rows
from kairos_mcp.store.mandates import read_mandate
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import decode


async def plan_cycles(context: AppContext, request: CyclesRequest, caller: Caller) -> NewRunPlan:
    """Plan cycles of a mandate; one that the request brings is saved. Raises what `Runs.start` raises."""
    saved = SavedMandates(context)
    mandate, workspace = await saved.find_named(request.mandate, caller)
    mandate = with_id(mandate)
    sources = await _read_sources(context, mandate, workspace, caller)
    sources = replace(sources, stage=await context.factory.choose_stage(None, workspace))
    built = ooda.build_cycles_spec(request, sources)
    if request.mandate.mandate is not None:  # only now: nothing is saved where nothing can start
        await saved.save_parsed(mandate, workspace, caller)
    built = await note_idle_rules(context, built, await context.factory.registry(workspace))
    about = {"mandate": mandate.as_json(), "cycles": request.cycles, "due": request.due}
    start_digest = _digest_start(CYCLES.tool, request, about, caller)
    return NewRunPlan(built, workspace, start_digest, request.key, mandate=mandate.id, due=request.due)


async def plan_phase(context: AppContext, request: PhaseRequest, caller: Caller) -> NewRunPlan:
    """Plan one phase alone. Raises what `Runs.start` raises."""
    before = await _find_run_before(context, request, caller)
    mandate, workspace = await _find_mandate(context, request.mandate, before, caller)
    if request.mandate.mandate is not None and mandate.day != UNLIMITED:
        raise BadArguments(
            "mandate: day needs a saved mandate.",
            "mandate_save it and give mandate_id, or leave day out.",
        )
    if before is not None and request.route == AUTO:
        spec: Spec = decode(Spec, before.spec)
        request = replace(request, route=spec.route_after(before.route))
    given = await _find_phase_input(context, request, before, workspace, caller)
    sources = await _read_sources(context, mandate, workspace, caller)
    built = ooda.build_phase_spec(request, given, sources)
    about = {"mandate": mandate.as_json(), "given": given.value}
    return NewRunPlan(built, workspace, _digest_start(PHASES[request.phase].tool, request, about, caller))


async def _find_run_before(context: AppContext, request: PhaseRequest, caller: Caller) -> RunRow | None:
    """Return the run of the phase before, where the request names it. Raises UnknownRun; BadArguments for a run of
    anything else."""
    kind, before = PHASES[request.phase], phase_before(request.phase)
    if before is None or not isinstance(request.given, str):
        return None
    run = await context.find_run(request.given, caller)
    if kind_of(run.flow).phase != before.name:
        raise BadArguments(
            f"{kind.input_name}: {run.id} is a run of {run.flow}.", f"Give a run of {before.tool}, or its output."
        )
    return run


async def _find_mandate(
    context: AppContext, mandate_ref: MandateRef, before: RunRow | None, caller: Caller
) -> tuple[Mandate, str | None]:
    """Return the mandate that a request names, else that of the run of the phase before, and its workspace."""
    if before is None or not mandate_ref.names_none:
        return await SavedMandates(context).find_named(mandate_ref, caller)
    context.check_served(before, caller)
    with queries.name_run_in_errors(before):
        spec: Spec = decode(Spec, before.spec)
        text = await context.store.read(lambda session: rows.read_text(session, spec.mandate_text or ""))
        mandate = read_mandate(text or "")
    named = mandate_ref.workspace
    return mandate, before.workspace if named is None else context.factory.find_workspace(named)


async def _find_phase_input(
    context: AppContext, request: PhaseRequest, run: RunRow | None, workspace: str | None, caller: Caller
) -> PhaseInput:
    kind, before = PHASES[request.phase], phase_before(request.phase)
    match request.given:
        case None:
            return PhaseInput()
        case _ if before is None:
            raise BadArguments(f"{kind.tool} takes no output of another phase.", "Leave it out.")
        case dict() as value if run is None:
            flow = PHASE_KINDS[before.name].name
            run_id_found = await context.store.read(
                lambda session: mandates.find_run_with_output(session, caller.principal, flow, value)
            )
            return PhaseInput(value, run_id_found)
        case _:
            assert run is not None, "the run of an id was found before"
            return PhaseInput(_read_phase_output(run, kind, before, workspace), run.id)


def _read_phase_output(run: RunRow, kind: PhaseKind, before: PhaseKind, workspace: str | None) -> JsonObject:
    """Return the output of the run of the phase before. Raises BadArguments where it can't be the phase's input."""
    name = kind.input_name
    if run.workspace != workspace:
        raise BadArguments(f"{name}: {run.id} worked in another folder.", "Name a run that worked in the same one.")
    if run.outcome is None:
        raise BadArguments(f"{name}: {run.id} has not ended yet.", "Go on with it first: run_status shows its next.")
    outcome: Outcome = decode(Outcome, run.outcome)
    if not isinstance(outcome.output, dict):
        raise BadArguments(f"{name}: {run.id} ended without an output.", f"Call {before.tool} again.")
    return outcome.output


async def _read_sources(context: AppContext, mandate: Mandate, workspace: str | None, caller: Caller) -> CycleSources:
    observed = tuple(look.tool for look in mandate.observe)
    registry = await context.factory.ready_registry(workspace, mandate.tools, observed)
    output = None
    if mandate.id is not None:
        saved_id = mandate.id
        output = await context.store.read(
            lambda session: mandates.newest_output(session, caller.principal, workspace or "", saved_id)
        )
    return CycleSources(mandate, context.settings, registry, workspace, caller.samples, output)


def _digest_start(tool: str, request: PhaseRequest | CyclesRequest, about: JsonObject, caller: Caller) -> bytes:
    asked = {**about, "route": request.route, "limits": request.limits._asdict()}
    return digest_of(tool.encode(), caller.principal.encode(), canonical_json(asked).encode())
