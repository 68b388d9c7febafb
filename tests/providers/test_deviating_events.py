"""Events that are framed in every way, streams that are cut off, and errors in a reply of status 200."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.replies import (
    MESSAGES,
    Taken,
    chat_reply,
    chunk,
    events,
    message_reply,
    message_stream,
    read_whole,
    take,
    taken_of,
    whole,
)

from kairos_mcp.core.steps import Failure
from kairos_mcp.models.replies.border import CHAT, RESPONSE, Form
from kairos_mcp.models.replies.errors import read_error
from kairos_mcp.models.replies.events import MAX_EVENT_LINES, EventDecoder
from kairos_mcp.models.replies.exchange import BadProviderReply

# -- events --------------------------------------------------------------------------------------------------------

FIRST, SECOND, LAST = chunk({"content": "We"}), chunk({"content": "ll."}), chunk({}, "stop")
LINES = [json.dumps(each) for each in (FIRST, SECOND, LAST)]


def framed(
    before: str = "", between: str = "", end: str = "\n\n", lead: str = "data: ", last: str = "data: [DONE]"
) -> bytes:
    return (before + between.join(f"{lead}{line}{end}" for line in LINES) + between + last + end).encode()


FRAMES: list[tuple[str, bytes]] = [
    ("as defined", framed()),
    ("a mark at the start", b"\xef\xbb\xbf" + framed()),
    ("a mark, then a comment", b"\xef\xbb\xbf" + framed(": hello\n\n")),
    ("CRLF", framed(end="\r\n\r\n")),
    ("CR alone", framed(end="\r\r")),
    ("one line end after each event", framed(end="\n")),
    ("no space", framed(lead="data:")),
    ("more spaces", framed(lead="data:   ")),
    ("empty data", framed("data: \n\n", "data:\n\n")),
    ("comments", framed(": OPENROUTER PROCESSING\n\n", ": ping\n\n")),
    ("comments without a blank line", framed(between=": ping\n")),
    ("comments between an id and its data", framed(lead="id: 7\n: ping\ndata: ")),
    ("ids and a comment between events", framed(lead="id: 7\ndata: ", between=": ping\n\n")),
    ("names of events", framed(lead="event: message\ndata: ")),
    ("a wait", framed("retry: 3000\n\n")),
    ("ping as data", framed("data: ping\n\n", "data: [PING]\n\n")),
    ("keep-alive as data", framed("data: keep-alive\n\n", "data: :heartbeat\n")),
    ("ping as an event", framed(between='event: ping\ndata: {"type": "ping"}\n\n')),
    ("an empty object", framed(between="data: {}\n\n")),
    ("no data field", framed(lead="", before="event: go\n")),
    ("blank lines at the start", framed("\n\n\n")),
    ("no end after the last", framed().rstrip()),
    ("data after the end", framed() + f"data: {LINES[0]}\n\n".encode()),
    ("no end stated but a finish reason", framed(last="")),
    ("a chunk without a choice", framed('data: {"choices": [], "prompt_filter_results": [{}]}\n\n')),
    ("a chunk in a list", framed().replace(LINES[0].encode(), f"[{LINES[0]}]".encode())),
    ("an event over two lines", framed().replace(b', "choices"', b',\ndata:  "choices"', 1)),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 50, 100_000])
@pytest.mark.parametrize("frame", [row[1] for row in FRAMES], ids=[row[0] for row in FRAMES])
def test_events_are_read_whatever_stands_between_them(frame: bytes, size: int) -> None:
    taken = taken_of([frame[at : at + size] for at in range(0, len(frame), size)], kind="text/event-stream")
    assert (taken.content, taken.heard, taken.finish, taken.notes) == ("Well.", "Well.", "stop", ())


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json", "text/plain", "", "application/x-ndjson"])
def test_events_and_whole_replies_are_told_apart_by_what_they_are(kind: str) -> None:
    assert taken_of([framed()], kind=kind).content == "Well."
    assert taken_of(whole(chat_reply()), kind=kind).content == "Well."


CUTS: list[tuple[str, bytes]] = [
    ("in an event", framed()[:-60]),
    ("before the end", "".join(f"data: {line}\n\n" for line in LINES[:2]).encode()),
    ("an event that is no JSON", framed(between='data: {"choices": [{"del\n\n')),
    ("a quoted text as an event", framed(between='data: "text"\n\n')),
    ("nothing but comments", b": ping\n\n: ping\n\n"),
    ("nothing but the end", b"data: [DONE]\n\n"),
]  # fmt: skip


@pytest.mark.parametrize("frame", [row[1] for row in CUTS], ids=[row[0] for row in CUTS])
def test_a_stream_that_is_cut_off_is_no_answer(frame: bytes) -> None:
    failure = take([frame], kind="text/event-stream")
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (True, True)


def test_the_lines_of_an_event_are_bounded() -> None:
    """Each line makes the whole event be looked at again."""
    decoder = EventDecoder()
    for _ in range(MAX_EVENT_LINES):
        list(decoder.feed(b"data: {\n"))
    with pytest.raises(BadProviderReply):
        list(decoder.feed(b"data: {\n"))


# -- errors in a reply of status 200 --------------------------------------------------------------------------------


def an_error(message: str = "It broke.", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


ERRORS: list[tuple[str, Any, str, bool]] = [
    ("429", an_error(code=429), "provider_busy", True),
    ("429 as a text", an_error(code="429"), "provider_busy", True),
    ("529", an_error(code=529), "provider_busy", True),
    ("rate limit by type", an_error(type="rate_limit_error"), "provider_busy", True),
    ("rate limit by code", an_error(code="rate_limit_exceeded", type="requests"), "provider_busy", True),
    ("overloaded", an_error(type="overloaded_error"), "provider_busy", True),
    ("of Google", an_error(code=429, status="RESOURCE_EXHAUSTED"), "provider_busy", True),
    ("500", an_error(code=500), "provider_error", True),
    ("502", an_error(code=502, metadata={"provider_name": "x"}), "provider_error", True),
    ("503", an_error(code=503), "provider_error", True),
    ("504", an_error(code=504), "provider_error", True),
    ("server error by type", an_error(type="server_error"), "provider_error", True),
    ("unavailable", an_error(status="UNAVAILABLE"), "provider_error", True),
    ("internal", an_error(type="InternalServerError"), "provider_error", True),
    ("408", an_error(code=408), "provider_error", True),
    ("400", an_error(code=400), "provider_error", False),
    ("401", an_error(code=401), "provider_error", False),
    ("402", an_error(code=402), "provider_error", False),
    ("403", an_error(code=403), "provider_error", False),
    ("404", an_error(code=404), "provider_error", False),
    ("quota", an_error(code="insufficient_quota", type="insufficient_quota"), "provider_error", False),
    ("bad request by type", an_error(type="BadRequestError"), "provider_error", False),
    ("a code of nobody", an_error(code=1302), "provider_error", False),
    ("no code", an_error(), "provider_error", False),
    ("a text", {"error": "It broke."}, "provider_error", False),
    ("a list", {"errors": [{"message": "It broke.", "code": 503}]}, "provider_error", True),
    ("with null choices", {**an_error(code=503), "choices": None, "usage": None}, "provider_error", True),
    ("with empty choices", {**an_error(code=503), "choices": []}, "provider_error", True),
    ("in the choice", {"choices": [{"error": {"message": "It broke.", "code": 503}}]}, "provider_error", True),
    ("an object of errors", {"object": "error", "message": "It broke.", "code": 503}, "provider_error", True),
    ("words alone", {"message": "It broke.", "code": 503}, "provider_error", True),
    ("words of another name", {"code": 503, "msg": "It broke.", "data": None}, "provider_error", True),
    ("a detail", {"detail": "It broke."}, "provider_error", False),
    ("a description", {"code": "x", "description": "It broke.", "solution": ""}, "provider_error", False),
    ("of MiniMax", {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "It broke."}}, "provider_error",
     False),
    ("of Anthropic", {"type": "error", **an_error(type="overloaded_error")}, "provider_busy", True),
    ("too long", an_error("It broke.", code="context_length_exceeded"), "context_full", False),
    ("too long, by its words", an_error("It broke: maximum context length is 7", code=400), "context_full", False),
]  # fmt: skip


@pytest.mark.parametrize("place", ["whole", "event", "list", "message", "message event"])
@pytest.mark.parametrize(("body", "code", "retryable"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS])
def test_an_error_in_a_200_is_that_error(place: str, body: Any, code: str, retryable: bool) -> None:
    form = MESSAGES if "message" in place else CHAT
    if form is MESSAGES and body.get("choices"):
        body = {"error": body.get("error") or body["choices"][0]["error"]}
    parts = events([body]) if "event" in place else whole([body] if place == "list" else body)
    failure = take(parts, form)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert "It broke" in failure.message
    assert failure.unknown_end == ("error 504" in failure.message)
    assert all(f"with status {status}" not in failure.message for status in range(400, 600))  # it was 200


TOO_LONG = [
    "The decoder prompt (length 9000) is longer than the maximum model length of 4096.",
    "The prompt (total length 9000) is too long to fit into the model (context length 4096).",
    "Input prompt (2664 tokens) is too long and exceeds limit of 2048",
    "Reached context length of 4096 tokens with a model that does not support mid-generation context overflow.",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Input validation error: `inputs` must have less than 4096 tokens. Given: 9000",
    "Requested input length 9000 exceeds maximum input length 4096",
    "Unable to submit request because the input token count is 9000 but model only supports up to 4096.",
    "prompt token count of 9000 exceeds the limit of 4096",
    "Invalid request: Your request exceeded model token limit: 8192",
    "Prompt exceeds max length",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
    "invalid params, context window exceeds limit",
    "The sum of prompt length (9000.0) and query length (1.0) should not exceed max_num_tokens (8192)",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.",
    "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - No.",
    "The provided prompt is 9000 tokens long, but the maximum supported sequence length is just 8192!",
    "Prompt length 9000 exceeds maximum of 4096 tokens",
    "Requested tokens (9000) exceed context window of 4096",
    "prompt too long; exceeded max context length by 4 tokens",
]
SHORT_ENOUGH = [
    "max_tokens is too large: 9000. This model supports at most 4096 completion tokens",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "string too long. Expected a string with maximum length 64, but got a string with length 70",
    "messages.1.tool_calls.0.id: exceeds maximum length of 40",
    "tools: exceeds maximum of 128",
    "The image is too long.",
]


@pytest.mark.parametrize("words", TOO_LONG)
def test_a_conversation_that_is_too_long_is_known_by_its_words(words: str) -> None:
    for status in (400, 413, 422, 500):
        assert read_error({"error": {"message": words}}, status).kind == "overflow"
    assert read_error({"error": {"message": words}}, 429).kind is None


@pytest.mark.parametrize("words", SHORT_ENOUGH)
def test_what_else_is_too_long_is_not_the_conversation(words: str) -> None:
    assert read_error({"error": {"message": words}}, 400).kind is None


@pytest.mark.parametrize(
    "words",
    [
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000.",
    ],
)
def test_a_request_that_is_larger_than_is_taken_at_once_is_too_long(words: str) -> None:
    """Waiting would not help."""
    assert read_error({"error": {"message": words, "code": "rate_limit_exceeded"}}, 413).kind == "overflow"


NAMED: list[tuple[str, str, bool]] = [
    ("an object without an error in it", 'event: error\ndata: {"message": "It broke.", "code": 503}\n\n', True),
    ("an error", 'event: error\ndata: {"error": {"message": "It broke.", "code": 503}}\n\n', True),
    ("words alone", "event: error\ndata: It broke.\n\n", False),
    ("words on two lines", "event: error\ndata: Oh,\ndata: It broke.\n\n", False),
    ("a field of that name", 'error: {"code": 503, "message": "It broke.", "type": "unavailable_error"}\n\n', True),
]


@pytest.mark.parametrize("done", ["", "data: [DONE]\n\n"])
@pytest.mark.parametrize("form", [CHAT, MESSAGES])
@pytest.mark.parametrize(("frame", "retryable"), [row[1:] for row in NAMED], ids=[row[0] for row in NAMED])
def test_an_event_that_is_called_an_error_is_one(frame: str, retryable: bool, form: Form, done: str) -> None:
    failure = take([(frame + done).encode()], form)
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (retryable, False)
    assert "It broke" in failure.message


def test_an_event_behind_an_error_s_name_is_none() -> None:
    frame = "event: error\n\n" + framed().decode()
    assert taken_of([frame.encode()]).content == "Well."


@pytest.mark.parametrize("form", [CHAT, MESSAGES])
def test_what_a_stream_said_before_it_was_cut_off_is_shown(form: Form) -> None:
    failure = take(events([{"type": "status", "message": "It waits in a queue."}], done=False), form)
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (True, True)
    assert "It waits in a queue" in failure.message


def test_words_beside_an_answer_are_no_error() -> None:
    said = {"type": "status", "message": "It waits in a queue."}
    for values in ([said, FIRST, SECOND, LAST], [FIRST, said, SECOND, LAST], [FIRST, SECOND, LAST, said]):
        assert taken_of(events(values)).content == "Well."
    start, *more = message_stream()
    assert taken_of(events([start, said, *more], done=False), MESSAGES).content == "Well."


NO_ERROR: list[Any] = [None, False, "", 0, [], {}, {"code": 0, "message": ""}, {"message": None}]


@pytest.mark.parametrize("error", NO_ERROR)
@pytest.mark.parametrize("name", ["error", "errors"])
def test_an_error_that_says_nothing_is_none(error: Any, name: str) -> None:
    for parts in (
        whole({**chat_reply(), name: error}),
        events([{**FIRST, name: error}, SECOND, {**LAST, name: error}]),
    ):
        assert taken_of(parts).content == "Well."
    state = {"base_resp": {"status_code": 0, "status_msg": ""}}
    assert taken_of(whole({**chat_reply(), **state})).content == "Well."


# -- other forms ----------------------------------------------------------------------------------------------------

COUNTS = {"prompt_eval_count": 100, "eval_count": 20}
NATIVE = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
READ_FILE = {"function": {"name": "read_file", "arguments": {"path": "a"}}}


def native(content: str, *, done: bool = False, **more: Any) -> dict[str, Any]:
    calls = {"tool_calls": more.pop("calls")} if "calls" in more else {}
    return {**NATIVE, "message": {"role": "assistant", "content": content, **calls}, "done": done, **more}


OLLAMA: list[tuple[str, list[Any], str | None]] = [
    ("whole", [native("Well.", done=True, done_reason="stop", calls=[READ_FILE], **COUNTS)], "stop"),
    ("without a reason", [native("Well.", done=True, calls=[READ_FILE], **COUNTS)], "stop"),
    ("cut by its limit", [native("Well.", done=True, done_reason="length", calls=[READ_FILE], **COUNTS)], "length"),
    ("in pieces", [native("We"), native("ll."), native("", calls=[READ_FILE]),
                   native("", done=True, done_reason="stop", **COUNTS)], "stop"),
]  # fmt: skip


@pytest.mark.parametrize("frame", ["lines", "events"])
@pytest.mark.parametrize(("values", "finish"), [row[1:] for row in OLLAMA], ids=[row[0] for row in OLLAMA])
def test_the_form_of_ollama_s_own_is_taken(values: list[Any], finish: str, frame: str) -> None:
    lines = "\n".join(map(json.dumps, values)).encode()
    taken = taken_of([lines] if frame == "lines" else events(values, done=False), kind="application/x-ndjson")
    assert (taken.content, taken.heard, taken.finish, taken.usage) == ("Well.", "Well.", finish, (100, 20, 0))
    assert taken.calls == (("ours-1", "read_file", {"path": "a"}),)


def test_lines_that_break_off_are_no_answer() -> None:
    failure = take(["\n".join(map(json.dumps, [native("We"), native("ll.")])).encode()])
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (True, True)


def test_lines_of_chunks_are_taken_as_events() -> None:
    assert taken_of(["\n".join(LINES).encode()]).content == "Well."
    assert taken_of([json.dumps(chat_reply(), indent=1).encode()]).content == "Well."


FOREIGN: list[tuple[str, Form, Any, str]] = [
    ("a message", CHAT, message_reply(), "anthropic:"),
    ("of Google", CHAT, {"candidates": [{"content": {"parts": [{"text": "Well."}]}}]}, "google:"),
    ("a response", CHAT, {"object": "response", "output": [{"type": "message"}]}, "openai-responses:"),
    ("Ollama's generate", CHAT, {**NATIVE, "response": "Well.", "done": True}, "/v1"),
    ("a chat completion", MESSAGES, chat_reply(), "openai:"),
    ("a chat completion for a response", RESPONSE, chat_reply(), "openai-chat:"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "reply", "setting"), [row[1:] for row in FOREIGN], ids=[row[0] for row in FOREIGN])
def test_a_form_that_is_not_taken_names_the_setting(form: Form, reply: Any, setting: str) -> None:
    failure = take(whole(reply), form)
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (False, True)
    assert setting in failure.message


WRAPPED = [
    {"result": chat_reply()}, {"data": chat_reply(), "code": 0, "msg": "success"},
    {"output": {"choices": chat_reply()["choices"]}, "usage": None, "request_id": "x"}, {"response": chat_reply()},
]  # fmt: skip


@pytest.mark.parametrize("reply", [*WRAPPED, {**chat_reply(), "choices": {"0": chat_reply()["choices"][0]}}])
def test_a_reply_in_a_wrapper_is_taken(reply: Any) -> None:
    assert taken_of(whole(reply)).content == "Well."
    assert taken_of(events([reply])).content == "Well."


ENDS: list[tuple[str, list[Any]]] = [
    ("as defined", message_stream(stop="max_tokens")),
    ("without its last event", message_stream(stop="max_tokens")[:-1]),
    ("in the last event", [*message_stream(stop=None)[:-1], {"type": "message_stop", "stop_reason": "max_tokens"}]),
    ("in a delta of the last event", [*message_stream(stop=None)[:-1],
                                      {"type": "message_stop", "delta": {"stop_reason": "max_tokens"}}]),
    ("beside the delta", [*message_stream()[:-2], {"type": "message_delta", "stop_reason": "max_tokens"}]),
    ("of the other form", [*message_stream()[:-2], {"type": "message_delta", "delta": {"finish_reason": "length"}}]),
    ("in stopReason", [*message_stream()[:-2], {"type": "message_delta", "delta": {"stopReason": "max_tokens"}}]),
]  # fmt: skip


@pytest.mark.parametrize("values", [row[1] for row in ENDS], ids=[row[0] for row in ENDS])
def test_the_stop_reason_of_a_message_is_found_wherever_it_stands(values: list[Any]) -> None:
    taken = taken_of(events(values, done=False), MESSAGES)
    assert (taken.content, taken.finish) == ("Well.", "length")


@pytest.mark.parametrize("left_out", [2, 3, 4, 5])
def test_a_message_without_a_stop_reason_is_cut_off(left_out: int) -> None:
    failure = take(events(message_stream()[:-left_out], done=False), MESSAGES)
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (True, True)


FINISH_PLACES: list[tuple[str, dict[str, Any]]] = [
    ("in the choice", {"choices": [{"delta": {}, "finish_reason": "length"}]}),
    ("of the other form", {"choices": [{"delta": {}, "stop_reason": "max_tokens"}]}),
    ("in finishReason", {"choices": [{"delta": {}, "finishReason": "MAX_TOKENS"}]}),
    ("in the delta", {"choices": [{"delta": {"finish_reason": "length"}}]}),
    ("on the top level", {"choices": [{"delta": {}}], "finish_reason": "length"}),
    ("on the top level, without a choice", {"choices": [], "finish_reason": "length"}),
]  # fmt: skip


@pytest.mark.parametrize("end", [row[1] for row in FINISH_PLACES], ids=[row[0] for row in FINISH_PLACES])
def test_the_finish_reason_of_a_chat_is_found_wherever_it_stands(end: dict[str, Any]) -> None:
    begun = {"choices": [{"delta": {"content": "Well."}, "finish_reason": "null"}]}
    taken = taken_of(events([begun, end], done=False))
    assert (taken.content, taken.finish) == ("Well.", "length")
    assert isinstance(take(events([begun], done=False)), Failure)  # the word that says nothing is no end
    begun["choices"][0]["finish_reason"] = "NOT_FINISHED"
    assert isinstance(take(events([begun], done=False)), Failure)


ITEM = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]}
CALL_ITEM = {"type": "function_call", "call_id": "x1", "name": "read_file", "arguments": "{}"}


@pytest.mark.parametrize("output", [[], None, [ITEM, CALL_ITEM]])
@pytest.mark.parametrize("kind", ["completed", "done", "incomplete"])
def test_the_items_of_a_response_are_taken_from_its_events_where_its_last_has_none(output: Any, kind: str) -> None:
    done = [
        {"type": "response.output_item.done", "output_index": n, "item": each}
        for n, each in enumerate((ITEM, CALL_ITEM))
    ]
    last = {"type": f"response.{kind}", "response": {"id": "r1", "output": output}}
    reply = read_whole(events([*done, last], done=False), RESPONSE)
    said, called = reply["output"]
    assert (said["content"][0]["text"], called["call_id"], called["name"]) == ("Well.", "x1", "read_file")


@pytest.mark.parametrize("error", [an_error(code=503), {"error": "It broke."}])
def test_an_error_after_a_part_of_the_answer_costs_what_was_held(error: Any) -> None:
    failure = take(events([chunk({"content": "Well"}), error]))
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (True, True)
    assert "It broke" in failure.message


SPENT = {"prompt_tokens": 50_000, "completion_tokens": 3_000}
BEGUN = {"type": "message_start", "message": {"id": "m1", "usage": {"input_tokens": 50_000, "output_tokens": 1}}}
GROWN = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3_000}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Well"}}
CREATED = {"type": "response.created", "response": {"usage": {"input_tokens": 50_000, "output_tokens": 3_000}}}
COSTS: list[tuple[str, Form, list[Any], tuple[int, int] | None]] = [
    ("usage alone", CHAT, [chunk(usage=SPENT)], (50_000, 3_000)),
    ("no choice", CHAT, [{"choices": [], "usage": SPENT}], (50_000, 3_000)),
    ("of Groq", CHAT, [chunk(x_groq={"usage": SPENT})], (50_000, 3_000)),
    ("the role alone", CHAT, [chunk({"role": "assistant", "content": ""}, usage=SPENT)], (50_000, 3_000)),
    ("with its text", CHAT, [chunk({"content": "Well"}, usage=SPENT)], (50_000, 3_000)),
    ("after its text", CHAT, [chunk({"content": "Well"}), {"choices": [], "usage": SPENT}], (50_000, 3_000)),
    ("before its text", CHAT, [chunk(usage=SPENT), chunk({"content": "Well"})], None),
    ("unreadable", CHAT, [chunk(usage="plenty")], None),
    ("start of a message", MESSAGES, [BEGUN], (50_000, 1)),
    ("end of a message", MESSAGES, [BEGUN, GROWN], (50_000, 3_000)),
    ("text and its end", MESSAGES, [BEGUN, BLOCK, GROWN], (50_000, 3_000)),
    ("start and text", MESSAGES, [BEGUN, BLOCK], None),
    ("response", RESPONSE, [CREATED], (50_000, 3_000)),
]  # fmt: skip


@pytest.mark.parametrize("error", [an_error(code=503), an_error(code="context_length_exceeded")])
@pytest.mark.parametrize(("form", "before", "spent"), [row[1:] for row in COSTS], ids=[row[0] for row in COSTS])
def test_an_error_after_a_report_costs_what_is_reported(
    form: Form, before: list[Any], spent: tuple[int, int] | None, error: Any
) -> None:
    last = {"type": "error", **error} if form is RESPONSE else error
    failure = take(events([*before, last], done=False), form)
    assert isinstance(failure, Failure)
    reported = failure.usage and (failure.usage.input_tokens, failure.usage.output_tokens)
    assert (reported, failure.unknown_end) == (spent, spent is None)


def test_a_report_beside_an_error_costs_the_same_in_an_event_and_whole() -> None:
    for parts in (whole({**an_error(code=503), "usage": SPENT}), events([{**an_error(code=503), "usage": SPENT}])):
        failure = take(parts)
        assert isinstance(failure, Failure)
        assert failure.usage is not None
        assert (failure.usage.input_tokens, failure.usage.output_tokens) == (50_000, 3_000)


WHATEVER: list[Any] = [
    {}, {"choices": None}, {"choices": 7}, {"choices": [7]}, {"choices": [{"message": 7}]}, {"content": 7},
    {"usage": {}}, {"content": {}}, {"a": {"b": []}}, {"type": "message"}, {"message": "no"},
    {"choices": [{"delta": {"content": 7}}]},
]  # fmt: skip


@pytest.mark.parametrize("form", [CHAT, MESSAGES])
@pytest.mark.parametrize("value", WHATEVER)
def test_whatever_comes_is_an_answer_or_a_failure(form: Any, value: Any) -> None:
    for parts in (whole(value), events([value]), events([value], done=False)):
        assert isinstance(take(parts, form), Taken | Failure)
