"""CPU of a look at a run, of an answer that its caller brings, and of an ask of its client's model, and what a host is
shown of that answer's result, in a run of many rounds by one of few."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import mcp_types as wire
from mcp.client.client import Client

from benchmarks import subjects
from benchmarks.asked import ERAS, _spoken
from benchmarks.fresh import fresh
from benchmarks.parked import answered
from benchmarks.resumed import waiting_settings
from kairos_mcp.app.app import App
from kairos_mcp.core.already_read import AlreadyRead
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.server.results import run_result
from kairos_mcp.views.cuts import size

CONTEXT_TOKENS = 5_000  # compacted every 45 rounds: what a client is sent is no longer after many rounds than after few
ASKS = 45  # for one figure
LOOKS = 50
ROUNDS = 20  # answered at each length, for one figure


async def lengths(folder: Path, few: int, many: int) -> dict[str, float]:
    """CPU in microseconds: of a report, and of a round on the caller's route, after so few and so many rounds; and the
    characters of the result of the answer before that round."""
    async with App.open(waiting_settings(folder), via="serve") as app:
        limits = Limits(rounds=many + 3 * ROUNDS)
        request = PlannerRequest("measured", route="caller", limits=limits)
        run = (await app.runs.start(request, subjects.ME)).run_id
        await answered(app, run, few)
        found = {f"{name}_at_{few}": figure for name, figure in (await _measured(app, run, few)).items()}
        await answered(app, run, many - few - ROUNDS, few + ROUNDS + 1)
        return found | {f"{name}_at_{many}": figure for name, figure in (await _measured(app, run, many)).items()}


async def _measured(app: App, run: str, rounds: int) -> dict[str, float]:
    looks: list[float] = []
    for _ in range(LOOKS):
        began = time.process_time()
        await app.runs.report(run, subjects.ME, full=False)
        looks.append(time.process_time() - began)
    shown = run_result(await app.runs.report(run, subjects.ME, read=AlreadyRead([f"round-{rounds}"])))
    began = time.process_time()
    await answered(app, run, ROUNDS, rounds + 1)
    return {
        "report_us": min(looks) * 1e6,
        "round_us": (time.process_time() - began) / ROUNDS * 1e6,
        "result_chars": size(shown.structured_content),
    }


async def asks(folder: Path, era: str, few: int, many: int) -> dict[str, float]:
    """CPU in microseconds of an ask of the client's model and of the round around it, with the client in this process,
    after so few and so many rounds."""
    settings, began = replace(waiting_settings(folder), context_tokens=CONTEXT_TOKENS), list[float]()

    async def model(_ctx: object, params: wire.CreateMessageRequestParams) -> wire.CreateMessageResult:
        began.append(time.process_time())
        summarizes = len(began) > 1 and len(params.messages) == 1
        ends = summarizes or len(began) > many + ASKS
        text = '{"final": "I looked."}' if ends else json.dumps(_spoken(len(began)))
        return wire.CreateMessageResult(
            role="assistant", model="m", content=wire.TextContent(text=text), stop_reason="endTurn"
        )

    async with App.open(settings, via="serve") as app:

        async def reach() -> App:
            return app

        server = build_server(reach, settings)
        async with Client(server, mode=ERAS[era], sampling_callback=model) as client:
            limits = {"rounds": many + 2 * ASKS}
            arguments = {"goal": "go", "route": "sampling", "tools": ["read_file"], "limits": limits, "wait_s": 60}
            result = (await client.call_tool("planner_run", arguments)).structured_content or {}
            while result["status"] in ("input_required", "working"):
                again = {"run_id": result["run_id"], "wait_s": 60}
                result = (await client.call_tool("run_continue", again)).structured_content or {}
    assert result["stop_reason"] == "assistant_stop", result
    each = [(after - before) * 1e6 for before, after in pairwise(began)]
    return {f"{era}_us_at_{at}": median(each[at : at + ASKS]) for at in (few, many)}


def figures(few: int = 10, many: int = 1_000, times: int = 5) -> dict[str, float]:
    found = []
    for _ in range(times):
        found.append(fresh(lengths, few, many))
        for era in ERAS:
            found[-1] |= fresh(asks, era, few, many)
    middle = {name: median(each[name] for each in found) for name in found[0]}
    grows = {
        f"{name}_grows": median(each[f"{name}_us_at_{many}"] / each[f"{name}_us_at_{few}"] for each in found)
        for name in ("report", "round", *ERAS)
    }
    grows["result_grows"] = middle[f"result_chars_at_{many}"] / middle[f"result_chars_at_{few}"]
    return middle | grows
