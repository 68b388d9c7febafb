"""Whole runs on a provider: rounds, retries, money, thinking that survives a restart, and a change of who thinks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from support.app import (
    ASK,
    ME,
    Place,
    answer_run,
    asked_digests,
    assert_all_lawful,
    open_checked_app,
    outcome_of,
    reads,
    rests,
    start_run,
)
from support.app import says as line_says
from support.commits import call_before_commits, leave_commits, make_full_disk_error
from support.provider_server import (
    WITHIN_S,
    Heard,
    Reply,
    Standin,
    breaks_off,
    calls,
    chat,
    message,
    raw,
    refuses,
    says,
    sends,
    silent,
    strict,
    talks,
    thinks,
    uses,
)

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings
from kairos_mcp.views.run_report import RunReport
from kairos_mcp.views.trace import TraceQuery

READS = (("read_file", {"path": "a.txt"}),)
ELSEWHERE = "http://10.0.0.1:1/v1"  # on no loopback address, where a model would cost nothing
PRICED = {"price_input": 1.0, "price_output": 10.0}  # dollars for a million: 1,000 and 10,000 nano-dollars a token


def looks(*wanted: tuple[str, Any], **more: Any) -> Reply:
    return talks(None, calls(*(wanted or READS)), finish="tool_calls", **more)


def openai(place: Place, server: Standin, **more: Any) -> Settings:
    return place.settings(**{"model": "openai:small", "base_url": server.openai, **more})


def anthropic(place: Place, server: Standin, **more: Any) -> Settings:
    return place.settings(model="anthropic:claude-standin", base_url=server.address, **more)


async def run_on(settings: Settings, **request: Any) -> tuple[Place, str, RunReport]:
    """A run that rests, with its laws checked."""
    async with open_checked_app(settings) as app:
        run_id = await start_run(app, **request)
        return Place(settings.home.parent), run_id, await app.runs.report(run_id, ME)


async def test_a_run_reads_a_file_and_answers_from_it(place: Place, server: Standin) -> None:
    server.will(looks(usage=(1_000, 50, 0)), talks("It says alpha.", usage=(1_200, 30, 900)))
    _, _, report = await run_on(openai(place, server), temperature=0.5)
    assert (report.status, report.stop_reason, report.summary) == ("completed", "assistant_stop", "It says alpha.")
    assert (report.route, report.model, report.rounds) == ("provider", "openai:small", 2)
    usage = report.usage
    assert (usage["input_tokens"], usage["output_tokens"], usage["cached_tokens"]) == (2_200, 80, 900)
    assert (usage["exactness"], usage["usd"], usage["attempts"]) == ("reported", 0, 2)
    assert [call["ok"] for call in report.calls] == [True]
    assert "alpha" in server.bodies[1]["messages"][-1]["content"]
    assert {body["temperature"] for body in server.bodies} == {0.5}


async def test_the_same_run_asks_the_same_on_a_script(place: Place, server: Standin) -> None:
    server.will(looks(), talks("done"))
    _, provided, _ = await run_on(openai(place, server), goal="same")
    _, scripted, _ = await run_on(place.settings(reads("a.txt", content=""), line_says("done")), goal="same")
    assert asked_digests(place, provided) == asked_digests(place, scripted)
    assert outcome_of(place, provided) == outcome_of(place, scripted)


async def test_a_busy_provider_is_asked_again_and_each_attempt_is_a_row(place: Place, server: Standin) -> None:
    busy = refuses(429, Retry_After="0")
    server.will(busy, busy, refuses(529, Retry_After="0"), talks("done"))
    place, _, report = await run_on(openai(place, server))
    assert (report.status, report.usage["attempts"], report.usage["model_calls"]) == ("completed", 4, 4)
    assert report.rounds == 1
    assert len(place.rows("select 1 from attempt join step on step.id = step where path = 'round-1'")) == 3
    assert report.usage["input_tokens"] == 100  # an attempt that was refused costs no tokens


async def test_a_provider_that_stays_busy_pauses_the_run_which_goes_on_by_itself(place: Place, server: Standin) -> None:
    server.will(*[refuses(429, "too many", Retry_After="0")] * 4, talks("done"))
    async with open_checked_app(openai(place, server)) as app:
        run_id = await start_run(app)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.stop_reason, len(server.heard)) == ("paused", None, 4)
        assert report.resume_at is not None
        assert (report.waiting, report.usage["attempts"]) == ((), 4)
        assert place.rows("select owner, resume_at - created_at between 30000 and 120000 from run") == [(None, 1)]
        place.rows("update run set resume_at = 1")  # the time has come
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.summary, report.resume_at) == ("completed", "done", None)
        assert (report.usage["attempts"], report.rounds, len(server.heard)) == (5, 1, 5)
        day = await app.records.read_spending("day", ME)
        assert [each["attempts"] for each in day["by"]] == [5]  # to wait is no attempt


async def test_a_pause_that_is_over_names_what_it_takes_to_go_on(place: Place, server: Standin) -> None:
    server.will(*[refuses(429, "too many", Retry_After="0")] * 4)
    async with App.open(openai(place, server), via="mcp") as able:
        run_id = await start_run(able)
    async with open_checked_app(place.settings()) as other:
        needed = "it needs one with a provider"
        assert not any(
            needed in text for text in (await other.runs.report(run_id, ME)).degraded
        )  # who has it may be there in time
        place.rows("update run set resume_at = 1")
        report = await rests(other, run_id)
        assert (report.status, any(needed in text for text in report.degraded)) == ("paused", True)
        assert report.next is not None
        assert (report.next["tool"], "a server with a provider (KAIROS_MODEL)" in report.next["why"]) == (
            "run_status",
            True,
        )


async def test_what_to_do_next_says_what_a_run_needs_that_nobody_here_can_perform(
    place: Place, server: Standin
) -> None:
    server.will(looks(("ask_person", {"question": "Is it?"})), talks("done"))
    async with App.open(openai(place, server), via="mcp") as able:
        run_id = await start_run(able, caller_tools=(ASK,))
    async with open_checked_app(place.settings()) as other:
        report = await answer_run(other, run_id, round_1__call_1={"content": "yes"})
        assert report.next is not None
        assert (report.status, report.next["tool"]) == ("paused", "run_status")
        assert "a server with a provider (KAIROS_MODEL)" in report.next["why"]
    async with open_checked_app(openai(place, server)) as able:
        assert (await rests(able, run_id)).summary == "done"


async def test_each_outage_is_sat_out_longer(place: Place, server: Standin) -> None:
    server.will(*[refuses(529, Retry_After="0")] * 12)
    async with open_checked_app(openai(place, server)) as app:
        run_id = await start_run(app)
        waits = []
        for _ in range(3):
            (wait,) = place.rows("select resume_at - (select max(at) from attempt) from run")[0]
            waits.append(round(wait / 60_000))
            await app.control.request(run_id, "resume", ME)
            await rests(app, run_id)
        assert waits == [1, 2, 4]


async def test_a_refusal_is_not_tried_again(place: Place, server: Standin) -> None:
    server.will(refuses(401, "bad key"))
    _, _, report = await run_on(openai(place, server))
    assert (report.status, report.stop_reason, len(server.heard)) == ("failed", "llm_error", 1)


async def test_an_attempt_whose_end_is_unknown_stays_charged(place: Place, server: Standin) -> None:
    server.will(breaks_off, talks("done", usage=(100, 20, 0)))
    place, _, report = await run_on(openai(place, server))
    ((lost,),) = place.rows("select lost from attempt")
    assert report.status == "completed"
    assert json.loads(lost)[3] == 4_096  # all that it might have written
    assert report.usage["output_tokens"] == 20 + 4_096


async def test_without_a_report_everything_held_is_charged(place: Place, server: Standin) -> None:
    server.will(talks("done", usage=None))
    _, _, report = await run_on(openai(place, server))
    assert (report.usage["exactness"], report.usage["output_tokens"]) == ("bounded", 4_096)


async def test_usage_that_counts_nothing_is_charged_with_everything_held(place: Place, server: Standin) -> None:
    usage = {"prompt_tokens": -5, "completion_tokens": 1, "total_tokens": 1}
    server.will(talks("done", usage=usage))
    _, _, report = await run_on(openai(place, server))
    assert (report.status, report.summary) == ("completed", "done")
    assert report.usage["output_tokens"] == 4_096
    assert any("prompt_tokens" in text for text in report.degraded)


async def test_a_report_above_the_reservation_is_recorded_whole_and_stops_the_run(
    place: Place, server: Standin
) -> None:
    server.will(looks(usage=(90_000, 90_000, 0)), talks("never asked"))
    _, _, report = await run_on(openai(place, server), limits=Limits(total_tokens=50_000))
    assert (report.stop_reason, len(server.heard)) == ("budget", 1)
    assert report.usage["input_tokens"] == 90_000
    assert any("180000 tokens were reported" in text for text in report.degraded)


# -- money ---------------------------------------------------------------------------------------------------------


async def test_dollars_are_counted_and_shown(place: Place, server: Standin) -> None:
    server.will(talks("done", usage=(1_000, 100, 0)))
    _, _, report = await run_on(openai(place, server, **PRICED), limits=Limits(nano_usd=1_000_000_000))
    assert report.usage["usd"] == pytest.approx(0.002)
    assert report.remaining["usd"] == pytest.approx(0.998)


async def test_dollars_clamp_what_may_be_written_and_then_end_the_run(place: Place, server: Standin) -> None:
    server.will(*[looks(usage=(2_000, 300, 0))] * 20)
    cap = 60_000_000  # six cents
    place, _, report = await run_on(openai(place, server, **PRICED), limits=Limits(nano_usd=cap, rounds=50))
    granted = [body.get("max_completion_tokens", body.get("max_tokens")) for body in server.bodies]
    assert report.stop_reason in ("budget", "stalled")
    assert granted[-1] < 4_096
    assert 0 < round(report.usage["usd"] * 1e9) <= cap


@pytest.mark.parametrize("more", [{}, {"price_input": 1.0}])
async def test_dollars_without_a_price_are_refused_with_the_cure(
    place: Place, server: Standin, more: dict[str, float]
) -> None:
    async with App.open(openai(place, server, base_url=ELSEWHERE, **more), via="mcp") as app:
        with pytest.raises(BadArguments) as refused:
            await app.runs.start(PlannerRequest("x", limits=Limits(nano_usd=1)), ME)
    assert "price_input" in str(refused.value)


async def test_a_cap_of_the_configuration_bars_a_provider_without_a_price_but_not_the_caller(
    place: Place, server: Standin
) -> None:
    settings = openai(place, server, base_url=ELSEWHERE, limits=Limits(rounds=9, nano_usd=10**9))
    async with open_checked_app(settings) as app:
        with pytest.raises(BadArguments):
            await app.runs.start(PlannerRequest("x"), ME)
        run_id = await start_run(app, route="caller")
        assert (await app.runs.report(run_id, ME)).status == "input_required"
        with pytest.raises(BadArguments):
            await app.control.reroute(run_id, "provider", ME)


async def test_auto_passes_over_what_has_no_price(place: Place, server: Standin) -> None:
    server.will(talks("done"))
    settings = place.settings(line_says("scripted"), model="openai:small", base_url=server.openai, **PRICED)
    _, _, report = await run_on(settings, limits=Limits(nano_usd=10**9))
    assert (report.route, report.summary) == ("provider", "done")
    assert any("scripted" in text for text in report.degraded)


async def test_a_run_limited_in_dollars_stays_where_it_has_a_price(place: Place, server: Standin) -> None:
    server.will(looks(("ask_person", {"question": "which?"})))
    async with open_checked_app(openai(place, server, **PRICED)) as app:
        run_id = await start_run(app, limits=Limits(nano_usd=10**9), caller_tools=(ASK,))
        with pytest.raises(BadArguments):
            await app.control.reroute(run_id, "caller", ME)
        left = (await app.runs.report(run_id, ME)).remaining["usd"]
        await app.control.extend(run_id, Limits(nano_usd=10**9), ME)
        assert (await app.runs.report(run_id, ME)).remaining["usd"] == pytest.approx(left + 1)


# -- private parts -------------------------------------------------------------------------------------------------

LOOKS = message(thinks("hm", "sig-1"), uses("toolu_1", "read_file", {"path": "a.txt"}), stop="tool_use")
LOOKS_AGAIN = message(thinks("hm", "sig-2"), uses("toolu_2", "read_file", {"path": "b.txt"}), stop="tool_use")


async def test_thinking_with_tools_goes_on_where_a_missing_signature_is_refused(place: Place, server: Standin) -> None:
    server.will(
        strict(then=LOOKS), strict("sig-1", then=LOOKS_AGAIN), strict("sig-1", "sig-2", then=message(says("done")))
    )
    async with open_checked_app(anthropic(place, server)) as app:
        run_id = await start_run(app)
        report = await app.runs.report(run_id, ME)
        traces = [await app.records.trace(run_id, TraceQuery(view=view), ME) for view in ("events", "messages")]
        shown = json.dumps([report.as_json(), *traces])
    assert (report.status, report.summary, report.rounds) == ("completed", "done", 3)
    assert "sig-1" not in shown
    assert place.rows("select 1 from answer where body like '%sig-1%'")


async def test_thinking_survives_a_restart_in_the_middle(place: Place, server: Standin) -> None:
    server.will(strict(then=LOOKS), silent)
    async with App.open(anthropic(place, server), via="mcp") as first:
        run_id = (await first.runs.start(PlannerRequest("look"), ME)).run_id
        async with asyncio.timeout(WITHIN_S):
            while len(server.heard) < 2:
                server.came.clear()
                await server.came.wait()
    server.will(strict("sig-1", then=message(says("done"))))
    async with open_checked_app(anthropic(place, server)) as second:
        await second.control.request(run_id, "resume", ME)
        report = await rests(second, run_id)
    assert (report.status, report.summary) == ("completed", "done")


async def test_thinking_survives_commits_that_fail(place: Place, server: Standin) -> None:
    """The answer is paid for and kept in memory until a commit takes it, with what the provider wants back."""
    server.will(strict(then=LOOKS), strict("sig-1", then=message(says("done"))))
    async with open_checked_app(anthropic(place, server)) as app:

        def refuse_once_answered() -> None:
            if server.heard:
                raise make_full_disk_error(app)

        call_before_commits(app, refuse_once_answered)
        run_id = await start_run(app)
        await rests(app, run_id)
        assert place.rows("select count(*) from answer") == [(0,)]
        leave_commits(app)
        await app.control.request(run_id, "resume", ME)
        report = await rests(app, run_id)
    assert (report.status, report.summary) == ("completed", "done")
    assert len(server.heard) == 2


async def test_after_a_reroute_they_are_left_out_named_and_back_on_return(place: Place, server: Standin) -> None:
    asks = uses("toolu_1", "ask_person", {"question": "which?"})
    server.will(sends(message(thinks("hm", "sig-1"), asks, stop="tool_use")), _signed_first)
    async with open_checked_app(anthropic(place, server)) as app:
        run_id = await start_run(app, caller_tools=(ASK,))
        await app.control.reroute(run_id, "caller", ME)
        await answer_run(app, run_id, round_1__call_1={"content": "b"})
        waiting = await app.runs.report(run_id, ME)
        assert "sig-1" not in json.dumps(waiting.as_json())
        assert any("left out" in text for text in waiting.degraded)
        await answer_run(app, run_id, round_2=reads("b.txt"))
        await app.control.reroute(run_id, "provider", ME)
        report = await rests(app, run_id)
    assert (report.status, report.summary) == ("completed", "done")
    assert not any("left out" in text for text in report.degraded)


async def test_they_are_named_too_where_a_provider_took_over_a_step_that_began_elsewhere(
    place: Place, server: Standin
) -> None:
    asks = uses("toolu_1", "ask_person", {"question": "which?"})
    server.will(sends(message(thinks("hm", "sig-1"), asks, stop="tool_use")))
    async with open_checked_app(anthropic(place, server)) as app:
        run_id = await start_run(app, route="caller", caller_tools=(ASK,))
        assert not any("left out" in text for text in (await app.runs.report(run_id, ME)).degraded)
        await app.control.reroute(run_id, "provider", ME)
        assert [item["key"] for item in (await rests(app, run_id)).waiting] == ["round-1/call-1"]
        await app.control.reroute(run_id, "caller", ME)
        assert any("left out" in text for text in (await rests(app, run_id)).degraded)


async def _signed_first(heard: Heard) -> Any:
    """The first turn is Anthropic's own and signed, the second came from elsewhere and is not."""
    turns = [turn["content"] for turn in heard.body["messages"] if turn["role"] == "assistant"]
    assert [turn[0].get("signature") for turn in turns] == ["sig-1", None]
    return await sends(message(says("done")))(heard)


async def test_one_run_goes_from_each_route_to_each_other(place: Place, server: Standin) -> None:
    """Script, caller, provider, caller, provider: the record replays whoever thought."""
    settings = place.settings(reads("a.txt"), reads("b.txt"), model="openai:small", base_url=server.openai)
    server.will(looks(("read_file", {"path": "b.txt"})), talks("done"))
    read_a = {"tool_calls": [{"id": "x", "name": "read_file", "arguments": {"path": "a.txt", "start_line": 1}}]}
    async with open_checked_app(replace(settings, route="caller")) as app:
        run_id = await start_run(app)
        await app.answers.submit(run_id, {"round-1": read_a}, ME)
        await rests(app, run_id)
        await app.control.reroute(run_id, "provider", ME)
        report = await rests(app, run_id)
    assert (report.status, report.rounds, report.summary) == ("completed", 3, "done")


async def test_a_usage_in_one_shape_and_a_reply_in_another_never_stop_the_app(place: Place, server: Standin) -> None:
    server.will(raw(b'{"nothing": []}'), sends(chat("done")))
    async with open_checked_app(openai(place, server)) as app:
        first = await start_run(app, goal="one")
        second = await start_run(app, goal="two")
        assert [(await app.runs.report(run, ME)).status for run in (first, second)] == ["failed", "completed"]
        await assert_all_lawful(app)


async def test_after_a_reroute_the_model_is_that_of_the_new_route(place: Place, server: Standin) -> None:
    server.will(talks("Done."))
    async with open_checked_app(openai(place, server)) as app:
        run_id = await start_run(app, route="caller")
        await rests(app, run_id)
        assert (await app.runs.report(run_id, ME)).model is None
        await app.control.reroute(run_id, "provider", ME)
        await app.runs.wait([run_id], until="done", wait_s=WITHIN_S, caller=ME)
        report = await app.runs.report(run_id, ME)
        assert (report.status, report.route, report.model) == ("completed", "provider", "openai:small")
