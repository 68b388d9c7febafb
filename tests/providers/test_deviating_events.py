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
    take,
    taken_of,
    whole,
)

from kairos_mcp.core.steps import Failure
from kairos_mcp.models.replies.border import CHAT, RESPONSE, Form
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
    ("of Anthropic", {"type": "error", **an_error(type="overloaded_error")}, "provider_busy", True),
    ("too long", an_error("It broke.", code="context_length_exceeded"), "context_full", False),
    ("too long, by its words", an_error("It broke: maximum context length is 7", code=400), "context_full", False),
]  # fmt: skip


@pytest.mark.parametrize("place", ["whole", "event", "list", "message", "message event"])
@pytest.mark.parametrize(("body", "code", "retryable"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS])
def test_an_error_in_a_200_is_that_error(place: str, body: Any, code: str, retryable: bool) -> None:
    form = MESSAGES if "message" in place else CHAT
    if form is MESSAGES and "error" not in body:
        body = {"error": body.get("errors", [None])[0] or body["choices"][0]["error"]}
    parts = events([body], done=False) if "event" in place else whole([body] if place == "list" else body)
    failure = take(parts, form)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert "It broke" in failure.message
    assert failure.unknown_end == ("error 504" in failure.message)
    assert all(f"with status {status}" not in failure.message for status in range(400, 600))  # it was 200


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
