"""What a person does on the page: each act is an object of fixed fields, which is checked, then carried out.

A decision names the digest of what was on the screen, so that it is about nothing else. What is decided is stored for
whoever goes on with the run, as a command stores it; the page's process goes on with it only where no server does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import ValidationError

from kairos_mcp.core.decision_rights import Settlement, person_on_page
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.limits_table import LimitsTable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.routes import RouteName, is_answered_by
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.start import StartResult
    from kairos_mcp.core.decision_rights import Caller

Id = Annotated[str, Field(min_length=1, max_length=200)]
Folder = Annotated[str, Field(min_length=1, max_length=4_096)]
Text = Annotated[str, Field(max_length=2_000)]
Goal = Annotated[str, Field(min_length=1, max_length=100_000, pattern=r"\S")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Names = Annotated[list[Id], Field(max_length=64)]
RunLimits = Annotated[Limits, LimitsTable()]


@dataclass(frozen=True, slots=True)
class ActResult:
    """What an act came to, in a sentence for the person; `run_id`: of the run that it was about, or that it started.
    `moves`: somebody has to go on with that run."""

    said: str
    run_id: str | None = None
    moves: bool = False

    def as_json(self) -> JsonObject:
        return {"ok": True, "said": self.said} | ({} if self.run_id is None else {"run_id": self.run_id})


class _Act(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    async def carry_out(self, app: App) -> ActResult:
        raise NotImplementedError


class _OfRun(_Act):
    """An act on a run, in the name of whose run it is. `moves`: somebody has to go on with it then."""

    run: Id
    moves: ClassVar[bool] = True

    async def carry_out(self, app: App) -> ActResult:
        said = await self.change(app, await app.overview.find_caller(self.run))
        if not self.moves:
            return ActResult(said, self.run)
        return ActResult(f"{said} {await app.control.describe_driver(self.run)}", self.run, moves=True)

    async def change(self, app: App, caller: Caller) -> str:
        """Store what the person wants; return what has become of it, in a sentence."""
        raise NotImplementedError


class Decide(_OfRun):
    """`name`: of the tool, typed to approve what can't be undone."""

    act: Literal["approve", "deny"]
    key: Id
    digest: Digest
    feedback: Text | None = None
    name: Id | None = None
    always: Literal["run", "project"] | None = None
    pattern: Text | None = None

    async def change(self, app: App, caller: Caller) -> str:
        from kairos_mcp.core.command_patterns import parse_pattern
        from kairos_mcp.store.rules import RuleRequest

        if self.pattern is not None and self.always is None:
            raise BadArguments("A pattern goes with a remembered approval.", "Say for how long.")
        argv = parse_pattern(self.pattern) if self.pattern is not None else None
        rule = None if self.always is None else RuleRequest(self.always, argv)
        asked = await app.answers.find_approval(self.run, self.key, caller)
        if self.act == "approve" and asked.effect == "irreversible" and self.name != asked.tool:
            raise BadArguments("This can't be undone, and the tool's name was not typed.", f"Type {asked.tool}.")
        await app.answers.decide(
            self.run, self.key, self.act, self.feedback or None, caller, digest=self.digest, rule=rule, drive=False
        )
        if self.act == "deny":
            return "Denied."
        return "Approved." if rule is None else "Approved, and allowed from now on."


class Settle(_OfRun):
    act: Literal["settle"]
    key: Id
    digest: Digest
    settlement: Settlement
    note: Text | None = None

    async def change(self, app: App, caller: Caller) -> str:
        await app.answers.settle(
            self.run, self.key, self.settlement, caller, note=self.note or None, digest=self.digest, drive=False
        )
        return "Settled."


class Answer(_OfRun):
    act: Literal["answer"]
    answers: Annotated[dict[str, JsonObject], Field(min_length=1, max_length=64)]

    async def change(self, app: App, caller: Caller) -> str:
        await app.answers.submit(self.run, self.answers, caller, drive=False)
        return "Answered."


class Stop(_OfRun):
    act: Literal["pause", "cancel"]
    moves: ClassVar[bool] = False

    async def change(self, app: App, caller: Caller) -> str:
        if self.act == "pause":
            await app.control.pause(self.run, caller, drive=False)
            return "It pauses once what is under way has ended."
        await app.control.cancel(self.run, caller)
        return "It ends now; what was done stays."


class Resume(_OfRun):
    act: Literal["resume"]

    async def change(self, app: App, caller: Caller) -> str:
        await app.control.resume(self.run, caller, drive=False)
        return "Resumed."


class Extend(_OfRun):
    act: Literal["extend"]
    limits: RunLimits

    async def change(self, app: App, caller: Caller) -> str:
        await app.control.extend(self.run, self.limits, caller, drive=False)
        return "Extended."


class Reroute(_OfRun):
    act: Literal["reroute"]
    route: RouteName

    async def change(self, app: App, caller: Caller) -> str:
        await app.control.reroute(self.run, self.route, caller, drive=False)
        return "Rerouted."


class _Start(_Act):
    goal: Goal
    limits: RunLimits = UNLIMITED
    workspace: Folder | None = None


class Start(_Start):
    act: Literal["start"]
    tools: Names | None = None
    agent: Id | None = None
    model: Id | None = None

    async def carry_out(self, app: App) -> ActResult:
        request = PlannerRequest(
            self.goal,
            tools=None if self.tools is None else tuple(self.tools),
            agent=self.agent,
            model=self.model,
            limits=self.limits,
            workspace=self.workspace,
        )
        return await _start(app, request)


class Fork(_OfRun):
    act: Literal["fork"]
    round: Id
    goal: Goal | None = None
    agent: Id | None = None

    async def carry_out(self, app: App) -> ActResult:
        caller = await app.overview.find_caller(self.run)
        request = PlannerRequest(self.goal or "", continues=self.run, from_round=self.round, agent=self.agent)
        return await _start(app, request, caller.principal)


class StartTeam(_Start):
    act: Literal["start_team", "plan"]
    agents: Names | None = None
    max_parallel: Annotated[int, Field(ge=1, le=64)] | None = None

    async def carry_out(self, app: App) -> ActResult:
        request = TeamRequest(
            self.goal,
            agents=None if self.agents is None else tuple(self.agents),
            max_parallel=self.max_parallel,
            limits=self.limits,
            workspace=self.workspace,
            plans_only=self.act == "plan",
        )
        return await _start(app, request)


class RunMandate(_Act):
    act: Literal["mandate_run"]
    id: Id
    workspace: Folder | None = None
    cycles: Annotated[int, Field(ge=1, le=100)] | None = None

    async def carry_out(self, app: App) -> ActResult:
        from kairos_mcp.app.cycles import RunOptions
        from kairos_mcp.app.mandates import MandateRef

        reference = MandateRef(self.id, workspace=self.workspace)
        options = RunOptions(self.cycles, await own_route(app))
        return await _report_start(app, await app.cycles.start_cycles(reference, options, person_on_page()))


class SaveMandate(_Act):
    act: Literal["mandate_save"]
    mandate: JsonObject

    async def carry_out(self, app: App) -> ActResult:
        saved = await app.mandates.save(self.mandate, person_on_page())
        return ActResult(" ".join([f"Saved as {saved['mandate_id']}.", *saved["degraded"]]))


class _OfMandate(_Act):
    """An act on a mandate, as it was shown: `digest`."""

    id: Id
    workspace: Folder | None = None
    digest: Digest


class EditMandate(_OfMandate):
    act: Literal["mandate_edit"]
    mandate: JsonObject

    async def carry_out(self, app: App) -> ActResult:
        saved = await app.mandates.edit(
            self.id, self.mandate, person_on_page(), workspace=self.workspace, shown=self.digest
        )
        return ActResult(" ".join(["Saved." if saved["changed"] else "Nothing changed.", *saved["degraded"]]))


class RemoveMandate(_OfMandate):
    act: Literal["mandate_remove"]

    async def carry_out(self, app: App) -> ActResult:
        await app.mandates.remove(self.id, person_on_page(), workspace=self.workspace, shown=self.digest)
        return ActResult("Removed; its runs stay.")


class DecideTool(_Act):
    act: Literal["tool_approve", "tool_remove"]
    address: Id
    pin: Digest

    async def carry_out(self, app: App) -> ActResult:
        approves = self.act == "tool_approve"
        await app.tools.decide(self.address, "approved" if approves else "removed", self.pin, person_on_page())
        return ActResult(
            "Approved: runs that begin from now on find it." if approves else "Removed: no run may call it."
        )


class RemoveRule(_Act):
    act: Literal["rule_remove"]
    rule: Annotated[int, Field(ge=1)]

    async def carry_out(self, app: App) -> ActResult:
        await app.rules.remove(self.rule, person_on_page(), everywhere=True)
        return ActResult("Removed: a person is asked again.")


Act = (
    Decide | Settle | Answer | Stop | Resume | Extend | Reroute | Start | Fork | StartTeam | RunMandate | SaveMandate
    | EditMandate | RemoveMandate | DecideTool | RemoveRule
)  # fmt: skip
_ACTS: TypeAdapter[Act] = TypeAdapter(Annotated[Act, Field(discriminator="act")])


def parse_act(value: Any) -> Act:
    """Return the act that an object describes. Raises BadArguments, which quotes nothing of it."""
    try:
        return _ACTS.validate_python(value)
    except ValidationError as error:
        problem = first_problem(error)
        raise BadArguments(f"{problem.place or 'The act'}: {problem.message}.", "Load the page again.") from None


async def own_route(app: App) -> RouteName:
    """Return the route that a run started on the page gets: one that needs no client. Raises ConfigError."""
    choice = await app.runs.choose_model(PlannerRequest(""))
    if not is_answered_by("server", choice.route):
        raise ConfigError(
            "Nobody would answer a run that is started here: no model is configured.",
            "Name one as `model` in the settings; `kairos-mcp init` writes them.",
        )
    return choice.route


async def _start(app: App, request: PlannerRequest | TeamRequest, principal: str | None = None) -> ActResult:
    caller = person_on_page() if principal is None else person_on_page(principal)
    routed = replace(request, route=await own_route(app))
    await app.runs.check_model(routed)
    return await _report_start(app, await app.runs.start(routed, caller, is_another=True))


async def _report_start(app: App, started: StartResult) -> ActResult:
    what = "An open run of it was found." if started.attached else "Started."
    return ActResult(f"{what} {await app.control.describe_driver(started.run_id)}", started.run_id, moves=True)
