"""One function a tool: arguments to a call of the host, its report to a result. Nothing is decided here."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import mcp_types as wire

from kairos_mcp.server import client_requests, results
from kairos_mcp.server.call import ToolRequest

if TYPE_CHECKING:
    from kairos_mcp.core.run_spec import Phase
    from kairos_mcp.server.arguments import ooda, planning, registry, runs

Result = wire.CallToolResult | wire.InputRequiredResult


async def report_at_rest(call: ToolRequest, run_id: str, wait_s: float, *, attached: bool = False) -> Result:
    """What a run has come to when nothing of it moves any more, or the wait is over; or what to ask the client.

    A run that needs the client's model moves only while such a call is open.
    """
    until_s = time.monotonic() + wait_s
    if call.client.samples:
        call.host.asks.register_call(run_id, call.caller)
    with call.session.newest_call(run_id, call):
        while True:
            await _wait_for_rest(call, run_id, until_s)
            match await client_requests.ask(call, run_id, until_s):
                case wire.InputRequiredResult() as asked:
                    return asked
                case False:
                    break
                case _:
                    pass
    await _wait_for_rest(call, run_id, until_s)
    return results.run_result(call.host.report(run_id, call.caller, attached=attached))


async def _wait_for_rest(call: ToolRequest, run_id: str, until_s: float) -> None:
    """A run that goes through clients gets a moment more: it should be seen waiting, since then it is asked for."""
    settle_s = call.patience.settle_s if call.host.asks.goes_through_clients(run_id, call.caller) else 0.0
    left_s = max(settle_s, until_s - time.monotonic())
    await call.host.wait([run_id], until="rest", wait_s=left_s, caller=call.caller, on_beat=call.on_beat)


async def planner_run(call: ToolRequest, asked: planning.PlannerRun) -> Result:
    if call.resumed is not None:
        return await report_at_rest(call, call.resumed.run_id, asked.wait)
    started = await call.host.start_planner(asked.request(), call.caller)
    return await report_at_rest(call, started.run_id, asked.wait, attached=started.attached)


async def ooda_run(call: ToolRequest, asked: ooda.OodaRun) -> Result:
    if call.resumed is not None:
        return await report_at_rest(call, call.resumed.run_id, asked.wait)
    started = await call.host.start_cycles(asked.meant, asked.asked, call.caller)
    return await report_at_rest(call, started.run_id, asked.wait, attached=started.attached)


def phase(name: Phase) -> Callable[[ToolRequest, ooda.OodaPhase], Awaitable[Result]]:
    """The function of the tool that is this phase alone."""

    async def ooda_phase(call: ToolRequest, asked: ooda.OodaPhase) -> Result:
        if call.resumed is not None:
            return await report_at_rest(call, call.resumed.run_id, asked.wait)
        started = await call.host.start_phase(name, asked.meant, asked.given, asked.asked, call.caller)
        return await report_at_rest(call, started.run_id, asked.wait, attached=started.attached)

    return ooda_phase


async def mandate_save(call: ToolRequest, asked: ooda.MandateSave) -> wire.CallToolResult:
    return results.plain_result(await call.host.save_mandate(asked.mandate, call.caller))


async def mandate_list(call: ToolRequest, asked: ooda.MandateList) -> wire.CallToolResult:
    return results.plain_result(call.host.mandates(asked.status, asked.cursor, call.caller, everywhere=bool(asked.all)))


async def run_status(call: ToolRequest, asked: runs.RunStatus) -> wire.CallToolResult:
    run_ids = asked.run_ids or call.host.newest(call.caller, results.NEWEST, everywhere=bool(asked.all))
    if asked.wait and run_ids:
        await call.host.wait(
            run_ids,
            until=asked.until or "attention",
            wait_s=asked.wait,
            caller=call.caller,
            on_beat=call.on_beat,
            since=asked.known_seqs(run_ids),
        )
    brief = asked.view == "brief" or (asked.view is None and not asked.run_ids)
    reports = [call.host.report(run_id, call.caller, full=not brief) for run_id in run_ids]
    call.host.retry_stalled(run_ids, call.caller)
    elsewhere = 0 if asked.run_ids or asked.all else call.host.runs_elsewhere(call.caller)
    return results.runs_result(reports, brief=brief, elsewhere=elsewhere)


async def run_continue(call: ToolRequest, asked: runs.RunContinue) -> Result:
    if asked.ask:
        call.host.asks.ask_again(asked.run_id, call.caller)
    if call.resumed is None:
        await call.host.answer(asked.run_id, asked.answers or {}, call.caller)
    return await report_at_rest(call, asked.run_id, asked.wait)


async def run_control(call: ToolRequest, asked: runs.RunControl) -> wire.CallToolResult:
    if asked.action == "settle":
        assert asked.key is not None
        assert asked.settlement is not None
        await call.host.settle(asked.run_id, asked.key, asked.settlement, call.caller, digest=asked.digest)
    else:
        limits = None if asked.limits is None else asked.limits.limits()
        await call.host.control(asked.run_id, asked.action, call.caller, limits=limits, route=asked.route)
    return results.run_result(call.host.report(asked.run_id, call.caller), steered=True)


async def run_trace(call: ToolRequest, asked: runs.RunTrace) -> wire.CallToolResult:
    return results.plain_result(call.host.trace(asked.run_id, asked.query(), call.caller))


async def registry_search(call: ToolRequest, asked: registry.RegistrySearch) -> wire.CallToolResult:
    names = None if asked.names is None else tuple(asked.names)
    return results.plain_result(await call.host.registry_search(asked.query, names, asked.category, asked.cursor))


async def registry_call(call: ToolRequest, asked: registry.RegistryCall) -> Result:
    if call.resumed is not None:
        return await report_at_rest(call, call.resumed.run_id, asked.wait)
    run_id = await call.host.start_call(asked.name, asked.arguments, call.caller)
    return await report_at_rest(call, run_id, asked.wait)


async def registry_register(call: ToolRequest, asked: registry.RegistryRegister) -> wire.CallToolResult:
    return results.plain_result(await call.host.propose_tool(asked.spec, call.caller))


async def budget_status(call: ToolRequest, asked: runs.BudgetStatus) -> wire.CallToolResult:
    return results.plain_result(call.host.spending(asked.scope, call.caller))
