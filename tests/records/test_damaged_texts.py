"""A damaged text stops the runs that use it and no other; it is put back where what it was made of is at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.app import ASK, ME, Place, answer_run, asks, reads, rests, says, start_run
from support.tool_examples import EXAMPLES

from kairos_mcp.app.app import App
from kairos_mcp.app.stored_specs import rebuild_texts
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import Unreadable
from kairos_mcp.server.dispatch import TOOLS_BY_NAME
from kairos_mcp.specs.kinds import KINDS, FlowKind
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.views.trace import TraceQuery

pytestmark = pytest.mark.unreplayed

LINES = (asks("why"), says("done"))
DAMAGE = {
    "a byte that no text has": "cast(substr(body, 1, 40) || cast(x'ff' as text) || substr(body, 42) as text)",
    "a wrong but valid byte": (
        "substr(body, 1, 40) || case when substr(body, 41, 1) = 'x' then 'y' else 'x' end || substr(body, 42)"
    ),
}


def damage(place: Place, how: str, part: str, run_id: str) -> str:
    """Damage a text that the run's spec refers to; gives its hash."""
    ((spec,),) = place.rows("select spec from run where id = ?", run_id)
    content_hash: str = json.loads(spec)[f"{part}_text"]
    place.rows(f"update text set body = {DAMAGE[how]} where hash = ?", content_hash)
    return content_hash


def body(place: Place, content_hash: str) -> bytes:
    ((found,),) = place.rows("select cast(body as blob) from text where hash = ?", content_hash)
    return bytes(found)


async def two_runs(place: Place) -> tuple[str, str]:
    """Two runs that wait for their caller, with prompts and tools in common."""
    async with App.open(place.settings(*LINES), via="mcp") as app:
        return (
            await start_run(app, "this one, of many words that are its own alone", caller_tools=(ASK,)),
            await start_run(app, "the other", caller_tools=(ASK,)),
        )


@pytest.mark.parametrize("how", DAMAGE)
async def test_a_damaged_text_of_one_run_stops_it_by_name_and_no_other(
    place: Place, kairos: Callable[..., Any], how: str
) -> None:
    this, other = await two_runs(place)
    damage(place, how, "user", this)
    said = kairos("doctor", "--json")
    texts = [finding["text"] for finding in said.json["findings"] if finding["state"] == "bad"]
    assert texts == [f"texts are damaged of {this}"]
    async with App.open(place.settings(*LINES), via="mcp") as app:
        shown = {run_id: await app.runs.report(run_id, ME) for run_id in await app.runs.newest_ids(ME)}
        assert any(this in note and "damaged" in note for note in shown[this].degraded), shown[this].degraded
        with pytest.raises(Unreadable, match=this):
            await app.answers.submit(this, {"round-1/call-1": {"content": "yes"}}, ME)
        assert (await answer_run(app, other, round_1__call_1={"content": "yes"})).status == "completed"
        fresh = await start_run(app, "a third", caller_tools=(ASK,))
        assert (await app.runs.report(fresh, ME)).status == "input_required"
        await app.control.cancel(this, ME)
        assert (await rests(app, this)).status == "cancelled"


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("part", ["tools", "system", "prompts", "dialect"])
async def test_a_shared_text_is_put_back_by_whoever_reads_it(place: Place, how: str, part: str) -> None:
    """The tools are those of the app here: what a caller brings is at nobody's hand."""
    async with App.open(place.settings(reads("a.txt"), says("done")), via="mcp") as app:
        run_id = await start_run(app, route="caller")
        ((spec,),) = place.rows("select spec from run where id = ?", run_id)
        before = body(place, json.loads(spec)[f"{part}_text"])
    content_hash = damage(place, how, part, run_id)
    assert body(place, content_hash) != before
    async with App.open(place.settings(), via="mcp") as app:
        assert (await app.runs.report(run_id, ME)).waiting[0]["kind"] == "completion"
        report = await answer_run(app, run_id, round_1={"content": "done"})
        assert report.status == "completed"
        assert any("made again from its source" in note for note in report.degraded)
        assert (await app.health(thorough=True))["damage"] == []
    assert body(place, content_hash) == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.specs.prompts and kind.phase is None])
async def test_the_prompts_of_each_flow_are_made_again_from_their_files(place: Place, kind: FlowKind) -> None:
    arguments = TOOLS_BY_NAME[kind.tool].arguments.model_validate({**EXAMPLES[kind.tool].calls[0], "route": "caller"})
    async with App.open(place.settings(), via="mcp") as app:
        run_id = (await app.runs.start(arguments.request(), ME)).run_id
    ((spec,),) = place.rows("select spec from run where id = ?", run_id)
    kept = {
        name: body(place, held).decode() for name, held in json.loads(spec).items() if name.endswith("prompts_text")
    }
    assert len(kept) == len(kind.specs.prompts)
    assert set(kept.values()) <= set(rebuild_texts(place.settings(), ToolRegistry([]), None, b""))


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("part", ["tools", "system", "prompts"])
async def test_a_new_run_puts_back_what_it_shares(place: Place, how: str, part: str) -> None:
    this, _ = await two_runs(place)
    content_hash = damage(place, how, part, this)
    damaged = body(place, content_hash)
    async with App.open(place.settings(*LINES), via="mcp") as app:
        fresh = await start_run(app, "a third", caller_tools=(ASK,))
        assert (await app.runs.report(fresh, ME)).status == "input_required"
        assert body(place, content_hash) != damaged
        assert (await answer_run(app, this, round_1__call_1={"content": "yes"})).status == "completed"


@pytest.mark.parametrize("how", DAMAGE)
async def test_a_damaged_result_is_not_shown_as_what_it_was(place: Place, how: str) -> None:
    (place.workspace / "long.txt").write_text("line\n" * 6_000)
    async with App.open(place.settings(reads("long.txt"), says("done")), via="mcp") as app:
        run_id = await start_run(app)
        kept = place.rows("select json_extract(body, '$.kept') from answer where json_extract(body, '$.kept') <> ''")
        place.rows(f"update text set body = {DAMAGE[how]} where hash = ?", kept[0][0])
        with pytest.raises(Unreadable, match=run_id):
            await app.records.trace(run_id, TraceQuery(ref="round-1/call-1"), Caller())
        assert (await app.runs.report(run_id, ME)).status == "completed"
        (text,) = (await app.health(thorough=True))["damage"]
    assert text == f"texts are damaged of {run_id}"
