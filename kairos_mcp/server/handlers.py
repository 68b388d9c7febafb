"""One function a tool: arguments to a call of the host, its report to a result. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mcp_types as wire

from kairos_mcp.server import results

if TYPE_CHECKING:
    from kairos_mcp.host import Host
    from kairos_mcp.report import Beat, Caller
    from kairos_mcp.server import arguments


@dataclass(frozen=True, slots=True)
class Call:
    """A call from outside: to whom it goes, from whom it comes, and whom to tell how it goes."""

    host: Host
    caller: Caller
    on_beat: Callable[[Beat], Awaitable[None]]

    async def rest(self, run_id: str, wait_s: float, *, attached: bool = False) -> wire.CallToolResult:
        """What a run has come to when nothing of it moves any more, or when the wait is over."""
        await self.host.wait([run_id], until="rest", wait_s=wait_s, caller=self.caller, on_beat=self.on_beat)
        return results.run_result(self.host.report(run_id, self.caller, attached=attached))


async def planner_run(call: Call, asked: arguments.PlannerRun) -> wire.CallToolResult:
    started = await call.host.start_planner(asked.request(), call.caller)
    return await call.rest(started.run_id, asked.wait, attached=started.attached)


async def run_status(call: Call, asked: arguments.RunStatus) -> wire.CallToolResult:
    run_ids = asked.run_ids or call.host.newest(call.caller, results.NEWEST)
    if asked.wait and run_ids:
        await call.host.wait(
            run_ids,
            until=asked.until or "attention",
            wait_s=asked.wait,
            caller=call.caller,
            on_beat=call.on_beat,
        )
    full = asked.view != "brief"
    return results.runs_result([call.host.report(run_id, call.caller, full=full) for run_id in run_ids])


async def run_continue(call: Call, asked: arguments.RunContinue) -> wire.CallToolResult:
    await call.host.answer(asked.run_id, asked.answers, call.caller)
    return await call.rest(asked.run_id, asked.wait)


async def run_control(call: Call, asked: arguments.RunControl) -> wire.CallToolResult:
    limits = None if asked.limits is None else asked.limits.limits()
    await call.host.control(asked.run_id, asked.action, call.caller, limits=limits, route=asked.route)
    return results.run_result(call.host.report(asked.run_id, call.caller))


async def run_trace(call: Call, asked: arguments.RunTrace) -> wire.CallToolResult:
    return results.plain_result(call.host.trace(asked.run_id, asked.query(), call.caller))


async def registry_search(call: Call, asked: arguments.RegistrySearch) -> wire.CallToolResult:
    names = None if asked.names is None else tuple(asked.names)
    return results.plain_result(call.host.registry_search(asked.query, names, asked.category, asked.cursor))


async def registry_call(call: Call, asked: arguments.RegistryCall) -> wire.CallToolResult:
    run_id = await call.host.start_call(asked.name, asked.arguments, call.caller)
    return await call.rest(run_id, asked.wait)
