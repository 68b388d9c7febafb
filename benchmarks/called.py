"""A tool called through registry_call's run (schema, gate, journal), beside the bare function: what that adds, in
rounds of the floor, of which one is two commits."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from benchmarks import subjects
from benchmarks.fresh import fresh
from benchmarks.rounds import floor
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.tools.tool import call_tool


async def cpu(folder: Path, calls: int) -> tuple[float, float]:
    """CPU seconds a call: of the tool alone, arguments checked, and of the run of one call."""
    async with subjects.open_app(subjects.settings(folder, 1, "process")) as app:
        tool = (await app._context.factory.registry(app._context.factory.find_workspace(None))).find("read_file")
        assert tool is not None
        arguments = {"path": subjects.place(1)[0]}
        around = ToolContext("", time.monotonic() + 600, lambda _ref: None)
        began = time.process_time()
        for _ in range(calls):
            assert not call_tool(tool, arguments, around).is_error
        between = time.process_time()
        for _ in range(calls):
            run = await app.runs.start_call("read_file", arguments, subjects.ME)
            await app.runs.wait([run], until="done", wait_s=60, caller=subjects.ME)
        ended = time.process_time()
    return (between - began) / calls, (ended - between) / calls


def figures(calls: int = 200, times: int = 5) -> dict[str, float]:
    found, floors = [], []
    for _ in range(times):
        floors.append(fresh(floor, calls))
        found.append(fresh(cpu, calls))
    bare, least = median(bare for bare, _ in found), median(floors)
    return {
        "bare_us": bare * 1e6,
        "floor_us": least * 1e6,
        "recorded": median(run for _, run in found) / bare,
        "added_in_floors": median(run - bare for bare, run in found) / least,
    }
