"""What the text of a failure says to do is done: then the same run, or one that continues it, gets on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.responses import JSONResponse, RedirectResponse, Response
from support.app import ME, Place, open_checked_app, start_run
from support.provider_calls import KEY
from support.provider_server import Heard, Standin, calls, chat, message, says

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.limits import Limits

OPENAI, ANTHROPIC = "openai:small", "anthropic:claude-standin"
Answer = Callable[[Heard], Any]  # JSON of a reply, or (status, JSON), or a response


@dataclass(frozen=True)
class Hint:
    """`answer`: of the provider. `before` fails with a text that holds `words`; they say what `after` does. Both are
    settings and variables, in which SERVER stands for the provider's address."""

    name: str
    words: tuple[str, ...]
    before: dict[str, Any]
    after: dict[str, Any]
    answer: Answer = lambda _: chat("Done.")
    variables: dict[str, str | None] = field(default_factory=dict)
    variables_after: dict[str, str | None] = field(default_factory=dict)


def only_at(path: str, reply: Any = None, other: Any = (404, {"error": {"message": "Not Found"}})) -> Answer:
    return lambda heard: (reply or chat("Done.")) if heard.path == path else other


def only_if(holds: Callable[[Heard], bool], status: int, said: str) -> Answer:
    return lambda heard: chat("Done.") if holds(heard) else (status, {"error": {"message": said}})


def takes_at_most(chars: int) -> Answer:
    """A provider whose model reads on five times, and which takes no longer request."""

    def answer(heard: Heard) -> Any:
        size = len(json.dumps(heard.body))
        if size > chars:
            return 413, {"error": {"message": "too large"}}
        usage, read = (size // 4, 20, 0), sum(each["role"] == "tool" for each in heard.body["messages"])
        if read == 5:
            return chat("Done.", usage=usage)
        more = calls(("read_file", {"path": "a.txt", "start_line": 1 + 900 * read}))
        return chat(None, more, finish="tool_calls", usage=usage)

    return answer


AT_V1 = {"model": OPENAI, "base_url": "SERVER/v1"}
HINTS = [
    Hint("a key that is refused", ("401", "Check OPENAI_API_KEY"), AT_V1, AT_V1,
         only_if(lambda heard: heard.headers.get("authorization") == f"Bearer {KEY}", 401, "wrong key"),
         {"OPENAI_API_KEY": "sk-wrong"}, {"OPENAI_API_KEY": KEY}),
    Hint("a key that is missing", ("OPENAI_API_KEY is not set", "set KAIROS_BASE_URL"), {"model": OPENAI}, AT_V1,
         variables={"OPENAI_API_KEY": None}),
    Hint("a key with a line break", ("without a line break",), AT_V1, AT_V1,
         variables={"OPENAI_API_KEY": f"{KEY}\nx"}, variables_after={"OPENAI_API_KEY": KEY}),
    Hint("an address without its end", ("404", "KAIROS_BASE_URL", "ends in /v1"), AT_V1 | {"base_url": "SERVER"}, AT_V1,
         only_at("/v1/chat/completions")),
    Hint("a model that is unknown", ("404", "Check KAIROS_MODEL"), AT_V1 | {"model": "openai:smal"}, AT_V1,
         only_if(lambda heard: heard.body["model"] == "small", 404, "model not found")),
    Hint("a provider that moved", ("another of its paths", "Set KAIROS_BASE_URL"),
         AT_V1 | {"base_url": "SERVER/old"}, AT_V1,
         only_at("/v1/chat/completions", other=RedirectResponse("/v1/chat/completions", 301))),
    Hint("Ollama's own form", ("set KAIROS_BASE_URL to the address that ends in /v1",),
         AT_V1 | {"base_url": "SERVER/api"}, AT_V1,
         only_at("/v1/chat/completions", other={"model": "small", "response": "Done.", "done": True})),
    Hint("Anthropic's form", ("set KAIROS_MODEL=anthropic:NAME",), AT_V1, AT_V1 | {"model": ANTHROPIC},
         lambda _: message(says("Done."))),
    Hint("OpenAI's form", ("set KAIROS_MODEL=openai:NAME",), {"model": ANTHROPIC, "base_url": "SERVER"},
         {"model": OPENAI, "base_url": "SERVER"}),
    Hint("a model without tools", ('dialect = "text"',), AT_V1, AT_V1 | {"dialect": "text"},
         lambda heard: (400, {"error": {"message": "small does not support tools"}}) if "tools" in heard.body
         else chat('{"final": "Done."}')),
    Hint("a request that is too large", ("413", "Set a smaller context_tokens"), AT_V1 | {"context_tokens": 200_000},
         AT_V1 | {"context_tokens": 17_000}, takes_at_most(60_000)),
    Hint("a proxy that is none", ("HTTPS_PROXY", "or unset it"), {"model": OPENAI}, AT_V1,
         variables={"HTTPS_PROXY": "nonsense://p:1"}, variables_after={"HTTPS_PROXY": None}),
    Hint("certificates that are not there", ("SSL_CERT_FILE", "or unset it"), {"model": OPENAI}, AT_V1,
         variables={"SSL_CERT_FILE": "/nowhere/ca.pem"}, variables_after={"SSL_CERT_FILE": None}),
]  # fmt: skip


async def try_run(place: Place, settings: dict[str, Any]) -> tuple[str, str]:
    """The status of a run with these settings, and all that is said about it."""
    try:
        async with open_checked_app(place.settings(**settings)) as app:
            report = await app.runs.report(await start_run(app, tools=("read_file",), limits=Limits(rounds=9)), ME)
    except KairosError as error:
        return "refused", f"{error.message} {error.hint}"
    said = [*report.degraded, *report.held_up_by]
    return report.status, " ".join(map(str, said))


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.name)
async def test_doing_what_a_failure_says_gets_one_on(
    place: Place, server: Standin, monkeypatch: pytest.MonkeyPatch, hint: Hint
) -> None:
    (place.workspace / "a.txt").write_text("line of text\n" * 6_000)

    async def answer(heard: Heard) -> Response:
        match hint.answer(heard):
            case Response() as response:
                return response
            case (int(status), value):
                return JSONResponse(value, status)
            case value:
                return JSONResponse(value)

    def given(settings: dict[str, Any], variables: dict[str, str | None]) -> dict[str, Any]:
        for name, value in variables.items():
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        return {
            name: value.replace("SERVER", server.address) if isinstance(value, str) else value
            for name, value in settings.items()
        }

    server.will(*[answer] * 40)
    status, said = await try_run(place, given(hint.before, hint.variables))
    assert status != "completed", said
    assert all(word in said for word in hint.words), said
    status, said = await try_run(place, given(hint.after, hint.variables_after))
    assert status == "completed", said
