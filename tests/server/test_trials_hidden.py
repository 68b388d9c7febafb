"""What `doctor` tried stands in no list of runs: not on the page, not in its search, not among the resources."""

from __future__ import annotations

from dataclasses import replace

from support.app import ME, Place, open_checked_app, rests

from kairos_mcp.core.decision_rights import VIA_DOCTOR
from kairos_mcp.core.run_spec import PlannerRequest


async def test_what_doctor_tried_is_in_no_list_of_runs(place: Place) -> None:
    async with open_checked_app(place.settings()) as app:
        kept = (await app.runs.start(PlannerRequest("Say pear."), ME)).run_id
        tried = (await app.runs.start(PlannerRequest("Try pear."), replace(ME, via=VIA_DOCTOR))).run_id
        await rests(app, kept, tried)
        assert [run.run_id for run in await app.overview.newest(10)] == [kept]
        assert [run.run_id for run in await app.overview.newest(10, before=tried)] == [kept]
        assert [row["run_id"] for row in (await app.overview.search("pear"))["rows"]] == [kept]
        listed, _ = await app.runs.list_page(None, ME)
        assert [each.report.run_id for each in listed] == [kept]
