"""Operations that steer a run by a control request: pause, resume, cancel, extend, reroute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from kairos_mcp.app.operations.operation import (
    RUN_CONTROL,
    Argument,
    Button,
    Command,
    OperationKind,
    OperationResult,
    RunLimits,
    RunOperation,
)
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import ROUTE_TEXT, RouteName

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.core.decision_rights import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(RunOperation):
    """Pause a run: what is under way ends, and nothing new begins until it is resumed."""

    kind = OperationKind(
        "pause",
        tool=RUN_CONTROL,
        command=Command(until="attention", wait_s=5),  # what is under way ends first
        button=Button("Pause", shown="moving"),
        request="pause",
        action="it after the steps under way",
        shows_items=False,
    )

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        await app.control.pause(self.run, caller, drive=drive)
        return OperationResult("It pauses once what is under way has ended.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(RunOperation):
    """Go on with a run that was paused, or whose process died."""

    kind = OperationKind(
        "resume",
        tool=RUN_CONTROL,
        command=Command(follows=True),
        button=Button("Resume", shown="paused"),
        request="resume",
        moves=True,
        action="it",
    )

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        if caller.is_person:
            await app.control.resume(self.run, caller, drive=drive)
        else:  # a tool's caller gets an error if the run has ended
            await app.control.request(self.run, "resume", caller, drive=drive)
        return OperationResult("Resumed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(RunOperation):
    """Cancel a run; what it did is kept."""

    kind = OperationKind(
        "cancel",
        tool=RUN_CONTROL,
        command=Command(until="done", wait_s=30, ends_as="cancelled"),
        button=Button(
            "Cancel run",
            title="Cancel this run?",
            note="It ends now and can't be resumed. Its record stays; files that it changed stay changed.",
            is_dangerous=True,
        ),
        request="cancel",
        action="it for good",
    )

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        await app.control.cancel(self.run, caller)
        return OperationResult("It ends now; what was done stays.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend(RunOperation):
    """Add to the limits of a run that has not ended."""

    kind = OperationKind(
        "extend",
        tool=RUN_CONTROL,
        command=Command(),
        button=Button(
            "Extend",
            "limits",
            title="Allow more",
            note="Added to what is left of this run's limits, as far as the configuration allows.",
        ),
        request="extend",
        moves=True,
        action="its limits",
        shows_items=False,
    )

    limits: Annotated[
        RunLimits,
        Argument("how much is added to the run's limits.", "added", "How much more, as rounds=5; repeatable."),
    ]

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        await app.control.extend(self.run, self.limits, caller, drive=drive)
        return OperationResult("Extended.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reroute(RunOperation):
    """Change where a run's completions come from, and go on with it."""

    kind = OperationKind(
        "reroute",
        tool=RUN_CONTROL,
        command=Command(follows=True),
        button=Button("Reroute", "model", title="Let another answer"),
        request="reroute",
        moves=True,
        action="it to another source of completions",
    )

    route: Annotated[
        RouteName,
        Argument(
            f"the new route. {ROUTE_TEXT}",
            help="Where its completions come from, from now on.",
            label="From now on",
        ),
    ]

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        await app.control.reroute(self.run, self.route, caller, drive=drive)
        return OperationResult("Rerouted.")


CONTROL_OPERATIONS: tuple[type[RunOperation], ...] = (Pause, Resume, Cancel, Extend, Reroute)
"""In the order in which surfaces list them. A command and a button are made of each."""
