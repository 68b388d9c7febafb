"""xAI, which speaks gRPC: its own stubs serve it on loopback. Skipped where kairos-loop[xai] is not installed."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("xai_sdk")

from support.app import Place, open_checked_app, rests, start_run  # noqa: E402 - what is skipped is not imported
from support.provider_calls import ask_model, asking, step_of  # noqa: E402 - the same
from xai_sdk.proto import chat_pb2, chat_pb2_grpc, sample_pb2  # noqa: E402 - the same

from kairos_mcp.core.messages import Completion, Message  # noqa: E402 - the same
from kairos_mcp.core.model import PrivateParts  # noqa: E402 - the same
from kairos_mcp.core.steps import Failure  # noqa: E402 - the same

MODEL, KEY = "xai:grok-4", "a-key-of-the-test-0123456789"
ENVIRON = {"XAI_API_KEY": KEY}


@dataclass
class Grok(chat_pb2_grpc.ChatServicer):  # type: ignore[misc]  # its stubs have no types
    """Each request takes the next reply: a response, or the status that it fails with."""

    address: str = ""
    replies: deque[Any] = field(default_factory=deque)
    heard: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def GetCompletion(self, request: Any, context: Any) -> Any:
        self.heard.append(request)
        self.keys += [value for name, value in context.invocation_metadata() if name == "authorization"]
        reply = self.replies.popleft()
        if isinstance(reply, grpc.StatusCode):
            await context.abort(reply, "not now")
        return reply


@pytest.fixture
async def grok() -> AsyncIterator[Grok]:
    served, server = Grok(), grpc.aio.server()
    chat_pb2_grpc.add_ChatServicer_to_server(served, server)
    port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
    served.address = f"http://localhost:{port}"
    await server.start()
    yield served
    await server.stop(1)


def response(content: str = "", *calls: Any, seal: str = "") -> Any:
    completion = chat_pb2.GetChatCompletionResponse(id="x1", model="grok-4")
    output = completion.outputs.add()
    output.message.role = chat_pb2.MessageRole.ROLE_ASSISTANT
    output.message.content = content
    output.message.encrypted_content = seal
    output.finish_reason = sample_pb2.FinishReason.REASON_TOOL_CALLS if calls else sample_pb2.FinishReason.REASON_STOP
    for call_id, name, arguments in calls:
        called = output.message.tool_calls.add(type=chat_pb2.ToolCallType.TOOL_CALL_TYPE_CLIENT_SIDE_TOOL)
        called.id, called.function.name, called.function.arguments = call_id, name, arguments
    completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens = 100, 20, 120
    completion.usage.cached_prompt_text_tokens = 60
    return completion


async def test_a_text_and_what_it_cost(grok: Grok) -> None:
    grok.replies.append(response("It says alpha."))
    async with asking(MODEL, grok.address, ENVIRON) as model:
        answer = await ask_model(model, step_of(), max_tokens=321)
    assert isinstance(answer, Completion), answer
    assert (answer.content, answer.tool_calls) == ("It says alpha.", ())
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.cached_tokens) == (100, 20, 60)
    assert (grok.keys, grok.heard[0].max_tokens) == ([f"Bearer {KEY}"], 321)


async def test_a_call_its_result_and_what_is_sealed_go_back_together(grok: Grok) -> None:
    grok.replies += [response("", ("call_1", "read_file", '{"path": "a.txt"}'), seal="sealed"), response("alpha")]
    privates = PrivateParts()
    async with asking(MODEL, grok.address, ENVIRON) as model:
        first = await ask_model(model, step_of())
        assert isinstance(first, Completion), first
        (call,) = first.tool_calls
        assert (call.id, call.arguments) == ("round-1/call-1", {"path": "a.txt"})
        privates.keep("round-1", first)
        result = Message("tool", "it holds alpha", tool_call_id=call.id)
        talk = (Message("user", "Look."), Message("assistant", first.content, first.tool_calls), result)
        second = await ask_model(model, step_of(*talk, name="round-2"), privates)
    assert isinstance(second, Completion), second
    messages = grok.heard[1].messages
    assert [each.encrypted_content for each in messages if each.encrypted_content] == ["sealed"]
    assert [made.id for each in messages for made in each.tool_calls] == ["call_1"]
    assert "it holds alpha" in str(messages[-1])


@pytest.mark.parametrize(
    ("status", "code"),
    [("RESOURCE_EXHAUSTED", "provider_busy"), ("UNAVAILABLE", None), ("UNAUTHENTICATED", "provider_error")],
)
async def test_a_failure_is_one_attempt(grok: Grok, status: str, code: str | None) -> None:
    grok.replies += [getattr(grpc.StatusCode, status), response("unheard")]
    async with asking(MODEL, grok.address, ENVIRON) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure), failure
    assert (failure.code, failure.retryable) == (code or failure.code, status != "UNAUTHENTICATED")
    assert len(grok.heard) == 1


async def test_a_run_that_is_put_off_once_reads_a_file(
    grok: Grok, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setenv("XAI_API_KEY", KEY)
    acts = response("", ("call_1", "read_file", '{"path": "a.txt"}'))
    grok.replies += [grpc.StatusCode.RESOURCE_EXHAUSTED, acts, response("alpha")]
    async with open_checked_app(place.settings(model=MODEL, base_url=grok.address)) as app:
        report = await rests(app, await start_run(app))
    assert (report.status, report.summary, report.usage["attempts"]) == ("completed", "alpha", 3)
