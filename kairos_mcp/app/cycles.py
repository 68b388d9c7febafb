"""Start the runs that work on a mandate: cycles, or one phase alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.mandates import MandateRef, Mandates, with_id
from kairos_mcp.app.start import NewRunPlan, StartResult, note_idle_rules, note_redactions, start_run
from kairos_mcp.core import redact_values
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import JsonObject, canonical_json, digest_of
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.core.routes import RouteName
from kairos_mcp.core.run_spec import PHASES, CyclesRequest, Phase, PhaseRequest
from kairos_mcp.flows.ooda.phases import INPUT_NAMES
from kairos_mcp.specs import ooda
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.specs.ooda import CYCLES, PHASE_KINDS, CycleSettings
from kairos_mcp.store import mandates
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import decode


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a caller asks of a run beside its mandate. `due`: the scheduled time that it is for."""

    cycles: int | None = None
    route: RouteName = "auto"
    limits: Limits = UNLIMITED
    due: int | None = None


class Cycles(Operations):
    """Start cycles of a mandate, and single phases."""

    def __init__(self, context: AppContext, saved: Mandates) -> None:
        super().__init__(context)
        self._mandates = saved

    async def start_cycles(self, mandate_ref: MandateRef, options: RunOptions, caller: Caller) -> StartResult:
        """Start cycles of a mandate, or find its open run. Raises BadArguments, UnknownMandate, Stale, ConfigError."""
        await self._context.register_use()
        mandate, secrets, workspace = await self._mandates.find_named(mandate_ref, caller)
        mandate = with_id(mandate)
        request = CyclesRequest(mandate, options.cycles, options.route, options.limits, options.due)
        settings = await self._cycle_settings(mandate, workspace, caller)
        built = note_redactions(ooda.build_cycles_spec(request, settings), secrets)
        if mandate_ref.mandate is not None:  # only now: nothing is saved where nothing can start
            await self._mandates.save_parsed(mandate, workspace, caller)
        built = await note_idle_rules(self._context, built, await self._factory.registry(settings.workspace))
        start = digest_of(
            CYCLES.tool.encode(), caller.principal.encode(), mandate.canonical.encode(), _digest_of_options(options)
        )
        plan = NewRunPlan(built, settings.workspace, start, mandate=mandate.id, due=options.due)
        return await start_run(self._context, plan, caller)

    async def start_phase(
        self,
        name: Phase,
        mandate_ref: MandateRef,
        given: JsonObject | str | None,
        options: RunOptions,
        caller: Caller,
    ) -> StartResult:
        """Start one phase alone. `given`: the output of the phase before, or the id of its run.

        Raises BadArguments, also where that is not its whole output; UnknownMandate, UnknownRun, ConfigError.
        """
        await self._context.register_use()
        mandate, secrets, workspace = await self._mandates.find_named(mandate_ref, caller)
        if mandate_ref.mandate is not None and mandate.day != UNLIMITED:
            raise BadArguments(
                "mandate: day is counted for mandates that are saved.",
                "mandate_save it and give mandate_id, or leave day out.",
            )
        plain, giver = await self._find_phase_input(name, given, workspace, caller)
        request = PhaseRequest(name, mandate, plain, options.route, options.limits, giver)
        settings = await self._cycle_settings(mandate, workspace, caller)
        built = note_redactions(ooda.build_phase_spec(request, settings), secrets)
        about = canonical_json({"mandate": mandate.as_json(), "given": plain}).encode()
        start = digest_of(
            PHASE_KINDS[name].tool.encode(), caller.principal.encode(), about, _digest_of_options(options)
        )
        return await start_run(self._context, NewRunPlan(built, settings.workspace, start), caller)

    async def _find_phase_input(
        self, phase: Phase, given: JsonObject | str | None, workspace: str | None, caller: Caller
    ) -> tuple[JsonObject | None, str | None]:
        """Return the phase's input and, if known, the run that produced it."""
        before = PHASES[PHASES.index(phase) - 1]
        match given:
            case None:
                return None, None
            case str():
                run = await self._context.find_run(given, caller)
                return _read_phase_output(run, phase, before, workspace), run.id
            case output:
                plain, flow = redact_values.redact_value(output, self._factory.redactor), PHASE_KINDS[before].name
                return plain, await self._store.read(
                    lambda session: mandates.find_run_with_output(session, caller.principal, flow, plain)
                )

    async def _cycle_settings(self, mandate: Mandate, workspace: str | None, caller: Caller) -> CycleSettings:
        observed = tuple(look.tool for look in mandate.observe)
        registry = await self._factory.ready_registry(workspace, mandate.tools, observed)
        output = None
        if mandate.id is not None:
            saved_id = mandate.id
            output = await self._store.read(
                lambda session: mandates.newest_output(session, caller.principal, workspace or "", saved_id)
            )
        return CycleSettings(self._settings, registry, workspace, caller.samples, output)


def _read_phase_output(run: RunRow, phase: Phase, before: Phase, workspace: str | None) -> JsonObject:
    """Return the output of the run of the phase before. Raises BadArguments where it can't be the phase's input."""
    name = INPUT_NAMES[phase]
    if kind_of(run.flow).phase != before:
        raise BadArguments(
            f"{name}: {run.id} is a run of {run.flow}.", f"Give a run of {PHASE_KINDS[before].tool}, or its output."
        )
    if run.workspace != workspace:
        raise BadArguments(f"{name}: {run.id} worked in another folder.", "Name a run that worked in the same one.")
    if run.outcome is None:
        raise BadArguments(f"{name}: {run.id} has not ended yet.", "Go on with it first: run_status shows its next.")
    outcome: Outcome = decode(Outcome, run.outcome)
    if not isinstance(outcome.output, dict):
        raise BadArguments(f"{name}: {run.id} ended without an output.", f"Call {PHASE_KINDS[before].tool} again.")
    return outcome.output


def _digest_of_options(options: RunOptions) -> bytes:
    values: dict[str, Any] = asdict(options) | {"limits": options.limits._asdict()}
    return canonical_json(values).encode()
