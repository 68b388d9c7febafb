"""Whole runs on servers that deviate: what is asked next, what is charged, what the result tells."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from support.app import ME, Place, open_checked_app, rests, start_run
from support.provider_calls import KEY, ask_model, asking, step_of
from support.provider_server import Heard, Reply, Standin, calls, chat, message, raw, refuses, says, sends, talks, uses
from support.provider_streams import chat_events, message_events, streams
from support.replies import chat_reply, chunk, events
from support.team_lines import plan_of, task

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import Completion, Message, ToolCall, Usage
from kairos_mcp.core.model import ModelInput
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PhaseRequest, TeamRequest
from kairos_mcp.core.steps import CONTEXT_FULL, Failure, Sent
from kairos_mcp.settings.settings import Settings
from kairos_mcp.views.run_report import RunReport

OPENAI, ANTHROPIC = "openai:small", "anthropic:claude-standin"
LOOK = {"path": "a.txt"}
TOO_LONG = {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": 400}}


def settings_of(place: Place, server: Standin, name: str = OPENAI, **more: Any) -> Settings:
    return place.settings(model=name, base_url=server.openai if name == OPENAI else server.address, **more)


async def run_on(settings: Settings, **request: Any) -> RunReport:
    async with open_checked_app(settings) as app:
        return await app.runs.report(await start_run(app, **request), ME)


def answers(reply: Callable[[dict[str, Any]], Any]) -> Reply:
    """A reply that depends on the request: JSON, or (status, JSON)."""

    async def answer(heard: Heard) -> Response:
        match reply(heard.body):
            case (int(status), value):
                return JSONResponse(value, status)
            case value:
                return JSONResponse(value)

    return answer


async def answer_to(server: Standin, reply: Reply, name: str = OPENAI) -> Completion | Failure:
    server.will(reply)
    async with asking(name, server.openai if name == OPENAI else server.address) as model:
        return await ask_model(model, step_of())


# -- a conversation that is too long --------------------------------------------------------------------------------


def small_context(body: dict[str, Any]) -> Any:
    size = len(json.dumps(body["messages"]))
    return (400, TOO_LONG) if size > 9_000 else chat("alpha")


async def test_a_conversation_that_is_too_long_is_shortened_once_and_asked_again(place: Place, server: Standin) -> None:
    (place.workspace / "a.txt").write_text("line of text\n" * 6_000)
    server.will(talks(None, calls(("read_file", LOOK)), finish="tool_calls"), *[answers(small_context)] * 4)
    report = await run_on(settings_of(place, server))
    assert (report.status, report.summary, len(server.heard)) == ("completed", "alpha", 3)
    assert any("context_tokens" in note for note in report.degraded)
    assert report.usage["input_tokens"] == 200  # a refused request costs nothing


async def test_one_that_can_not_be_shortened_ends_the_run_and_names_the_setting(place: Place, server: Standin) -> None:
    server.will(sends(TOO_LONG, 400), talks("never asked"))
    report = await run_on(settings_of(place, server))
    assert (report.stop_reason, len(server.heard)) == ("context_full", 1)
    assert any("context_tokens" in note and "4096" in note for note in report.degraded)


async def test_an_error_in_a_reply_of_status_200_is_noted_once(place: Place, server: Standin) -> None:
    busy = {"error": {"message": "overloaded", "code": 503}}
    server.will(answers(lambda _: busy), answers(lambda _: busy), talks("alpha"))
    report = await run_on(settings_of(place, server))
    assert (report.status, report.summary, len(server.heard)) == ("completed", "alpha", 3)
    assert sum("error in a reply of status 200" in note for note in report.degraded) == 1


async def test_what_is_still_too_long_when_it_was_shortened_ends_the_run(place: Place, server: Standin) -> None:
    (place.workspace / "a.txt").write_text("line of text\n" * 6_000)
    server.will(talks(None, calls(("read_file", LOOK)), finish="tool_calls"), *[sends(TOO_LONG, 400)] * 3)
    report = await run_on(settings_of(place, server))
    assert (report.stop_reason, len(server.heard)) == ("context_full", 3)


async def test_one_that_holds_a_goal_alone_says_why_nothing_was_shortened(place: Place, server: Standin) -> None:
    server.will(sends(TOO_LONG, 400))
    report = await run_on(settings_of(place, server))
    assert sum("Nothing could be shortened" in note for note in report.degraded) == 1


async def test_a_phase_that_is_too_long_ends_as_that_and_names_the_setting(place: Place, server: Standin) -> None:
    server.will(*[sends(TOO_LONG, 400)] * 2)
    async with open_checked_app(settings_of(place, server)) as app:
        reference = MandateRef(goal="Look.")
        observed = (await app.runs.start(PhaseRequest("observe", reference), ME)).run_id
        await rests(app, observed)
        oriented = (await app.runs.start(PhaseRequest("orient", reference, observed), ME)).run_id
        alone = await rests(app, oriented)
        with pytest.raises(BadArguments):
            await app.runs.start(PhaseRequest("decide", reference, oriented), ME)
        mandate = {"id": "m", "goal": "Look.", "observe": ["list_files"]}
        cycles = await rests(app, (await app.runs.start(CyclesRequest(MandateRef(mandate=mandate)), ME)).run_id)
    assert (alone.status, alone.output["status"], len(server.heard)) == ("failed", "context_full", 2)
    assert cycles.stop_reason == "context_full"
    for report in (alone, cycles):
        told = json.dumps([report.summary, report.output, report.degraded])
        assert all(word in told for word in ("4096", "context_tokens", "Nothing was shortened"))


async def test_a_team_whose_planner_is_asked_too_much_ends_as_that(place: Place, server: Standin) -> None:
    server.will(sends(TOO_LONG, 400))
    async with open_checked_app(settings_of(place, server)) as app:
        report = await rests(app, (await app.runs.start(TeamRequest("Look."), ME)).run_id)
    assert (report.stop_reason, len(server.heard)) == ("context_full", 1)
    assert "4096" in str((report.summary, report.record, report.degraded))


async def test_a_team_whose_answer_is_asked_too_much_says_why_it_was_made_from_the_record(
    place: Place, server: Standin
) -> None:
    plan = json.dumps(plan_of(task("a"), task("b")))
    server.will(talks(plan), talks("A."), talks("B."), sends(TOO_LONG, 400))
    async with open_checked_app(settings_of(place, server)) as app:
        report = await rests(app, (await app.runs.start(TeamRequest("Look."), ME)).run_id)
    assert report.stop_reason == "team_done"
    assert any("4096" in note and "context_tokens" in note for note in report.degraded)


OVERFLOWS: list[tuple[str, int, Any]] = [
    ("OpenAI", 400, {"error": {"message": "Your input exceeds it.", "code": "context_length_exceeded"}}),
    ("vLLM", 400, {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}),
    ("llama.cpp", 400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "too big"}}),
    ("llama.cpp of before", 500, {"error": {"code": 500, "message": "context size exceeded"}}),
    ("SGLang", 400, {"message": "The input (9000 tokens) is longer than the model's context length (4096 tokens)."}),
    ("LM Studio", 400, {"error": "Trying to keep the first 9000 tokens when context the overflows."}),
    ("Groq", 413, {"error": {"message": "Please reduce the length of the messages or completion."}}),
    ("Mistral", 400, {"message": "Prompt contains 9000 tokens, too large for model with 4096 maximum context length"}),
    ("Together", 422, {"error": {"message": "`inputs` tokens + `max_new_tokens` must be <= 4097"}}),
    ("xAI", 400, {"error": "This model's maximum prompt length is 131072 but the request contains 200000 tokens."}),
    ("Gemini", 400, [{"error": {"message": "The input token count (9000) exceeds the maximum number of tokens"}}]),
    ("OpenRouter", 400, {"error": {"message": "This endpoint's maximum context length is 4096 tokens.", "code": 400}}),
    ("Anthropic", 400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), [row[1:] for row in OVERFLOWS], ids=[row[0] for row in OVERFLOWS])
@pytest.mark.parametrize("name", [OPENAI, ANTHROPIC])
async def test_every_server_says_in_its_own_way_that_a_conversation_is_too_long(
    server: Standin, name: str, status: int, body: Any
) -> None:
    failure = await answer_to(server, sends(body, status), name)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable, failure.unknown_end) == (CONTEXT_FULL, False, False)
    assert "context_tokens" in failure.message


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
async def test_no_other_status_is_taken_for_it(server: Standin, status: int) -> None:
    failure = await answer_to(server, sends(TOO_LONG | {"error": {"message": "maximum context length"}}, status))
    assert isinstance(failure, Failure)
    assert failure.code != CONTEXT_FULL


# -- fields that a server does not know -----------------------------------------------------------------------------


def knows_only(known: str, other: str) -> Callable[[dict[str, Any]], Any]:
    def reply(body: dict[str, Any]) -> Any:
        if other in body:
            found = {"type": "extra_forbidden", "loc": ["body", other], "msg": "Extra inputs are not permitted"}
            return 422, {"object": "error", "message": {"detail": [found]}, "type": "invalid_request_error"}
        return chat("done") if body.get(known) else (400, {"error": {"message": f"{known} is needed"}})

    return reply


async def test_a_server_that_knows_the_older_name_alone_is_asked_by_it_from_then_on(server: Standin) -> None:
    server.will(*[answers(knows_only("max_tokens", "max_completion_tokens"))] * 3)
    async with asking(OPENAI, server.openai) as model:
        first = await ask_model(model, step_of(), max_tokens=77)
        assert isinstance(first, Failure)
        assert (first.retryable, first.retry_after_s, first.unknown_end) == (True, 0, False)
        assert "max_completion_tokens" in first.message
        assert isinstance(await ask_model(model, step_of(), max_tokens=77), Completion)
        assert isinstance(await ask_model(model, step_of(), max_tokens=77), Completion)
    assert [body.get("max_tokens") for body in server.bodies] == [None, 77, 77]
    assert "max_completion_tokens" not in server.bodies[2]


async def test_a_server_that_knows_neither_name_is_not_asked_for_ever(server: Standin) -> None:
    def refuses_both(body: dict[str, Any]) -> Any:
        named = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
        return 400, {"error": {"message": f"{named} is too large: 4096"}}

    server.will(*[answers(refuses_both)] * 3)
    async with asking(OPENAI, server.openai) as model:
        assert isinstance(first := await ask_model(model, step_of()), Failure)
        assert isinstance(second := await ask_model(model, step_of()), Failure)
    assert (first.retryable, second.retryable) == (True, False)


@pytest.mark.parametrize("field", ["stream", "stream_options"])
async def test_a_server_that_knows_no_stream_is_asked_without(server: Standin, field: str) -> None:
    def reply(body: dict[str, Any]) -> Any:
        return (400, {"error": {"message": f"Unknown field: {field}"}}) if field in body else chat("done")

    server.will(*[answers(reply)] * 2)
    heard: list[str] = []
    async with asking(OPENAI, server.openai) as model:
        step = step_of()
        first = await model(ModelInput(step.name, step, Sent("provider"), on_text=heard.append))
        second = await model(ModelInput(step.name, step, Sent("provider"), on_text=heard.append))
    assert isinstance(first, Failure)
    assert isinstance(second, Completion)
    assert heard == ["done"]


Refused = str | None


def turns_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [turn for turn in body["messages"] if turn["role"] == "assistant"]


def schemas_of(body: dict[str, Any]) -> str:
    return json.dumps([tool["function"]["parameters"] for tool in body.get("tools", ())])


def unlike(words: str, refuses_it: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Refused]:
    return lambda body: words if refuses_it(body) else None


def repeats_a_side(body: dict[str, Any]) -> bool:
    roles = [turn["role"] for turn in body["messages"]]
    return any(pair in (("user", "user"), ("tool", "user")) for pair in itertools.pairwise(roles))


def refuses_reasoning(words: str) -> Callable[[dict[str, Any]], Refused]:
    return unlike(words, lambda body: any("reasoning_content" in turn for turn in turns_of(body)))


def refuses_null(words: str) -> Callable[[dict[str, Any]], Refused]:
    return unlike(words, lambda body: any(turn["content"] is None for turn in turns_of(body)))


REFUSALS: list[tuple[str, int, Callable[[dict[str, Any]], Refused]]] = [
    ("OpenRouter, tool_choice", 404, unlike("No endpoints found that support the provided 'tool_choice' value.",
                                            lambda body: "tool_choice" in body)),
    ("DeepSeek, tool_choice", 400, unlike("Thinking mode does not support this tool_choice",
                                          lambda body: "tool_choice" in body)),
    ("OpenAI, temperature", 400, unlike("Unsupported value: 'temperature' does not support 0.2 with this model.",
                                        lambda body: "temperature" in body)),
    ("DeepSeek, reasoning", 400, unlike("The `reasoning_content` in the thinking mode must be passed back to the API.",
                                        lambda body: any("reasoning_content" not in turn for turn in turns_of(body)))),
    ("Groq, reasoning", 400, refuses_reasoning("'messages.2' : for 'role:assistant' the following must be satisfied"
                                               "[('messages.2' : property 'reasoning_content' is unsupported)]")),
    ("Mistral, reasoning", 422, refuses_reasoning("body.messages.2.assistant.reasoning_content: Extra inputs are not "
                                                  "permitted")),
    ("LM Studio, content", 400, refuses_null("'messages' array must only contain objects with a 'content' field that "
                                             "is not null.")),
    ("a gateway, content", 422, refuses_null("body.messages.2.content.str: Input should be a valid string")),
    ("Gemma's template", 500, unlike("Jinja Exception: System role not supported",
                                     lambda body: any(turn["role"] == "system" for turn in body["messages"]))),
    ("Gemini, a schema", 400, unlike("Invalid JSON payload received. Unknown name \"additionalProperties\" at "
                                     "'tools[0].function_declarations[0].parameters': Cannot find field.",
                                     lambda body: "additionalProperties" in schemas_of(body))),
    ("OpenAI, a schema", 400, unlike("Invalid schema for function 'read_file': 'minimum' is not permitted.",
                                     lambda body: "minimum" in schemas_of(body))),
]  # fmt: skip


@pytest.mark.parametrize(("status", "refused"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
@pytest.mark.parametrize("in_a_200", [False, True])
async def test_a_server_is_asked_without_what_it_refuses(
    place: Place, server: Standin, status: int, refused: Callable[[dict[str, Any]], Refused], in_a_200: bool
) -> None:
    answered: list[dict[str, Any]] = []
    asks_back = "passed back" in str(refused({"messages": [{"role": "assistant", "content": ""}]}))
    thought = {} if asks_back else {"reasoning_content": "hm"}  # of a turn with a thought the library gives all one

    def reply(body: dict[str, Any]) -> Any:
        if (words := refused(body)) is not None:
            error = {"error": {"message": words, "type": "invalid_request_error", "code": status}}
            return error if in_a_200 else (status, error)
        answered.append(body)
        if len(answered) == 3:
            return chat("done")
        return chat(None, calls(("read_file", LOOK), ids=f"c{len(answered)}"), finish="tool_calls", **thought)

    server.will(*[answers(reply)] * 5)
    report = await run_on(settings_of(place, server), temperature=0.2)
    assert (report.status, report.summary, report.rounds) == ("completed", "done", 3)
    assert len(server.heard) == 4  # what was refused once is not sent again
    told = "".join(turn["content"] for turn in answered[0]["messages"])
    assert all(turn["content"] in told for turn in server.bodies[0]["messages"])


async def test_turns_of_one_side_in_a_row_are_joined_for_a_template_that_refuses_them(server: Standin) -> None:
    words = "Error: Jinja Exception: After the optional system message, conversation roles must alternate"
    talk = (
        Message("system", "Be brief."),
        Message("user", "Look."),
        Message("assistant", "", (ToolCall("round-1/call-1", "read_file", LOOK),)),
        Message("tool", "alpha", tool_call_id="round-1/call-1"),
        Message("user", "Be quick."),
        Message("user", "Please."),
    )
    server.will(*[answers(lambda body: (500, {"error": words}) if repeats_a_side(body) else chat("done"))] * 2)
    async with asking(OPENAI, server.openai) as model:
        assert isinstance(first := await ask_model(model, step_of(*talk)), Failure)
        assert (first.retryable, first.retry_after_s) == (True, 0)
        assert isinstance(await ask_model(model, step_of(*talk)), Completion)
    assert [turn["role"] for turn in server.bodies[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert server.bodies[1]["messages"][-1]["content"] == "alpha\n\nBe quick.\n\nPlease."


async def test_a_schema_that_a_server_does_not_enforce_is_described_in_words(server: Standin) -> None:
    def reply(body: dict[str, Any]) -> Any:
        words = "This response_format type is unavailable now"
        return (400, {"error": {"message": words}}) if "response_format" in body else chat('{"a": "x"}')

    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    server.will(*[answers(reply)] * 2)
    async with asking(OPENAI, server.openai) as model:
        step = step_of(tools=(), output_schema=schema)
        assert isinstance(await ask_model(model, step), Failure)
        assert isinstance(await ask_model(model, step), Completion)
    assert "response_format" in server.bodies[0]
    assert '"required"' in json.dumps(server.bodies[1]["messages"][0]["content"])[:5_000].replace("\\", "")


@pytest.mark.parametrize("status", [400, 200])
async def test_a_call_that_the_server_could_not_take_is_made_again(place: Place, server: Standin, status: int) -> None:
    words = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."
    error = {"message": words, "type": "invalid_request_error", "code": "tool_use_failed", "failed_generation": "<x>"}
    server.will(sends({"error": error}, status), talks("done"))
    report = await run_on(settings_of(place, server))
    assert (report.status, report.summary, len(server.heard)) == ("completed", "done", 2)
    assert report.usage["output_tokens"] > 4_096  # what the first may have cost


NO_TOOLS = [
    (400, "registry.example/library/gemma3:latest does not support tools"),
    (404, "No endpoints found that support tool use."),
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
]


@pytest.mark.parametrize(("status", "words"), NO_TOOLS)
async def test_a_model_without_tools_names_the_dialect_which_gets_one_on(
    place: Place, server: Standin, status: int, words: str
) -> None:
    def reply(body: dict[str, Any]) -> Any:
        return (status, {"error": {"message": words}}) if "tools" in body else chat('{"final": "done"}')

    server.will(*[answers(reply)] * 2)
    first = await run_on(settings_of(place, server))
    assert 'dialect = "text"' in json.dumps([first.summary, first.record, first.degraded]).replace("\\", "")
    second = await run_on(settings_of(place, server, dialect="text"))
    assert (first.status, second.status, second.summary) == ("failed", "completed", "done")


# -- ids, on the way there and back ---------------------------------------------------------------------------------


def unique(body: dict[str, Any], then: Any) -> Any:
    """As strict servers do: no id twice, and a result for each call by its own id."""
    asked = [call["id"] for turn in body["messages"] for call in turn.get("tool_calls") or ()]
    answered = [turn["tool_call_id"] for turn in body["messages"] if turn["role"] == "tool"]
    is_fine = len(asked) == len({*asked}) and asked == answered and all(asked)
    return then if is_fine else (400, {"error": {"message": f"ids: {asked}, {answered}"}})


@pytest.mark.parametrize("ids", [("c", "c"), ("", ""), (None, None), ("round-1-call-2", "round-1-call-2")])
async def test_ids_that_are_missing_or_repeat_go_back_as_ours(
    place: Place, server: Standin, ids: tuple[Any, ...]
) -> None:
    (place.workspace / "b.txt").write_text("beta\n")
    two = [
        {**call, "id": each}
        for call, each in zip(calls(("read_file", LOOK), ("read_file", {"path": "b.txt"})), ids, strict=True)
    ]
    turns = [chat(None, two, finish="tool_calls"), chat(None, two, finish="tool_calls"), chat("done")]
    server.will(*[answers(lambda body, turn=turn: unique(body, turn)) for turn in turns])
    report = await run_on(settings_of(place, server))
    assert (report.status, report.summary, report.rounds) == ("completed", "done", 3)


@pytest.mark.parametrize("given", ["", "toolu_1"])
async def test_a_message_and_its_results_carry_the_same_ids(place: Place, server: Standin, given: str) -> None:
    def reply(body: dict[str, Any]) -> Any:
        blocks = [block for turn in body["messages"] if isinstance(turn["content"], list) for block in turn["content"]]
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if asked != answered or len(asked) != len({*asked}) or not all(asked):
            return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": f"{asked} {answered}"}}
        return message(says("done")) if len(asked) > 1 else message(uses(given, "read_file", LOOK), stop="tool_use")

    server.will(*[answers(reply)] * 3)
    report = await run_on(settings_of(place, server, ANTHROPIC))
    assert (report.status, report.summary, report.rounds) == ("completed", "done", 3)


async def test_reasoning_details_go_back_with_their_turn(place: Place, server: Standin) -> None:
    details = [{"type": "reasoning.encrypted", "data": "c2VhbA==", "format": "google-gemini-v1", "index": 0}]
    server.will(
        talks(None, calls(("read_file", LOOK)), finish="tool_calls", reasoning_details=details),
        talks("done", reasoning_details=details),
    )
    await run_on(settings_of(place, server))
    assert [turn.get("reasoning_details") for turn in server.bodies[1]["messages"] if turn["role"] == "assistant"] == [
        details
    ]


# -- what is charged ------------------------------------------------------------------------------------------------


async def test_reasoning_beside_the_output_counts_towards_the_limits(place: Place, server: Standin) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 9_110}
    server.will(*[talks(None, calls(("read_file", LOOK)), finish="tool_calls", usage=usage)] * 3)
    report = await run_on(settings_of(place, server), limits=Limits(total_tokens=15_000))
    assert (report.stop_reason, len(server.heard)) == ("budget", 1)
    assert report.usage["output_tokens"] == 9_010


@pytest.mark.parametrize("finish", ["error", "network_error"])
async def test_a_reply_that_broke_off_costs_what_it_reports(place: Place, server: Standin, finish: str) -> None:
    server.will(talks("half", finish=finish, usage=(100, 20, 0)), talks("done", usage=(100, 10, 0)))
    report = await run_on(settings_of(place, server))
    assert (report.summary, report.usage["input_tokens"], report.usage["output_tokens"]) == ("done", 200, 30)


async def test_a_reply_without_an_answer_or_a_usage_costs_what_was_held(place: Place, server: Standin) -> None:
    server.will(sends({"choices": [], "usage": None}), talks("done", usage=(100, 10, 0)))
    report = await run_on(settings_of(place, server))
    assert (report.summary, report.usage["output_tokens"]) == ("done", 4_096 + 10)


async def test_what_is_repaired_in_each_reply_is_told_once(place: Place, server: Standin) -> None:
    call = [{"function": {"name": "read_file", "arguments": LOOK}}]
    server.will(*[talks(None, call, finish="tool_calls")] * 3, talks("done"))
    report = await run_on(settings_of(place, server))
    repaired = [note for note in report.degraded if "were repaired" in note]
    assert (report.status, len(repaired)) == ("completed", len({*repaired}))
    assert len(repaired) == 2


async def test_a_note_holds_no_secret(place: Place, server: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.will(talks("done", finish=f"x {KEY}"))
    report = await run_on(settings_of(place, server))
    assert any("unknown finish reason" in note for note in report.degraded)
    assert KEY not in json.dumps(report.degraded)


# -- what a server says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "It broke."}}, "It broke"),
        ({"error": "It broke."}, "It broke"),
        ({"message": "It broke."}, "It broke"),
        ({"detail": "It broke."}, "It broke"),
        ({"detail": [{"loc": ["body", "tools"], "msg": "It broke."}]}, "body.tools: It broke"),
        ({"message": {"detail": [{"msg": "It broke."}]}}, "It broke"),
        ([{"error": {"message": "It broke."}}], "It broke"),
        ({"errors": [{"message": "It broke."}]}, "It broke"),
        ({"error": {"message": "No.", "metadata": {"raw": '{"error":{"message":"It broke."}}'}}}, "It broke"),
        ({"title": "It broke.", "status": 400}, "It broke"),
        ({"error_description": "It broke."}, "It broke"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [OPENAI, ANTHROPIC])
async def test_the_server_s_own_words_are_shown_wherever_they_stand(
    server: Standin, name: str, body: Any, expected: str
) -> None:
    failure = await answer_to(server, sends(body, 400), name)
    assert isinstance(failure, Failure)
    assert expected in failure.message


async def test_words_are_redacted_before_they_are_cut(server: Standin) -> None:
    failure = await answer_to(server, refuses(400, "x" * 280 + " " + KEY))
    assert isinstance(failure, Failure)
    assert KEY[:10] not in failure.message


async def test_the_page_of_a_gateway_is_not_put_down_to_the_key(server: Standin) -> None:
    page = b"<!DOCTYPE html><html><head><title>403 Forbidden</title></head></html>"
    failure = await answer_to(server, raw(page, "text/html", 403))
    assert isinstance(failure, Failure)
    assert "403 Forbidden" in failure.message
    assert "OPENAI_API_KEY" not in failure.message


@pytest.mark.parametrize(
    ("body", "wait"),
    [
        ([{"error": {"message": "no", "details": [{"@type": "RetryInfo", "retryDelay": "7s"}]}}], 7),
        ({"error": {"message": "no", "metadata": {"headers": {"Retry-After": "7"}}}}, 7),
        ({"error": {"message": "Please try again in 7s."}}, 7),
        ({"error": {"message": "Please try again in 7000ms."}}, 7),
        ({"error": {"message": "no", "retry_after": 7}}, 7),
        ({"error": {"message": "no", "retry_after_ms": 7000}}, 7),
        ({"error": {"message": "no", "retry_after": 99_999}}, 86_400),
        ({"error": {"message": "no", "retry_after": -1}}, None),
        ({"error": {"message": "no", "retry_after": "soon"}}, None),
        ({"error": {"message": "no", "retry_after": True}}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 200])
async def test_a_wait_in_the_body_is_heeded_within_bounds(
    server: Standin, body: Any, wait: float | None, status: int
) -> None:
    first = body[0] if isinstance(body, list) else body
    first["error"]["code"] = 429
    failure = await answer_to(server, sends(body, status))
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retry_after_s) == ("provider_busy", wait)


# -- over a real connection -----------------------------------------------------------------------------------------

TEXT, USED = "It says alpha.", chat("")["usage"]


def framed(*chunks: dict[str, Any], end: str = "\n\n") -> Reply:
    return raw(b"".join(events(chunks, end)))


SAMPLE: list[tuple[str, Reply]] = [
    ("packed unasked", raw(gzip.compress(json.dumps(chat(TEXT)).encode()))),
    ("a mark at its start", raw(b"\xef\xbb\xbf" + json.dumps(chat(TEXT)).encode())),
    ("in a list", sends([chat(TEXT)])),
    ("as plain text", raw(json.dumps(chat(TEXT)).encode(), "text/plain")),
    ("events as JSON", framed(chunk({"content": TEXT}), chunk({}, "stop", usage=USED))),
    ("CR alone", framed(chunk({"content": TEXT}), chunk({}, "stop", usage=USED), end="\r\r")),
    ("usage in every chunk", framed(*[chunk({"content": part}, usage=USED) for part in ("It says ", "alpha.")])),
    ("without a role and a finish", sends({"choices": [{"message": {"content": TEXT}}], "usage": USED})),
    ("no model, no id", sends(chat_reply(TEXT, usage=USED) | {"id": None, "model": None, "created": None})),
]


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("reply", [row[1] for row in SAMPLE], ids=[row[0] for row in SAMPLE])
async def test_deviating_replies_over_http_leave_what_a_good_one_leaves(
    server: Standin, reply: Reply, listens: bool, request: pytest.FixtureRequest
) -> None:
    packed = "packed" in request.node.callspec.id

    async def answer(heard: Heard) -> Response:
        response = await reply(heard)
        if packed:
            response.headers["content-encoding"] = "gzip"
        return response

    server.will(answer)
    heard: list[str] = []
    async with asking(OPENAI, server.openai) as model:
        step = step_of()
        listener = heard.append if listens else None
        completion = await model(ModelInput(step.name, step, Sent("provider"), on_text=listener))
    assert isinstance(completion, Completion)
    assert (completion.content, completion.finish, completion.usage) == ("It says alpha.", "stop", Usage(100, 20, 0))
    assert "".join(heard) == ("It says alpha." if listens else "")


@pytest.mark.parametrize("size", [1, 7])
async def test_streams_of_both_forms_with_noise_leave_what_a_whole_reply_leaves(server: Standin, size: int) -> None:
    noise = [": ping\n\n", "data:\n\n", 'event: ping\ndata: {"type": "ping"}\n\n']
    for name, lines, whole in (
        (
            OPENAI,
            list(chat_events(chat("It says alpha.", calls(("read_file", LOOK)), finish="tool_calls"), size)),
            None,
        ),
        (
            ANTHROPIC,
            list(message_events(message(says("It says alpha."), uses("t", "read_file", LOOK), stop="tool_use"), size)),
            None,
        ),
    ):
        server.will(streams([part for line in lines for part in (*noise, line)]))
        pieces: list[str] = []
        async with asking(name, server.openai if name == OPENAI else server.address) as model:
            step = step_of()
            answer = await model(ModelInput(step.name, step, Sent("provider"), on_text=pieces.append))
        assert isinstance(answer, Completion), whole
        assert (answer.content, answer.tool_calls[0].arguments, answer.usage) == (
            "It says alpha.",
            LOOK,
            Usage(100, 20, 0),
        )
        assert len(pieces) > 1
