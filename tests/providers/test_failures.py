"""What a provider may do wrong, and what is made of it: a value that says whether, when and at what price to go on."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from support.provider_calls import KEY, ask_model, asking, step_of
from support.provider_server import (
    WITHIN_S,
    Reply,
    Standin,
    breaks_off,
    calls,
    chat,
    message,
    never_ends,
    raw,
    refuses,
    says,
    sends,
    silent,
    talks,
)

from kairos_mcp.core.json_bounds import MESSAGE_VALUES
from kairos_mcp.core.messages import Completion, Usage
from kairos_mcp.core.steps import Failure
from kairos_mcp.models.provider_errors import redact_keys
from kairos_mcp.store.rows import decode_answer, encode_answer

WELL_FORMED = json.dumps(chat("hello")).encode()


async def answer_to(server: Standin, reply: Reply, name: str = "openai:small") -> Completion | Failure:
    server.will(reply)
    async with asking(name, server.openai if name.startswith("openai") else server.address) as model:
        return await ask_model(model, step_of())


async def failure_to(server: Standin, reply: Reply, name: str = "openai:small") -> Failure:
    answer = await answer_to(server, reply, name)
    assert isinstance(answer, Failure)
    assert KEY not in answer.message
    assert decode_answer(encode_answer(answer)) == answer
    return answer


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (429, ("provider_busy", True, False)),
        (529, ("provider_busy", True, False)),
        (500, ("provider_error", True, False)),
        (502, ("provider_error", True, False)),
        (503, ("provider_error", True, False)),
        (504, ("provider_error", True, True)),
        (408, ("provider_error", True, False)),
        *((status, ("provider_error", False, False)) for status in (400, 401, 402, 403, 404, 413, 422)),
    ],
)
@pytest.mark.parametrize("name", ["openai:small", "anthropic:claude-standin"])
async def test_a_status_says_whether_another_attempt_makes_sense(
    server: Standin, name: str, status: int, expected: tuple[str, bool, bool]
) -> None:
    failure = await failure_to(server, refuses(status), name)
    assert (failure.code, failure.retryable, failure.unknown_end) == expected
    assert len(server.heard) == 1  # no library tries again by itself


@pytest.mark.parametrize(
    ("after", "wait"),
    [
        *(("0", 0), ("2", 2), ("99999999", 86_400), ("-1", None), ("NaN", None), ("soon", None), (None, None)),
        *(("7.5", 7.5), ("500ms", 0.5), ("1h", 3_600), ("PT7S", 7), ("20 seconds", 20)),
    ],
)
async def test_retry_after_is_heeded_within_bounds(server: Standin, after: str | None, wait: float | None) -> None:
    headers = {} if after is None else {"Retry-After": after}
    assert (await failure_to(server, refuses(429, **headers))).retry_after_s == wait


async def test_a_date_in_the_past_is_no_wait(server: Standin) -> None:
    failure = await failure_to(server, refuses(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"))
    assert failure.retry_after_s in (0, None)


async def test_exhausted_credit_is_not_tried_again(server: Standin) -> None:
    error = {"error": {"message": "no credit", "type": "insufficient_quota", "code": "insufficient_quota"}}
    assert not (await failure_to(server, sends(error, 429))).retryable


@pytest.mark.parametrize(
    ("status", "named"), [(401, "OPENAI_API_KEY"), (404, "KAIROS_MODEL"), (404, "KAIROS_BASE_URL")]
)
async def test_a_refusal_names_the_setting_that_cures_it(server: Standin, status: int, named: str) -> None:
    assert named in (await failure_to(server, refuses(status))).message


@pytest.mark.parametrize(
    "said", [KEY, f"Incorrect API key provided: {KEY}.", f"Bearer {KEY}", "sk-proj-abcdefgh12345678"]
)
async def test_a_key_that_a_provider_echoes_is_masked(server: Standin, said: str) -> None:
    failure = await failure_to(server, refuses(401, said))
    assert said not in failure.message
    assert "***" in failure.message


def test_secrets_of_the_environment_are_masked_by_value() -> None:
    assert redact_keys("say hunter22 twice", {"DB_PASSWORD": "hunter22", "EDITOR": "twice"}) == "say *** twice"


@pytest.mark.parametrize("key", [KEY + "\n", f" {KEY}", "sk-ключ"])
async def test_a_key_that_no_header_can_hold_is_a_config_error_without_the_key(server: Standin, key: str) -> None:
    async with asking("openai:small", server.openai, {"OPENAI_API_KEY": key}) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure)
    assert (failure.code, server.heard) == ("config_error", [])
    assert "OPENAI_API_KEY" in failure.message
    assert key.strip() not in failure.message


async def test_a_missing_key_of_a_real_provider_is_a_config_error_that_names_it() -> None:
    async with asking("anthropic:claude-sonnet-4-5", None, {}) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == ("config_error", False)
    assert "ANTHROPIC_API_KEY" in failure.message


@pytest.mark.parametrize("name", ["nobody:model", "mistral:small", "nothing"])
async def test_a_provider_that_is_not_there_is_a_config_error(name: str) -> None:
    async with asking(name, None, {}) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure)
    assert failure.code == "config_error"


async def test_a_connection_that_breaks_off_has_an_unknown_end(server: Standin) -> None:
    failure = await failure_to(server, breaks_off)
    assert (failure.code, failure.retryable, failure.unknown_end) == ("provider_error", True, True)


async def test_a_server_that_is_not_there_has_cost_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with asking("openai:small", f"http://127.0.0.1:{port}/v1") as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure)
    assert (failure.retryable, failure.unknown_end) == (True, False)


@pytest.mark.parametrize(
    ("body", "kind", "retryable"),
    [
        (WELL_FORMED[:-30], "application/json", True),  # cut off
        (b"", "application/json", True),
        (b"\xff\xfe{}", "application/json", True),
        (b"<html>Log in</html>", "text/html", False),
        (b"[]", "application/json", False),
        (b'"hello"', "application/json", False),
        (b'{"choices": []}', "application/json", True),  # a hiccup of what stands behind a gateway
        (b'{"choices": null}', "application/json", True),
        (b'{"choices": [{}]}', "application/json", True),
        (b'{"choices": [{"message": null}]}', "application/json", False),
        (b'{"choices": "none"}', "application/json", True),
        (b"{}", "application/json", False),
        (b'{"a": ' * 9_000, "application/json", True),
    ],
)
async def test_a_reply_of_no_shape_is_a_failure_whose_price_stays_charged(
    server: Standin, body: bytes, kind: str, retryable: bool
) -> None:
    failure = await failure_to(server, raw(body, kind))
    assert (failure.code, failure.retryable, failure.unknown_end) == ("provider_error", retryable, True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("name", ["openai:small", "anthropic:claude-standin"])
async def test_a_redirect_is_named_with_where_it_leads_and_neither_followed_nor_tried_again(
    server: Standin, name: str, status: int
) -> None:
    headers = {"Location": "https://login.example.org:8443/oauth?token=t0ps3cret"}
    failure = await failure_to(server, sends({}, status, **headers), name)
    assert (failure.code, failure.retryable, failure.unknown_end) == ("provider_error", False, False)
    assert all(word in failure.message for word in (str(status), "login.example.org:8443", "KAIROS_BASE_URL"))
    assert "t0ps3cret" not in failure.message
    assert len(server.heard) == 1


async def test_a_reply_of_too_many_values_is_refused_before_it_is_built(server: Standin) -> None:
    failure = await failure_to(server, raw(b'{"choices": [' + b"{}," * MESSAGE_VALUES + b"{}]}"))
    assert (failure.code, failure.retryable, failure.unknown_end) == ("provider_error", False, True)
    assert f"{MESSAGE_VALUES:,} values" in failure.message


async def test_a_reply_without_end_is_refused(server: Standin) -> None:
    failure = await failure_to(server, raw(b" " * (17 * 1024 * 1024)))
    assert (failure.code, failure.retryable, failure.unknown_end) == ("provider_error", False, True)
    assert "larger than" in failure.message


@pytest.mark.parametrize("reply", [silent, never_ends])
async def test_a_request_that_is_given_up_leaves_the_line_to_the_next(server: Standin, reply: Reply) -> None:
    server.will(reply, talks("hello"))
    async with asyncio.timeout(WITHIN_S), asking("openai:small", server.openai) as model:
        first = asyncio.create_task(ask_model(model, step_of()))
        await server.came.wait()
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert isinstance(await ask_model(model, step_of()), Completion)


# -- usage ---------------------------------------------------------------------------------------------------------


async def test_tokens_are_taken_as_reported_with_those_from_the_cache(server: Standin) -> None:
    answer = await answer_to(server, talks("hello", usage=(1_200, 34, 1_000)))
    assert isinstance(answer, Completion)
    assert answer.usage == Usage(1_200, 34, 1_000)


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}])
async def test_a_report_of_nothing_is_no_report(server: Standin, usage: Any) -> None:
    answer = await answer_to(server, talks("hello", usage=usage))
    assert isinstance(answer, Completion)
    assert (answer.content, answer.usage) == ("hello", None)


@pytest.mark.parametrize(
    "count", ["-5", "NaN", "Infinity", '"many"', "true", "1.5", "1e400", str(2**53), str(2**63), "[]"]
)
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "total_tokens"])
async def test_usage_that_counts_nothing_counts_as_none_and_is_noted(server: Standin, name: str, count: str) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8} | {name: "COUNT"}
    server.will(raw(json.dumps(chat("hello", usage=usage)).replace('"COUNT"', count).encode()))
    notes: list[str] = []
    async with asking("openai:small", server.openai) as model:
        answer = await ask_model(model, step_of(), note=notes.append)
    assert isinstance(answer, Completion)
    assert (answer.content, answer.usage) == ("hello", None)
    assert [name in note for note in notes] == [True]


# -- finish and calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        (talks("hello"), "stop"),
        (talks("hello", finish=None), "stop"),
        (talks("hel", finish="length"), "length"),
        (talks("", finish="content_filter"), "content_filter"),
        (talks(None, refusal="I will not."), "refusal"),
        (talks("", calls(("read_file", {})), finish="tool_calls"), "tool_calls"),
        (talks("", calls(("read_file", {})), finish="stop"), "tool_calls"),
        (talks("hello", finish="tool_calls"), None),
    ],
)
async def test_how_a_turn_of_openai_ended(server: Standin, reply: Reply, finish: str | None) -> None:
    answer = await answer_to(server, reply)
    assert isinstance(answer, Completion)
    assert answer.finish == finish


@pytest.mark.parametrize(
    ("stop", "finish"), [("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "refusal"), ("pause_turn", None)]
)
async def test_how_a_turn_of_anthropic_ended(server: Standin, stop: str, finish: str | None) -> None:
    answer = await answer_to(server, sends(message(says("well"), stop=stop)), "anthropic:claude-standin")
    assert isinstance(answer, Completion)
    assert (answer.content, answer.finish) == ("well", finish)


async def test_a_refusal_says_what_was_said(server: Standin) -> None:
    answer = await answer_to(server, talks(None, refusal="I will not."))
    assert isinstance(answer, Completion)
    assert answer.content == "I will not."


@pytest.mark.parametrize(
    ("given", "readable"),
    [
        ('{"path": "a"}', {"path": "a"}),
        ("", {}),
        ("{}", {}),
        ('{"path": ', None),
        ("[1]", None),
        ('"a"', None),
        ('{"n": NaN}', None),
        ('{"n": 1, "n": 2}', None),
        ('{"s": "\\ud800"}', None),
    ],
)
async def test_arguments_are_an_object_or_the_call_is_unreadable(
    server: Standin, given: str, readable: dict[str, Any] | None
) -> None:
    answer = await answer_to(server, talks(None, calls(("read_file", given)), finish="tool_calls"))
    assert isinstance(answer, Completion)
    (call,) = answer.tool_calls
    assert (call.id, call.name, call.arguments) == ("round-1/call-1", "read_file", readable or {})
    assert (call.unreadable is None) == (readable is not None)


async def test_a_text_with_half_a_surrogate_pair_is_unreadable(server: Standin) -> None:
    answer = await answer_to(server, raw(json.dumps(chat("\ud800")).encode()))
    assert isinstance(answer, Completion | Failure)
    encode_answer(answer)
