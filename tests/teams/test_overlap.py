"""Tasks that need nothing of each other have their models think at once, counted where the requests come in."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from starlette.responses import Response
from support.app import ME, WITHIN_S, Place, assert_all_lawful, rests
from support.provider_server import Heard, Standin, calls, chat, sends
from support.team_lines import plan_of, task

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import TeamRequest

TASKS, ROUNDS = 8, 3
PLAN = plan_of(*(task(f"t{n}", "general") for n in range(TASKS)))


@dataclass
class SlowModel:
    """It takes so long for each call, the first ones until `expected` are under way. `most` were so at once, of the
    `heard` in all."""

    takes_s: float
    expected: int
    all_there: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: int = 0
    most: int = 0
    heard: int = 0

    async def __call__(self, heard: Heard) -> Response:
        self.under_way += 1
        self.heard += 1
        self.most = max(self.most, self.under_way)
        if self.under_way == self.expected:
            self.all_there.set()
        async with asyncio.timeout(WITHIN_S):
            await self.all_there.wait()
        await asyncio.sleep(self.takes_s)
        self.under_way -= 1
        turns = sum(message["role"] == "assistant" for message in heard.body["messages"])
        if turns == ROUNDS - 1 or "What the tasks came to" in json.dumps(heard.body):
            return await sends(chat("done"))(heard)
        wanted = calls(("read_file", {"path": "a.txt", "start_line": turns + 1}))
        return await sends(chat(None, wanted, finish="tool_calls"))(heard)


@pytest.mark.parametrize("takes_s", [0.05, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at_once", [TASKS, 3])
async def test_as_many_tasks_have_their_models_think_at_once_as_may(
    place: Place, provider: Standin, takes_s: float, at_once: int
) -> None:
    model = SlowModel(takes_s, at_once)
    provider.will(*[model] * (TASKS * ROUNDS + 1))
    settings = place.settings(model="openai:small", base_url=provider.openai)
    request = TeamRequest("Do all.", PLAN, max_parallel=at_once, limits=Limits(rounds=60))
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(request, ME)).run_id
        report = await rests(app, run_id)
        await assert_all_lawful(app)
    assert report.stop_reason == "team_done"
    assert model.heard == TASKS * ROUNDS + 1
    assert model.most == at_once
