"""How much a completion may read at most, told before it is asked: by its conversation's last report, or by bytes."""

from __future__ import annotations

import json

from support.app import ME, Place, outcome_of, rests, start_run
from support.daily_accounts import ZONE
from support.provider_server import Standin, talks

from kairos_mcp.app.app import App
from kairos_mcp.budget.reservation import Account, format_status_line
from kairos_mcp.core.limits import NOTHING, Limits, Units
from kairos_mcp.core.messages import Completion, Conversation, Message, Private, ToolSet, ToolSpec, Usage
from kairos_mcp.core.steps import RequestCompletion
from kairos_mcp.execution.accounting import MARGIN_TOKENS, MESSAGE_TOKENS, TAIL_TOKENS, InputEstimator

USAGE = Usage(input_tokens=5_000, output_tokens=300)


def completion_request(
    talk: Conversation, tools: ToolSet | None = None, reminder: str | None = None
) -> RequestCompletion:
    return RequestCompletion("round-1", "round", talk, tools or ToolSet(), reminder=reminder)


def offering(*names: str) -> ToolSet:
    return ToolSet([ToolSpec(name, "does it", {"type": "object"}, "read", "files") for name in names])


def test_without_a_report_every_byte_may_be_a_token() -> None:
    talk = Conversation([Message("system", "be kind"), Message("user", "hello")])
    tools = offering("one")
    bound = InputEstimator().bound(completion_request(talk, tools, "mind"))
    assert bound == talk.size + 2 * MESSAGE_TOKENS + tools.size + len("mind") + MARGIN_TOKENS


def test_after_a_report_only_what_was_added_is_bounded_by_bytes() -> None:
    talk, meter, tools = Conversation([Message("user", "hello" * 1_000)]), InputEstimator(), offering("one")
    meter.learn(completion_request(talk, tools), Completion("so", usage=USAGE))
    further = talk.add(Message("assistant", "so"), Message("user", "and now?"))
    added = further.size - talk.size
    assert meter.bound(completion_request(further, tools)) == 5_000 + added + 2 * MESSAGE_TOKENS + TAIL_TOKENS
    assert (
        meter.bound(completion_request(further, tools, "né"))
        == 5_000 + added + 2 * MESSAGE_TOKENS + len("né".encode()) + TAIL_TOKENS
    )


def test_tools_that_were_found_since_and_thinking_that_is_given_back_are_read_too() -> None:
    talk, meter = Conversation([Message("user", "hello")]), InputEstimator()
    meter.learn(completion_request(talk, offering("one")), Completion("so", usage=USAGE))
    grown = offering("one", "two")
    assert meter.bound(completion_request(talk, grown)) == 5_000 + grown.size - offering("one").size + TAIL_TOKENS
    meter.learn(completion_request(talk, grown), Completion("so", usage=USAGE, private=Private("anthropic", "[]")))
    assert meter.bound(completion_request(talk, grown)) == 5_000 + 300 + TAIL_TOKENS


def test_another_conversation_is_not_bounded_by_the_report_of_this_one() -> None:
    meter = InputEstimator()
    meter.learn(completion_request(Conversation([Message("user", "hello")])), Completion("so", usage=Usage(1, 1)))
    other = Conversation([Message("user", "tell me all " * 1_000)])
    assert meter.bound(completion_request(other)) > other.size


def test_the_longest_standing_line_fits_what_is_kept_for_it() -> None:
    most = 10**12
    caps = Limits(*[{"nano_usd": 10**15, "milliseconds": 10**9}.get(unit, most) for unit in Units._fields])
    spent = Units(*[getattr(caps, unit) - 1 for unit in Units._fields])
    line = format_status_line(Account(1, caps, NOTHING, spent))
    assert line is not None
    assert len(line.encode()) <= TAIL_TOKENS


async def test_what_a_caller_said_of_its_own_tokens_bounds_no_call_of_a_provider(place: Place, server: Standin) -> None:
    """Else a caller that reports next to nothing would make the provider's next call hold next to nothing."""
    server.will(talks("done", usage=(9_000, 10, 0)))
    settings = place.settings(model="openai:small", base_url=server.openai, time_zone=ZONE)
    async with App.open(settings, via="serve") as app:
        run_id = await start_run(
            app, "x" * 9_000, route="caller", tools=("read_file",), limits=Limits(total_tokens=90_000)
        )
        looks = {"name": "read_file", "arguments": {"path": "a.txt"}}
        usage = {"input_tokens": 1, "output_tokens": 1}
        await app.answers.submit(run_id, {"round-1": {"content": "look", "tool_calls": [looks], "usage": usage}}, ME)
        await rests(app, run_id)
        await app.control.reroute(run_id, "provider", ME)
        assert (await rests(app, run_id)).status == "completed"
        assert not any("were reported" in text for text in (await app.runs.report(run_id, ME)).degraded)
    ((held,),) = place.rows(
        "select coalesce(attempt.held, step.held) from step left join attempt on attempt.step = step.id"
        " where path = 'round-2'"
    )
    assert Units(*json.loads(held)).input_tokens > 9_000
    assert outcome_of(place, run_id)["summary"] == "done"
