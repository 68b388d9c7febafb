"""What was asked for or is known when a commit fails is neither lost nor taken for something else afterwards."""

from __future__ import annotations

from support.app import ME, PERSON, Place, rests
from support.commits import leave_commits, refuse_commits
from support.journeys import MANDATE, TWO_CYCLES

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef


async def test_a_resume_lets_a_flow_go_on_though_the_server_ended_before_it_did(place: Place) -> None:
    settings = place.settings(*TWO_CYCLES)
    async with App.open(settings, via="mcp") as app:
        run_id = (await app.runs.start(CyclesRequest(MandateRef(mandate=MANDATE), cycles=2), ME)).run_id
        for item in (await rests(app, run_id)).waiting:
            await app.answers.decide(run_id, item["key"], "approve", "", PERSON)
        assert (await rests(app, run_id)).status == "paused"
        assert ("cycle-1/checkpoint",) in place.rows("select path from step where kind = 'pause'")
        refuse_commits(app, after=2)  # the request, and what its owner reads of it
        await app.control.request(run_id, "resume", ME)
        await rests(app, run_id)
        leave_commits(app)
    assert ("cycle-2/orient",) not in place.rows("select path from step")
    async with App.open(settings, via="serve") as app:
        await rests(app, run_id)
        assert ("cycle-2/orient",) in place.rows("select path from step")
