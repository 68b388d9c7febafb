"""A run that is cancelled after an attempt has failed and before the next one: its end is known, and its cost."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.app import ME, Place, open_checked_app, rests
from support.provider_server import WITHIN_S, Reply, Standin, breaks_off, refuses, talks

from kairos_mcp.app.app import App
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Settings

REFUSED, REFUSED_LONG = refuses(429, Retry_After="0"), refuses(429, Retry_After="30")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-1234567890abcdef")


def provider_settings(place: Place, server: Standin) -> Settings:
    return place.settings(model="openai:small", base_url=server.openai)


def between_tries() -> bool:
    """Whether a worker of this event loop waits before it asks a model again."""
    for task in asyncio.all_tasks():
        inner = task.get_coro()
        while (awaited := getattr(inner, "cr_await", None)) is not None:
            names = [getattr(getattr(each, "cr_code", None), "co_name", "") for each in (inner, awaited)]
            if names == ["_perform", "sleep"]:
                return True
            inner = awaited
    return False


async def cancelled_between_tries(app: App) -> str:
    run_id = (await app.runs.start(PlannerRequest("look"), ME)).run_id
    async with asyncio.timeout(WITHIN_S):
        while not between_tries():  # noqa: ASYNC110 - what another task waits for has no event
            await asyncio.sleep(0.005)
    await app.control.cancel(run_id, ME)
    return run_id


@pytest.mark.parametrize(
    ("replies", "tokens", "exactness"),
    [
        ((REFUSED_LONG,), 0, "reported"),
        ((REFUSED, REFUSED, REFUSED_LONG), 0, "reported"),
        ((breaks_off,), None, "bounded"),  # nobody knows what that one used
    ],
)
async def test_a_failed_attempt_is_charged_with_what_is_known_of_it_where_a_cancel_forestalls_the_next(
    place: Place, server: Standin, replies: tuple[Reply, ...], tokens: int | None, exactness: str
) -> None:
    server.will(*replies, talks("too late"))
    async with open_checked_app(provider_settings(place, server)) as app:
        run_id = await cancelled_between_tries(app)
        report = await rests(app, run_id)
        assert (report.status, len(server.heard)) == ("cancelled", len(replies))
        assert (report.usage["attempts"], report.usage["model_calls"]) == (len(replies), len(replies))
    (answer,) = place.rows("select spent, exactness from answer")
    rounds, model_calls, *used = json.loads(answer[0])
    assert (rounds, model_calls, answer[1]) == (1, 1, exactness)
    if tokens is None:
        assert min(used[:3]) > 0
    else:
        assert used[:4] == [tokens] * 4
    assert place.rows("select held_rounds + held_total_tokens from account where scope = 'run'") == [(0,)]
