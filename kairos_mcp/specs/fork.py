"""Build the spec of a fork of a plan, a team, a phase or cycles: that run's own, with another model source and limits.

Agents, prompts, tools and the mandate stay as they were: the answers that the new run takes over were given to them.
Whatever says what a run may do is of this moment: limits, the model's price, the folders that a mandate may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.forked_flow import ForkPoint
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import ToolSet
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import PAID_ROUTES
from kairos_mcp.core.run_spec import FrozenFork, PlannerRequest, Spec, TakenOver, UnattendedAllowance
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import (
    BuiltSpec,
    SpecBuilder,
    choose_model,
    dialect_for,
    load_text_prompts,
    narrow_limits,
    refuse_unpriced,
    takes_short_prompts,
)
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.specs.ooda import add_allowance, narrow_mandate_limits, refuse_unpriced_day, requested_limits
from kairos_mcp.specs.team import smaller_rounds
from kairos_mcp.store.rows import encode, encode_answer
from kairos_mcp.tools.files.workspace_scopes import build_scopes

_OF_THAT_RUN = ("system", "context", "agent", "tools", "caller_tools", "output_schema", "messages")
"""What a fork takes from the run that it is of, so that a request may not name it."""


@dataclass(frozen=True, slots=True)
class ForkSource:
    """What a fork is built of beside the request: the run that it is of, where it begins, and the tools that may be
    called by then. `mandate`: of phases and cycles. `samples`: the caller's client offers its own model. `whose`: the
    results before that step."""

    loaded: LoadedSpec
    point: ForkPoint
    offered_tools: ToolSet
    mandate: Mandate | None
    workspace: str | None
    samples: bool = False
    whose: Mapping[str, TakenOver] = field(default_factory=dict)


def check_fork_request(request: PlannerRequest) -> None:
    """Raise BadArguments where a request names what a fork of a plan, a team or a phase takes from the run before."""
    if named := [name for name in _OF_THAT_RUN if getattr(request, name)]:
        raise BadArguments(
            f"{', '.join(named)}: a fork at a step of a plan, a team or a phase has those of its run.",
            "Leave them out; say in goal what is to be different.",
        )


def build_fork_spec(request: PlannerRequest, source: ForkSource, settings: Settings) -> BuiltSpec:
    """Build the spec of a fork. Raises BadArguments, ConfigError."""
    builder, spec, mandate = SpecBuilder(), source.loaded.spec, source.mandate
    own = request.limits if mandate is None else requested_limits(request.limits, mandate)
    choice = choose_model(request.route, own, request.model, settings, samples=source.samples)
    limits, unattended_allowance, cut = _choose_limits(request.limits, spec, mandate, settings)
    if mandate is not None:
        refuse_unpriced_day(mandate, choice, settings)
    elif own.nano_usd is not None and choice.route in PAID_ROUTES and source.loaded.team is not None:
        for model in source.loaded.team.models.values():
            refuse_unpriced(choice.route, model, settings)
    is_short = takes_short_prompts(settings, choice.route, choice.model) and mandate is None
    dialect, dialect_notes = dialect_for(settings, choice.route, is_short=is_short)
    answers = tuple((path, encode_answer(answer)) for path, answer in source.point.answers.items())
    forks = (*source.loaded.forks, FrozenFork(source.point.path, answers, source.point.words, dict(source.whose)))
    scopes = build_scopes(Path(source.workspace), settings) if mandate is not None and source.workspace else None
    built = replace(
        spec,
        route=choice.route,
        tools_text=builder.keep(encode(tuple(source.offered_tools))),
        script_text=builder.keep(choice.script) if choice.script is not None else None,
        model=choice.model,
        temperature=request.temperature if request.temperature is not None else spec.temperature,
        dialect=dialect,
        dialect_text=builder.keep(encode(load_text_prompts(settings, is_brief=is_short))),
        asked_route=choice.asked,
        scopes_text=spec.scopes_text if scopes is None else builder.keep(encode(scopes)),
        unattended_allowance=unattended_allowance,
        grants_rounds=spec.grants_rounds if request.limits.rounds is None else None,
        continues=request.continues,
        from_round=request.from_round,
        given_by=request.continues,  # a ref that this run has no row for is that run's
        fork_text=builder.keep(encode(forks)),
        traceparent=None,
        tracestate=None,
    )
    notes = (*choice.notes, *dialect_notes, *cut)
    return BuiltSpec(built, tuple(builder.texts.items()), limits, notes)


def _choose_limits(
    asked: Limits, spec: Spec, mandate: Mandate | None, settings: Settings
) -> tuple[Limits, UnattendedAllowance | None, tuple[str, ...]]:
    """Return the limits of the new run as any start of this flow has them, the allowance of cycles, and notes."""
    if mandate is None:
        limits, cut = narrow_limits(asked, settings)
        return limits._replace(rounds=smaller_rounds(asked, settings.limits)), None, cut
    limits, cut = narrow_mandate_limits(asked, mandate, settings)
    if not kind_of(spec.flow).has_cycles:
        return limits, None, cut
    return *add_allowance(limits, requested_limits(asked, mandate)), cut
