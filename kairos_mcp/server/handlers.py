"""The handler of each tool: call the app with the arguments, turn its report into a result. Nothing is decided here."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import mcp_types as wire

from kairos_mcp.core.already_read import NOTHING_READ, AlreadyRead
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.server import client_requests, results
from kairos_mcp.server.call import ServerCall
from kairos_mcp.server.sender import has_scope
from kairos_mcp.server.tasks import create_task
from kairos_mcp.server.truncation import fit_result
from kairos_mcp.store.queries import RunRow

if TYPE_CHECKING:
    from kairos_mcp.core.run_spec import RunRequest
    from kairos_mcp.server.arguments import ooda, runs
    from kairos_mcp.server.arguments.run_control import RunControl

NEWS_S = 0.5  # what comes so soon after news comes with it

Result = wire.CallToolResult | wire.InputRequiredResult | dict[str, Any]
"""A call's result, or of a client that takes tasks, the task (server/tasks.py)."""


async def report_when_at_rest(
    call: ServerCall, run_id: str, wait_s: float, *, attached: bool = False, read: AlreadyRead = NOTHING_READ
) -> Result:
    """The run's report once nothing of it moves or the wait is over; or a request to the client that has to come first.

    A run that needs the client's model moves only while such a call is open. `read`: what the caller has read
    before, which the report doesn't show again. A client that takes tasks gets one, unless the call is over soon.
    """
    call.follow(run_id)
    if call.client.takes_tasks:
        return await _report_or_task(call, run_id, wait_s, attached=attached, read=read)
    until_s = time.monotonic() + wait_s
    if call.client.samples:
        call.app.client_requests.register_call(run_id, call.caller)
    with call.session.newest_call(run_id, call):
        run = await _wait_for_rest(call, run_id, until_s, again=False)
        asked = None
        while run.outcome is None and (asked := await client_requests.ask_client(call, run, until_s, read.answered)):
            if isinstance(asked, wire.InputRequiredResult):
                return asked
            run = await _wait_for_rest(call, run_id, until_s, again=True)
    if asked is False:
        run = await _wait_for_rest(call, run_id, until_s, again=True)
    if call.on_page and await client_requests.waits_on_page(call, run, call.on_page):
        (run,) = await call.app.runs.wait(
            [run_id], until="news", wait_s=until_s - time.monotonic(), caller=call.caller, since={run_id: run.seq}
        )
        run = await _wait_for_rest(call, run_id, until_s, again=True)
    return results.run_result(await call.app.runs.report_row(run, call.caller, attached=attached, read=read))


async def _report_or_task(call: ServerCall, run_id: str, wait_s: float, *, attached: bool, read: AlreadyRead) -> Result:
    until_s = time.monotonic() + min(wait_s, call.policy.task_s)
    run = await _wait_for_rest(call, run_id, until_s, again=False)
    is_over = await call.app.runs.is_at_rest(run) and not await client_requests.has_requests(call, run, read.answered)
    if not is_over:
        return await create_task(call, run_id, attached=attached, read=read)
    return results.run_result(await call.app.runs.report_row(run, call.caller, attached=attached, read=read))


async def _wait_for_rest(call: ServerCall, run_id: str, until_s: float, *, again: bool) -> RunRow:
    """Wait until the run rests, and return it as it is then. `again`: this call has waited before.

    A run whose completions come from clients gets a moment more: the client can be asked only once it is seen waiting.
    """
    left_s, settle_s = until_s - time.monotonic(), call.policy.settle_s
    if left_s < settle_s:
        is_sampled = await call.app.client_requests.goes_through_clients(run_id, call.caller)
        left_s = settle_s if is_sampled else max(0.0, left_s)
    (run,) = await call.app.runs.wait(
        [run_id], until="rest", wait_s=left_s, caller=call.caller, on_heartbeat=call.on_heartbeat, again=again
    )
    return run


class StartArguments(Protocol):
    """The arguments of a tool that starts a run."""

    @property
    def wait(self) -> float: ...

    @property
    def read(self) -> AlreadyRead: ...

    def request(self) -> RunRequest: ...


async def start_run(call: ServerCall, arguments: StartArguments) -> Result:
    """The handler of each tool that starts a run."""
    if call.resumed is not None:
        return await report_when_at_rest(call, call.resumed.run_id, arguments.wait, read=arguments.read)
    started = await call.app.runs.start(arguments.request(), call.caller)
    return await report_when_at_rest(
        call, started.run_id, arguments.wait, attached=started.attached, read=arguments.read
    )


async def mandate_save(call: ServerCall, arguments: ooda.MandateSave) -> wire.CallToolResult:
    return results.plain_result(await call.app.mandates.save(arguments.mandate, call.caller))


async def mandate_list(call: ServerCall, arguments: ooda.MandateList) -> wire.CallToolResult:
    return results.plain_result(
        await call.app.mandates.list_page(
            arguments.status, arguments.cursor, call.caller, everywhere=bool(arguments.all)
        )
    )


def _viewer(call: ServerCall) -> Caller:
    """Return who looks: with the scope `observe` at the runs of all principals, and then without any right to decide
    or answer."""
    if not has_scope("observe"):
        return call.caller
    return replace(call.caller, sees_all=True, decides=False, elicits=False, samples=False)


async def run_status(call: ServerCall, arguments: runs.RunStatus) -> wire.CallToolResult:
    viewer = _viewer(call)
    run_ids = arguments.named_runs or await call.app.runs.newest_ids(
        viewer, results.NEWEST, everywhere=bool(arguments.all)
    )
    if arguments.wait and run_ids:
        until_s = time.monotonic() + arguments.wait
        wait = partial(call.app.runs.wait, run_ids, caller=viewer, on_heartbeat=call.on_heartbeat)
        since = {run_ids[0]: arguments.since} if isinstance(arguments.since, int) else dict(arguments.since or {})
        await wait(until=arguments.until or "attention", wait_s=arguments.wait, since=since)
        if arguments.until == "news":  # after a decision it mostly goes on at once, and that is what is waited for
            await wait(until="attention", wait_s=min(NEWS_S, max(0.0, until_s - time.monotonic())), again=True)
    brief = arguments.view == "brief" or (arguments.view is None and not arguments.named_runs)
    if brief:
        reports = await call.app.runs.list_reports(run_ids, viewer)
    else:
        reports = [await call.app.runs.report(run_id, viewer, read=arguments.read) for run_id in run_ids]
    if not viewer.sees_all:
        await call.app.control.retry_stalled(run_ids, call.caller)
    shows_all = arguments.named_runs or arguments.all or viewer.sees_all
    elsewhere = 0 if shows_all else await call.app.runs.count_elsewhere(call.caller)
    return results.runs_result(reports, brief=brief, elsewhere=elsewhere)


async def run_continue(call: ServerCall, arguments: runs.RunContinue) -> Result:
    if arguments.ask:
        await call.app.answers.forget_ignored(arguments.run_id, call.caller)
    answers = arguments.answers or {}
    if call.resumed is None:
        await call.app.answers.submit(arguments.run_id, answers, call.caller)
    answered = await call.app.answers.keys_unmasked(
        answers
    )  # of a resumed call too: its state is sealed with its arguments
    read = arguments.read._replace(answered=answered)
    return await report_when_at_rest(call, arguments.run_id, arguments.wait, read=read)


async def run_control(call: ServerCall, arguments: RunControl) -> wire.CallToolResult:
    operation = arguments.operation()
    await operation.do(call.app, call.caller)
    report = await call.app.runs.report(arguments.run_id, call.caller, full=operation.kind.shows_items)
    return results.run_result(report, steered=True)


async def run_trace(call: ServerCall, arguments: runs.RunTrace) -> wire.CallToolResult:
    if (query := arguments.steps_query) is not None:
        frame = await call.app.records.frame(arguments.run_id, query, _viewer(call), on_heartbeat=call.on_heartbeat)
        # the steps are cut to their page already, the run as any result is
        run = fit_result({**frame["run"], "calls": []})
        del run["calls"]
        return results.plain_result({**frame, "run": run})
    return results.plain_result(await call.app.records.trace(arguments.run_id, arguments.query(), _viewer(call)))


async def registry_search(call: ServerCall, arguments: runs.RegistrySearch) -> wire.CallToolResult:
    names = None if arguments.names is None else tuple(arguments.names)
    return results.plain_result(
        await call.app.tools.search(arguments.query, names, arguments.category, arguments.cursor)
    )


async def registry_register(call: ServerCall, arguments: runs.RegistryRegister) -> wire.CallToolResult:
    return results.plain_result(await call.app.tools.propose(arguments.spec, call.caller))


async def budget_status(call: ServerCall, arguments: runs.BudgetStatus) -> wire.CallToolResult:
    viewer = _viewer(call)
    if viewer.sees_all and arguments.scope in (None, "day"):
        return results.plain_result(await call.app.records.read_spending_by_day(None, None, None))
    return results.plain_result(await call.app.records.read_spending(arguments.scope, viewer))


HANDLERS: dict[str, Callable[[ServerCall, Any], Awaitable[Result]]] = {
    each.__name__: each
    for each in (
        *(mandate_save, mandate_list, run_status, run_continue, run_control, run_trace),
        *(registry_search, registry_register, budget_status),
    )
}
"""By the name of the tool. Every other tool starts a run: its arguments make the request."""
