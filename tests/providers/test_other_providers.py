"""The other providers, each against a server on loopback that speaks as it does.

OpenAI's Responses API comes with the base install. The others are extras; where one is not installed its tests are
skipped, and that its absence is told with the cure is tested instead: pip install 'kairos-loop[google,groq,...]'.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
from support.app import ME, Place, open_checked_app, rests, start_run
from support.provider_calls import ask_model, asking, step_of
from support.provider_replies import USAGE, WIRES, Wire
from support.provider_server import Standin, refuses, sends

from kairos_mcp.core.messages import Completion, Message
from kairos_mcp.core.model import PrivateParts
from kairos_mcp.core.steps import Failure
from kairos_mcp.models.provider_errors import key_variable

KEY = "a-key-of-the-test-0123456789"
GIVEN = {"path": "a.txt"}
AWS = {"AWS_DEFAULT_REGION": "eu-central-1", "AWS_EC2_METADATA_DISABLED": "true"}
EXTRAS = {wire.kind: wire for wire in WIRES if wire.package is not None}


def is_there(package: str | None) -> bool:
    try:
        return package is None or importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a package inside another
        return False


def with_a_key(wire: Wire) -> dict[str, str]:
    """A bearer token goes nowhere without TLS, so Bedrock is asked with AWS's other kind of key."""
    if wire.kind == "bedrock":
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY[::-1]}
    return {key_variable(wire.kind): KEY}


@pytest.fixture(params=WIRES, ids=[wire.kind for wire in WIRES])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Wire:
    """A provider whose package is there. Region and key stand in the surroundings, as a user would set them."""
    if not is_there(request.param.package):
        pytest.skip(f"kairos-loop[{request.param.kind}] is not installed")
    for name, value in {**AWS, **with_a_key(request.param)}.items():
        monkeypatch.setenv(name, value)
    return request.param


@pytest.fixture
def thinks(wire: Wire) -> Wire:
    if wire.sealed is None:
        pytest.skip("it gives no signatures")
    return wire


# -- one request -------------------------------------------------------------------------------------------------------


async def test_a_text_and_what_it_cost(wire: Wire, server: Standin) -> None:
    server.will(wire.talks("It says alpha."))
    async with asking(wire.model, wire.at(server), with_a_key(wire)) as model:
        answer = await ask_model(model, step_of(), max_tokens=321)
    assert isinstance(answer, Completion), answer
    assert (answer.content, answer.finish, answer.tool_calls) == ("It says alpha.", "stop", ())
    read, written, cached = USAGE
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (read, written)
    assert answer.usage.cached_tokens == (cached if wire.caches else 0)
    (heard,) = server.heard
    assert KEY in repr(heard.headers)
    assert "321" in repr(heard.body)
    assert "read_file" in repr(heard.body)


async def test_a_call_and_its_result_go_back_together(wire: Wire, server: Standin) -> None:
    server.will(sends(wire.acts("call_1", "read_file", GIVEN)), wire.talks("alpha"))
    privates = PrivateParts()
    async with asking(wire.model, wire.at(server), with_a_key(wire)) as model:
        first = await ask_model(model, step_of())
        assert isinstance(first, Completion), first
        (call,) = first.tool_calls
        assert (call.id, call.name, call.arguments, first.finish) == (
            "round-1/call-1",
            "read_file",
            GIVEN,
            "tool_calls",
        )
        privates.keep("round-1", first)
        talk = (
            Message("user", "Look around."),
            Message("assistant", first.content, first.tool_calls),
            Message("tool", "it holds alpha", tool_call_id=call.id),
        )
        second = await ask_model(model, step_of(*talk, name="round-2"), privates)
    assert isinstance(second, Completion), second
    assert second.content == "alpha"
    ((answered, text),) = wire.results(server.bodies[1])
    assert (answered, "it holds alpha" in text) == ("call_1", True)


async def test_a_refusal_for_now_is_one_attempt_and_says_when(wire: Wire, server: Standin) -> None:
    server.will(refuses(429, "slow down", Retry_After="3"), wire.talks("unheard"))
    async with asking(wire.model, wire.at(server), with_a_key(wire)) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure), failure
    assert (failure.code, failure.retryable, len(server.heard)) == ("provider_busy", True, 1)
    assert failure.retry_after_s in (3.0, None)  # not every library tells
    assert KEY not in failure.message


async def test_an_error_of_theirs_is_one_attempt(wire: Wire, server: Standin) -> None:
    server.will(refuses(503, "down"), wire.talks("unheard"))
    async with asking(wire.model, wire.at(server), with_a_key(wire)) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure), failure
    assert (failure.retryable, len(server.heard)) == (True, 1)


async def test_a_bad_key_is_told_with_the_variable_that_holds_it(wire: Wire, server: Standin) -> None:
    server.will(refuses(401, f"no such key: {KEY}"))
    async with asking(wire.model, wire.at(server), with_a_key(wire)) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure), failure
    assert (failure.code, failure.retryable) == ("provider_error", False)
    assert key_variable(wire.kind) in failure.message
    assert KEY not in failure.message


async def test_without_a_key_the_variable_is_named(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_TOKEN", "_KEY_ID", "_ACCESS_KEY"))]:
        monkeypatch.delenv(name)
    async with asking(wire.model, None, {}) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure), failure
    assert failure.code == "config_error"
    assert key_variable(wire.kind) in failure.message


@pytest.mark.parametrize("kind", [*EXTRAS, "xai"])
async def test_without_its_package_the_extra_is_named(kind: str) -> None:
    package = EXTRAS[kind].package if kind in EXTRAS else "xai_sdk"
    if is_there(package):
        pytest.skip("it is installed")
    async with asking(f"{kind}:some-model", None, {key_variable(kind): KEY}) as model:
        failure = await ask_model(model, step_of())
    assert isinstance(failure, Failure), failure
    assert failure.code == "config_error"
    assert f"pip install 'kairos-loop[{kind}]'" in failure.message


# -- whole runs --------------------------------------------------------------------------------------------------------


async def test_a_run_that_is_put_off_once_reads_a_file(wire: Wire, server: Standin, place: Place) -> None:
    server.will(refuses(429, Retry_After="0"), sends(wire.acts("call_1", "read_file", GIVEN)), wire.talks("alpha"))
    async with open_checked_app(place.settings(model=wire.model, base_url=wire.at(server))) as app:
        report = await rests(app, await start_run(app))
    assert (report.status, report.summary, report.rounds) == ("completed", "alpha", 2)
    assert (report.usage["attempts"], report.usage["exactness"], len(server.heard)) == (3, "reported", 3)
    assert place.rows("select ended from attempt") == [("provider_busy",)]
    ((_, text),) = wire.results(server.bodies[2])
    assert "alpha" in text


async def test_signatures_go_back_where_they_came_from_also_after_a_restart(
    thinks: Wire, server: Standin, place: Place
) -> None:
    assert thinks.sealed is not None
    first = thinks.sealed("one", "call_1", "read_file", GIVEN)
    second = thinks.sealed("two", "call_2", "read_file", {"path": "b.txt"})
    server.will(
        thinks.strict(then=first), thinks.strict("one", then=second), refuses(503), refuses(503), refuses(503),
        refuses(503), thinks.strict("one", "two", then=thinks.says("alpha and beta")),
    )  # fmt: skip
    settings = place.settings(model=thinks.model, base_url=thinks.at(server))
    async with open_checked_app(settings) as app:
        run_id = await start_run(app)
        assert (await app.runs.report(run_id, ME)).status == "paused"
    async with open_checked_app(settings) as app:
        await app.control.request(run_id, "resume", ME)
        report = await rests(app, run_id)
    assert (report.status, report.summary) == ("completed", "alpha and beta")
