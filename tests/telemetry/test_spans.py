"""The spans of a run: one tree in one trace, with the times and figures of its rows, and content only if asked for."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

import pytest
from opentelemetry.context import attach
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from support.app import ASK, ME, PERSON, WITHIN_S, Place, answer_run, reads, rests, says, start_run
from support.cycles import EDITS_ALLOWED, ERAS, MANDATE, PAGE, cycle, edit
from support.reviewers import connect_person
from support.stdio_server import PLAN, TEAM_LINES
from support.telemetry import CLIENT_SPAN, CLIENT_TRACE, SeenSpan, Telemetry

from kairos_mcp.app.run_tracing import RunTracing
from kairos_mcp.core.run_spec import PlannerRequest, TeamRequest
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.telemetry import names
from kairos_mcp.telemetry.providers import Providers

GOAL = "find the heron in the reeds"
EDIT = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "osprey"}}
USAGE = {"input_tokens": 1_200, "output_tokens": 34}
LINES = (
    reads("a.txt", usage=USAGE),
    {"content": "a kestrel", "tool_calls": [EDIT], "usage": USAGE},
    says("the bittern", usage=USAGE),
)
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def watched(place: Place, *lines: dict[str, Any], **more: Any) -> Settings:
    return place.settings(*(lines or LINES), telemetry=True, **more)


async def run_with_approval(telemetry: Telemetry, settings: Settings) -> str:
    """A run that reads a file, has an edit approved, and ends."""
    async with telemetry.app(settings) as app:
        run_id = await start_run(app, GOAL, tools=("read_file", "edit_file"))
        (waiting,) = (await app.runs.report(run_id, ME)).waiting
        await app.answers.decide(run_id, waiting["key"], "approve", None, PERSON)
        assert (await rests(app, run_id)).status == "completed"
    return run_id


def by_id(spans: list[SeenSpan]) -> dict[str, SeenSpan]:
    found = {span.id: span for span in spans}
    assert len(found) == len(spans), "a span was sent twice"
    return found


async def test_a_run_is_one_tree_of_spans_with_the_times_of_its_rows(place: Place, telemetry: Telemetry) -> None:
    run_id = await run_with_approval(telemetry, watched(place))
    spans = telemetry.spans()
    known = by_id(spans)
    (run,) = telemetry.named("invoke_agent planner")
    assert {span.trace for span in spans} == {run.trace}
    assert run.parent == ""
    above: dict[str, set[str]] = {}
    for span in spans:
        if span.id != run.id:
            above.setdefault(span.name.split()[0], set()).add(known[span.parent].name)
    assert above == {
        "step": {"invoke_agent planner"},
        "chat": {"step round"},
        "execute_tool": {"step call"},
        "approval": {"step call"},
    }
    rows = place.rows("select path, step.at, answer.at from step join answer on answer.step = step.id")
    steps = {span.path: (span.started // 10**6, span.ended // 10**6) for span in spans if span.name.startswith("step")}
    assert steps == {path: (begun, answered) for path, begun, answered in rows}
    ((asked, decided, begun),) = place.rows(
        "select asked_at, decided_at, attempt.at from approval join attempt on attempt.step = approval.step"
    )
    (approval,) = telemetry.named("approval edit_file")
    assert (approval.started // 10**6, approval.ended // 10**6) == (asked, decided)
    (edit,) = telemetry.named("execute_tool edit_file")
    assert edit.attributes["kairos.queue.duration"] == pytest.approx((begun - decided) / 1000)
    assert edit.attributes["kairos.attempt"] == 2  # the first only waited
    assert all(span.attributes["kairos.run.id"] == run_id for span in spans)


async def test_a_run_s_span_says_what_it_used_and_how_it_ended(place: Place, telemetry: Telemetry) -> None:
    await run_with_approval(telemetry, watched(place))
    (run,) = telemetry.named("invoke_agent planner")
    assert {name: run.attributes[name] for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")} == {
        "gen_ai.usage.input_tokens": 3_600,
        "gen_ai.usage.output_tokens": 102,
    }
    shown = ("status", "stop_reason", "rounds", "model_calls", "tool_calls")
    assert [run.attributes[f"kairos.run.{name}"] for name in shown] == ["completed", "assistant_stop", 3, 3, 2]
    turns = [span.attributes for span in telemetry.named("chat")]
    assert [turn["gen_ai.usage.input_tokens"] for turn in turns] == [1_200] * 3
    assert turns[-1]["gen_ai.response.finish_reasons"] == ("stop",)


CONTENT = ("heron", "alpha", "osprey", "kestrel", "bittern", "a.txt", SECRET)


async def test_no_content_is_in_any_span_unless_it_is_asked_for(place: Place, telemetry: Telemetry) -> None:
    (place.workspace / "a.txt").write_text(f"alpha\nkey {SECRET}\n")
    await run_with_approval(telemetry, watched(place))
    text = "\n".join(span.text() for span in telemetry.spans())
    assert [word for word in CONTENT if word in text] == []
    assert [word for word in CONTENT if word in telemetry.providers.prometheus_page().decode()] == []


async def test_content_that_is_asked_for_has_its_secrets_masked(place: Place, telemetry: Telemetry) -> None:
    (place.workspace / "a.txt").write_text(f"alpha\nkey {SECRET}\n")
    await run_with_approval(telemetry, watched(place, telemetry_content=True))
    text = "\n".join(span.text() for span in telemetry.spans())
    assert [word for word in CONTENT if word not in text] == [SECRET]
    (read,) = telemetry.named("execute_tool read_file")
    assert json.loads(read.attributes["gen_ai.tool.call.arguments"]) == {"path": "a.txt"}
    assert "[secret]" in read.attributes["gen_ai.tool.call.result"]


async def test_a_secret_that_became_known_later_is_masked_too(place: Place, telemetry: Telemetry) -> None:
    ask = {"tool_calls": [{"name": "ask_person", "arguments": {"question": "why"}}]}
    async with telemetry.app(watched(place, ask, says("plain words"), telemetry_content=True)) as app:
        run_id = await start_run(app, "say x7Kq-93bd-TTff-0192", caller_tools=(ASK,))
        app.redactor.learn("x7Kq-93bd-TTff-0192")
        await answer_run(app, run_id, round_1__call_1={"content": "so"})
    (run,) = telemetry.named("invoke_agent planner")
    assert run.attributes["kairos.run.goal"] == "say [secret]"


async def test_every_attribute_and_span_is_in_the_table_that_the_page_is_made_of(
    place: Place, telemetry: Telemetry
) -> None:
    await run_with_approval(telemetry, watched(place, telemetry_content=True))
    forms = {form.title.split()[0].replace("{gen_ai.operation.name}", "invoke_agent"): form for form in names.SPANS}
    for span in telemetry.spans():
        known = {attribute.name for attribute in forms[span.name.split()[0]].attributes}
        assert set(span.attributes) <= known, span.name


async def test_an_error_is_a_span_with_its_code_and_no_words(place: Place, telemetry: Telemetry) -> None:
    async with telemetry.app(watched(place, reads("nowhere.txt"), says("done"))) as app:
        await start_run(app)
    (call,) = telemetry.named("execute_tool read_file")
    ((body,),) = place.rows("select body from answer join step on step.id = answer.step where kind = 'call'")
    assert call.has_error
    assert call.attributes["error.type"] == json.loads(body)["code"]
    assert "nowhere" not in "".join(span.text() for span in telemetry.spans())


async def test_what_is_being_read_when_the_server_closes_is_sent(
    place: Place, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, flushed, order = asyncio.Event(), asyncio.Event(), list[str]()
    send_spans, flush, loop = RunTracing._send_spans, Providers.flush, asyncio.get_running_loop()

    async def send_late(tracing: RunTracing, *what: Any) -> None:
        reading.set()
        await asyncio.wait_for(tracing._closing.wait(), WITHIN_S)
        with suppress(TimeoutError):  # closing goes on without it where it does not wait for it
            await asyncio.wait_for(flushed.wait(), 0.3)
        await send_spans(tracing, *what)
        order.append("sent")

    def flush_noted(*what: Any, **how: Any) -> None:
        order.append("flushed")
        loop.call_soon_threadsafe(flushed.set)
        flush(*what, **how)

    monkeypatch.setattr(RunTracing, "_send_spans", send_late)
    monkeypatch.setattr(Providers, "flush", flush_noted)
    async with telemetry.app(watched(place)) as app:
        await start_run(app)
        await asyncio.wait_for(reading.wait(), WITHIN_S)
    assert order[-2:] == ["sent", "flushed"]
    assert len(telemetry.named("invoke_agent planner")) == 1


def in_client_s_trace(flags: int = 1) -> Context:
    """A context in which a client's span is the current one."""
    span = SpanContext(
        int(CLIENT_TRACE, 16), int(CLIENT_SPAN, 16), True, TraceFlags(flags), TraceState([("vendor", "x")])
    )
    context = copy_context()
    context.run(attach, set_span_in_context(NonRecordingSpan(span)))
    return context


async def test_a_run_stands_in_the_trace_of_its_client_whichever_server_ends_it(
    place: Place, telemetry: Telemetry
) -> None:
    """The trace is kept in the run's spec, so the app that goes on with it knows of it."""
    settings = watched(place, {"tool_calls": [{"name": "ask_person", "arguments": {"question": "why"}}]}, says("done"))
    async with telemetry.app(settings) as app:
        starting = app.runs.start(PlannerRequest(GOAL, caller_tools=(ASK,)), ME)
        run_id = (await asyncio.create_task(starting, context=in_client_s_trace())).run_id
        await rests(app, run_id)
    async with telemetry.app(settings) as app:
        assert (await answer_run(app, run_id, round_1__call_1={"content": "so"})).status == "completed"
    spans = telemetry.spans()
    by_id(spans)
    assert {span.trace for span in spans} == {CLIENT_TRACE}
    (run,) = telemetry.named("invoke_agent planner")
    assert run.parent == CLIENT_SPAN
    assert [span.path for span in telemetry.named("step round")] == ["round-1", "round-2"]
    (asked,) = telemetry.named("execute_tool other")  # its caller has made up its name
    assert (asked.attributes["gen_ai.tool.type"], asked.attributes["kairos.route"]) == ("function", "caller")
    ((spec,),) = place.rows("select spec from run")
    assert json.loads(spec)["tracestate"] == "vendor=x"


async def test_a_client_that_samples_nothing_is_followed(place: Place, telemetry: Telemetry) -> None:
    async with telemetry.app(watched(place, says("done"))) as app:
        starting = app.runs.start(PlannerRequest(GOAL), ME)
        await rests(app, (await asyncio.create_task(starting, context=in_client_s_trace(flags=0))).run_id)
    assert telemetry.spans() == []
    assert telemetry.metric_lines("kairos_runs_ended_total")


async def test_a_denied_call_was_asked_about_and_never_made(place: Place, telemetry: Telemetry) -> None:
    async with telemetry.app(watched(place, gate=(GateRule("edit_file", "ask"),))) as app:
        run_id = await start_run(app, GOAL, tools=("read_file", "edit_file"))
        (waiting,) = (await app.runs.report(run_id, ME)).waiting
        await app.answers.decide(run_id, waiting["key"], "deny", None, PERSON)
        await rests(app, run_id)
    (approval,) = telemetry.named("approval edit_file")
    assert approval.attributes["kairos.approval.verdict"] == "deny"
    assert telemetry.named("execute_tool edit_file") == []


def test_the_words_of_an_error_stay_here_whichever_library_says_them(telemetry: Telemetry) -> None:
    span = telemetry.providers.traces.get_tracer("another library").start_span("tools/call x")
    span.record_exception(ValueError("the heron"))
    span.set_status(Status(StatusCode.ERROR, "no heron"))
    span.end()
    (sent,) = telemetry.spans()
    assert (sent.name, sent.has_error, sent.words) == ("tools/call x", True, ())


def asks_twice() -> tuple[dict[str, Any], ...]:
    ask = {"tool_calls": [{"name": "ask_person", "arguments": {"question": "why"}}]}
    return reads("a.txt", usage=USAGE), ask, ask, says("done", usage=USAGE)


async def test_what_another_server_has_sent_meanwhile_is_not_sent_again(place: Place) -> None:
    """Two servers take turns: each has its own memory of what it has sent."""
    one, other, settings = Telemetry(), Telemetry(), watched(place, *asks_twice())
    async with one.app(settings) as first, other.app(settings) as second:
        run_id = await start_run(first, GOAL, tools=("read_file",), caller_tools=(ASK,))
        async with asyncio.timeout(WITHIN_S):
            while len(one.named("step round")) < 2:  # noqa: ASYNC110 - the first has looked, which no event tells
                await asyncio.sleep(0.005)
        await answer_run(second, run_id, round_2__call_1={"content": "so"})
        assert (await answer_run(first, run_id, round_3__call_1={"content": "so"})).status == "completed"
    steps = [sorted(span.path for span in each.spans() if span.name.startswith("step")) for each in (one, other)]
    assert steps == [
        ["round-1", "round-1/call-1", "round-2", "round-3/call-1", "round-4"],
        ["round-2/call-1", "round-3"],
    ]


async def test_what_is_sent_again_after_a_takeover_is_counted_once(place: Place) -> None:
    """As if its server had been killed: the row says that it has the run, and no such process lives."""
    one, other, settings = Telemetry(), Telemetry(), watched(place, *asks_twice())
    async with one.app(settings) as first:
        run_id = await start_run(first, GOAL, tools=("read_file",), caller_tools=(ASK,))
    place.rows("update run set owner = (select max(id) from owner), fence = fence + 1")
    async with other.app(settings) as second:
        await second.runs.report(run_id, ME)
        await answer_run(second, run_id, round_2__call_1={"content": "so"})
        assert (await answer_run(second, run_id, round_3__call_1={"content": "so"})).status == "completed"
    (takeover,) = other.named("takeover")
    assert takeover.attributes["kairos.owner.previous"] < takeover.attributes["kairos.owner"]
    paths = {path for (path,) in place.rows("select path from step")}
    assert {span.path for span in other.spans() if span.name.startswith("step")} == paths
    again = {span.id for span in one.spans()} & {span.id for span in other.spans()}
    assert len(again) == len(one.spans())
    made = {
        "gen_ai_client_operation_duration_seconds_count": "chat",
        "gen_ai_execute_tool_duration_seconds_count": "execute_tool",
    }
    for name, span_name in made.items():
        counted = [float(line.rpartition(" ")[2]) for each in (one, other) for line in each.metric_lines(name)]
        assert sum(counted) == len([span for span in other.spans() if span.name.startswith(span_name)]), name


async def test_a_step_of_every_kind_of_run_has_its_span(place: Place, telemetry: Telemetry) -> None:
    settings = watched(place, *TEAM_LINES)
    async with telemetry.app(settings) as app:
        started = await app.runs.start(TeamRequest(GOAL, plan=PLAN), ME)
        assert (await rests(app, started.run_id)).status == "completed"
    spans = telemetry.spans()
    known = by_id(spans)
    assert {span.path for span in spans if span.name.startswith("step")} == {
        path for (path,) in place.rows("select path from step")
    }
    assert all(span.parent in known for span in spans if not span.name.startswith("invoke_workflow"))
    agents = {span.attributes["gen_ai.agent.name"] for span in spans if span.path.startswith("task-1/")}
    assert agents == {"search_specialist"}


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_a_cycle_s_calls_are_named_by_their_tools(place: Place, telemetry: Telemetry, era: str) -> None:
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs" / "index.md").write_text(PAGE)
    settings = watched(place, *cycle(edit("oen.md", "one.md")), gate=EDITS_ALLOWED)
    async with telemetry.app(settings) as app, connect_person(app, era, None) as client:
        run = await client.ask("ooda_run", {"mandate": {**MANDATE, "max_cycles": 1}})
        assert (run["status"], run["stop_reason"]) == ("stopped", "max_cycles_reached")
    spans = telemetry.spans()
    known = by_id(spans)
    assert {span.path for span in spans if span.name.startswith("step")} == {
        path for (path,) in place.rows("select path from step")
    }
    (cycles,) = telemetry.named("invoke_workflow ooda_run")
    assert all(span.parent in known for span in spans if span is not cycles and span.name != cycles.name)
    tools = [span.attributes["gen_ai.tool.name"] for span in spans if span.name.startswith("execute_tool")]
    assert tools[:2] == ["read_mandate", "file_tree"]
    assert "edit_file" in tools or "apply_edits" in tools
    assert "oen" not in "".join(span.text() for span in spans)


async def test_the_key_of_the_receiver_is_a_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=q8Zt%3D-44kd-PPva-7713,x=y")
    (place.workspace / "a.txt").write_text("alpha q8Zt=-44kd-PPva-7713\n")
    async with Telemetry().app(watched(place, reads("a.txt"), says("done"))) as app:
        await start_run(app)
    ((body,),) = place.rows("select body from answer join step on step.id = answer.step where kind = 'call'")
    assert "44kd" not in body
    assert "[secret]" in body
