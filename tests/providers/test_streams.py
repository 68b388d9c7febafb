"""What a provider says is heard as it comes; what is recorded of it is what a whole reply would have left."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.app import ME, law, rests
from support.provider_calls import KEY, asking, step_of
from support.provider_replies import RESPONSES
from support.provider_server import Standin, calls, chat, message, says, sends, talks, uses
from support.provider_streams import chat_events, message_events, response_events, streams

from kairos_mcp.app.app import App
from kairos_mcp.core.messages import Completion, Usage
from kairos_mcp.core.model import ModelInput, RemoteModel
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.steps import Failure, Sent
from kairos_mcp.models.model import SpokenText, redact_model

SECRET = "Zq7-plum/9x=Tangerine+44"
OPENAI, ANTHROPIC = "openai:small", "anthropic:claude-standin"


async def heard_from(model: RemoteModel, **step: Any) -> tuple[Completion | Failure, list[str]]:
    """The answer of a model, and the pieces that were heard of it."""
    pieces: list[str] = []
    asked = step_of(**step)
    return await model(ModelInput(asked.name, asked, Sent("provider"), on_text=pieces.append)), pieces


def url_of(server: Standin, name: str) -> str:
    return server.address if name == ANTHROPIC else server.openai


LOOK = {"path": "a.txt"}
CHATS = (
    chat("I look first.", calls(("read_file", LOOK), ("read_file", LOOK)), finish="tool_calls", usage=(100, 20, 7)),
    chat("It says hello.", usage=(100, 20, 0)),
    chat("It was cut", finish="length"),
    chat("No usage.", usage=None),
)
MESSAGES = (
    message(says("I look first."), uses("toolu_1", "read_file", LOOK), stop="tool_use", usage=(100, 20, 7)),
    message(says("It says hello.")),
    message(says("It was cut"), stop="max_tokens"),
)
RESPONSE = RESPONSES.says("It says hello.")
RESPONSE_WITH_CALL = {
    **RESPONSE,
    "output": [*RESPONSES.says("I look first.")["output"], *RESPONSES.acts("call_1", "read_file", LOOK)["output"]],
}
CASES = [(RESPONSES.model, reply, response_events) for reply in (RESPONSE, RESPONSE_WITH_CALL)]
CASES += [(OPENAI, reply, chat_events) for reply in CHATS]
CASES += [(ANTHROPIC, reply, message_events) for reply in MESSAGES]


@pytest.mark.parametrize(("name", "reply", "events"), CASES)
async def test_what_came_in_pieces_is_recorded_as_what_came_whole(
    server: Standin, name: str, reply: Any, events: Callable[..., Any]
) -> None:
    server.will(sends(reply), streams(list(events(reply))))
    async with asking(name, url_of(server, name)) as model:
        asked = step_of()
        whole = await model(ModelInput(asked.name, asked, Sent("provider")))
        answer, pieces = await heard_from(model)
    assert isinstance(answer, Completion)
    assert isinstance(whole, Completion)
    assert "stream" not in server.bodies[0] or server.bodies[0]["stream"] is False
    assert replace(answer, private=None, usage=None) == replace(whole, private=None, usage=None)
    assert (answer.usage is None) == (whole.usage is None)
    if answer.usage is not None and whole.usage is not None:
        assert answer.usage == whole.usage
    assert "".join(pieces) == answer.content
    assert len(pieces) > 2


async def test_the_first_words_are_heard_before_the_last_have_come(server: Standin) -> None:
    gate, first = asyncio.Event(), asyncio.Event()
    events = list(chat_events(chat("One two three.")))
    server.will(streams(events, gate=gate, until=3))
    asked = step_of()
    async with asking(OPENAI, server.openai) as model, asyncio.timeout(20):
        answer = model(ModelInput(asked.name, asked, Sent("provider"), on_text=lambda _: first.set()))
        waiting = asyncio.ensure_future(answer)
        await first.wait()
        assert not waiting.done()
        gate.set()
        assert (await waiting).content == "One two three."


@pytest.mark.parametrize(
    ("name", "events"),
    [(OPENAI, list(chat_events(chat("One two three.", usage=None)))[:-left_out]) for left_out in (2, 5)]
    + [(RESPONSES.model, list(response_events(RESPONSE))[:-1])]
    + [(ANTHROPIC, list(message_events(message(says("One two three."))))[:-left_out]) for left_out in (2, 5)],
)
async def test_a_stream_that_breaks_off_is_no_answer(server: Standin, name: str, events: list[str]) -> None:
    server.will(streams(events))
    async with asking(name, url_of(server, name)) as model:
        answer, _ = await heard_from(model)
    assert isinstance(answer, Failure)
    assert (answer.retryable, answer.unknown_end) == (True, True)


@pytest.mark.parametrize("usage", [{"prompt_tokens": -1}, {"completion_tokens": True}, "many", {"total_tokens": 2**60}])
async def test_usage_that_is_no_count_counts_as_none_in_a_stream_too(server: Standin, usage: Any) -> None:
    server.will(streams(list(chat_events(chat("One.", usage=usage)))))
    async with asking(OPENAI, server.openai) as model:
        answer, _ = await heard_from(model)
    assert isinstance(answer, Completion)
    assert (answer.content, answer.usage) == ("One.", None)


async def test_a_whole_reply_of_a_server_that_knows_no_streams_is_taken_as_it_is(server: Standin) -> None:
    server.will(talks("One."))
    async with asking(OPENAI, server.openai) as model:
        answer, pieces = await heard_from(model)
    assert isinstance(answer, Completion)
    assert (answer.content, pieces, answer.usage) == ("One.", ["One."], Usage(100, 20, 0))
    assert [bool(body.get("stream")) for body in server.bodies] == [True]


@pytest.mark.parametrize(
    ("name", "events"),
    [
        (OPENAI, list(chat_events(chat("One two three.")))),
        (ANTHROPIC, list(message_events(message(says("One two three."))))),
        (RESPONSES.model, list(response_events(RESPONSES.says("One two three.")))),
    ],
)
async def test_a_connection_that_stays_open_behind_the_last_event_is_left(
    server: Standin, name: str, events: list[str]
) -> None:
    server.will(streams([*events, ": ping\n\n"], gate=asyncio.Event(), until=len(events)))
    async with asking(name, url_of(server, name)) as model, asyncio.timeout(100):
        answer, _ = await heard_from(model)
    assert isinstance(answer, Completion)
    assert (answer.content, answer.usage is None) == ("One two three.", False)


async def test_what_comes_right_behind_the_stop_reason_of_a_message_is_taken(server: Standin) -> None:
    *events, delta, _ = message_events(message(says("One two three.")))
    late = {"type": "message_stop", "usage": {"output_tokens": 77}}
    server.will(streams([*events, delta, f"data: {json.dumps(late)}\n\n"]))
    async with asking(ANTHROPIC, server.address) as model:
        answer, _ = await heard_from(model)
    assert isinstance(answer, Completion)
    assert answer.usage is not None
    assert answer.usage.output_tokens == 77


async def test_an_unasked_stream_is_put_together(server: Standin) -> None:
    async def reply(heard: Any) -> Any:
        heard.body["stream"] = True
        return await streams(list(chat_events(chat("One."))))(heard)

    server.will(reply)
    async with asking(OPENAI, server.openai) as model:
        asked = step_of()
        answer = await model(ModelInput(asked.name, asked, Sent("provider")))
    assert isinstance(answer, Completion)
    assert answer.content == "One."


@pytest.mark.parametrize("size", [1, 2, 7, 30])
async def test_a_secret_that_comes_in_two_pieces_is_not_heard(server: Standin, size: int) -> None:
    text = f"The key is {SECRET}, and once more {SECRET}"
    server.will(streams(list(chat_events(chat(text), size))))
    async with asking(OPENAI, server.openai) as model:
        answer, pieces = await heard_from(redact_model(model, Redactor([SECRET])))
    assert isinstance(answer, Completion)
    assert answer.content == "".join(pieces) == "The key is [secret], and once more [secret]"
    assert not any(SECRET[:8] in piece for piece in pieces)


SECRETS = (
    "Zq7-plum/9x=Tangerine+44",
    "abcdefgh1",
    "xyzabcdefgh1-longer-one",
    "Zq7-plum",
    'quo"te<&>d-1',
    "ключ-от-двери-42",
)


def encodings_of(secret: str) -> list[str]:
    plain = [secret, quote(secret, safe=""), json.dumps(secret)[1:-1], secret.encode().hex()]
    return plain + [base64.b64encode(b"x" * lead + secret.encode()).decode() for lead in range(3)]


PARTS = st.one_of(
    st.sampled_from([form for secret in SECRETS for form in encodings_of(secret)]),
    st.sampled_from([form[:cut] for secret in SECRETS for form in encodings_of(secret) for cut in (1, 3, 7)]),
    st.text(alphabet="aZq7x-= \nключ", max_size=6),
)


@law
@example(parts=[SECRETS[0], SECRETS[0]], cuts=[])  # two values that meet
@given(parts=st.lists(PARTS, max_size=6), cuts=st.lists(st.integers(0, 200), max_size=12))
def test_a_text_in_pieces_is_redacted_as_it_is_whole(parts: list[str], cuts: list[int]) -> None:
    text, redactor = "".join(parts), Redactor(SECRETS)
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    stream = redactor.open_stream()
    shown = [stream.add(text[start:end]) for start, end in itertools.pairwise(at)]
    assert "".join([*shown, stream.end()]) == redactor.redact_known(text).text


@pytest.mark.parametrize("secret", SECRETS)
def test_each_form_of_a_secret_is_redacted_where_it_comes_letter_by_letter(secret: str) -> None:
    redactor = Redactor(SECRETS)
    for form in encodings_of(secret):
        text = f"It is {form}!"
        stream = redactor.open_stream()
        shown = [*map(stream.add, text), stream.end()]
        assert "".join(shown) == redactor.redact_known(text).text, form


async def test_a_run_is_heard_round_by_round_and_what_it_records_is_redacted(place, server, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (place.workspace / "a.txt").write_text("alpha\n")
    server.will(
        streams(list(chat_events(chat("I look.", calls(("read_file", LOOK)), finish="tool_calls")))),
        streams(list(chat_events(chat(f"It holds {KEY} indeed.")))),
    )
    spoken: list[SpokenText] = []
    async with App.open(place.settings(model=OPENAI, base_url=server.openai), via="command") as app:
        app.listen(spoken.append)
        run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
        report = await rests(app, run_id)
    assert report.summary == "It holds [secret] indeed."
    by_step: dict[str, str] = {}
    for each in spoken:
        by_step[each.path] = by_step.get(each.path, "") + each.text
    assert by_step == {"round-1": "I look.", "round-2": "It holds [secret] indeed."}
    assert [each.path for each in spoken if each.ends] == ["round-1", "round-2"]
    assert (report.usage["exactness"], report.usage["output_tokens"]) == ("reported", 40)
