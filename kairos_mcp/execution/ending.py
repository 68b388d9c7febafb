"""How a call ends that changes files, when its time is over or its run is cancelled: it is let out of the change first.

It runs in a thread, which can only be told to stop. Between two files it heeds that and goes back; within one it is
soon done. So it is waited for a little longer, and the record says of each file what became of it.
"""

from __future__ import annotations

import asyncio

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.tools.tool import StopSignal

LET_OUT_S = 5.0  # a file is written and synced within it, also on a slow disk


async def let_out(calling: asyncio.Future[ToolResult], seconds: float, stop: StopSignal) -> ToolResult:
    """What it comes to, told to stop after so many seconds. Whoever is cancelled here leaves it going: `outcome_of`."""
    alarm = asyncio.get_running_loop().call_later(seconds, stop.now)
    try:
        return await asyncio.shield(calling)
    finally:
        alarm.cancel()


async def outcome_of(calling: asyncio.Future[ToolResult]) -> ToolResult | None:
    """What a call comes to that was told to stop; None where it does not heed that."""
    await asyncio.wait([calling], timeout=LET_OUT_S)
    return calling.result() if calling.done() and calling.exception() is None else None
