"""Tokens with an end, scopes and a last use; two of a name at once; an operator who sees and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from support.app import ASK, ME, UNWATCHED, Place, asks, rests
from support.http_server import tokens_of
from support.operators import Command
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, UnknownRun
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.auth import AccessRule, AdminTools, Authentication, Challenge, RateLimiter, TokenExpired
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_guard import TOOL
from kairos_mcp.server.http_places import Peers, Places
from kairos_mcp.server.sender import set_scopes
from kairos_mcp.server.tokens import Tokens

OBSERVER = Caller("olga", decides=False, sees_all=True)


@pytest.fixture
def tokens(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokens]:
    """The tokens of the place, at a time that a test may move: `tokens.moved` milliseconds from now."""
    made = tokens_of(place.root)
    really, made.moved = made.now, 0  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "now", lambda: really() + made.moved)  # type: ignore[attr-defined]
    yield made
    asyncio.run(made.close())


def look_up(tokens: Tokens, text: str) -> Any:
    async def look() -> Any:
        found = await tokens.look_up(text)
        await asyncio.gather(*getattr(tokens, "_noting", ()))
        return found

    return asyncio.run(look())


@both_stores
def test_a_token_ends_and_makes_room_for_another(tokens: Tokens) -> None:
    made = tokens.add("alice", lasts_days=1)
    assert tokens.find_principal(made) == "alice"
    tokens.moved = DAY_MS + 1  # type: ignore[attr-defined]
    assert (tokens.find_principal(made), tokens.any()) == (None, False)
    rule = AccessRule(tokens)
    with pytest.raises(TokenExpired):
        asyncio.run(rule.admit(f"Bearer {made}"))
    assert tokens.find_principal(tokens.add("alice")) == "alice"
    assert tokens.find_token(made) is None


@both_stores
def test_two_tokens_give_access_while_clients_change_and_then_the_new_one_alone(tokens: Tokens) -> None:
    old = tokens.add("alice", scopes=("run",))
    new = tokens.rotate("alice", keep_days=1)
    assert [tokens.find_principal(text) for text in (old, new)] == ["alice", "alice"]
    assert [each.scopes for each in tokens.list_tokens()] == [("run",), ("run",)]
    with pytest.raises(BadArguments):
        tokens.rotate("alice", keep_days=1)
    with pytest.raises(BadArguments):
        tokens.add("alice")
    tokens.moved = DAY_MS + 1  # type: ignore[attr-defined]
    assert [tokens.find_principal(text) for text in (old, new)] == [None, "alice"]
    third = tokens.rotate("alice", keep_days=0)
    assert [tokens.find_principal(text) for text in (old, new, third)] == [None, None, "alice"]
    tokens.revoke("alice")
    assert tokens.find_principal(third) is None
    with pytest.raises(BadArguments):
        tokens.rotate("alice", keep_days=1)


async def test_who_scrapes_is_told_soon_that_the_store_is_away() -> None:
    class Away:
        async def admit(self, _authorization: str) -> Any:
            await asyncio.sleep(60)  # as long as a database that is away is waited for, and more

    answered: list[Any] = []

    async def answer_unavailable(*_request: Any) -> None:
        answered.append("unavailable")

    bounds = RequestBounds()
    places, peers = Places(bounds), Peers(bounds.trusted_proxies)
    parts: Any = (Away(), RateLimiter(bounds), places, peers, Challenge(), answer_unavailable)
    async with asyncio.timeout(5):
        await Authentication(answer_unavailable, *parts, within_s=0.01)(
            {"type": "http", "path": "/metrics", "headers": [], "client": ("192.0.2.1", 1)}, *[cast("Any", None)] * 2
        )
    assert answered == ["unavailable"]


def test_a_token_that_is_not_valid_is_told_from_none() -> None:
    texts = [bytes(Challenge().refuse_token(has_token=has_token).body).decode() for has_token in (False, True)]
    assert ["revoked" in text for text in texts] == [False, True]


@both_stores
def test_the_last_use_is_kept_to_the_minute(tokens: Tokens) -> None:
    made = tokens.add("alice")
    assert tokens.list_tokens()[0].used_at is None
    look_up(tokens, made)
    (found,) = tokens.list_tokens()
    assert found.used_at is not None
    assert abs(found.used_at - tokens.now()) < 60_000
    look_up(tokens, made)
    assert tokens.list_tokens()[0].used_at == found.used_at


@both_stores
def test_scopes_are_those_that_were_chosen(tokens: Tokens) -> None:
    observing, usual = tokens.add("olga", scopes=("observe",)), tokens.add("alice")
    rule = AccessRule(tokens)

    async def admit(text: str) -> Any:
        return await rule.admit(f"Bearer {text}")

    assert [set(asyncio.run(admit(text)).scopes) for text in (observing, usual)] == [
        {"observe"},
        {"run", "approve", "admin"},
    ]


def test_the_commands_make_rotate_and_list(place: Place, command: Command) -> None:
    old = command("token", "add", "alice", "--expires", "90d", "--scope", "run").strip()
    new = command("token", "rotate", "alice", "--keep", "12h").strip()
    tokens = tokens_of(place.root)
    assert [tokens.find_principal(text) for text in (old, new)] == ["alice", "alice"]
    first, second = command.json("token", "list")["tokens"]
    assert (first["scopes"], second["expires_at"]) == (["run"], None)
    assert 0 < first["expires_at"] - tokens.now() < DAY_MS
    assert "never" in command("token", "list")
    for words in (
        ("add", "bob", "--expires", "soon"),
        ("rotate", "bob"),
        ("add", "local", "--scope", "run"),
        ("add", "bob", "--scope", "all"),
    ):
        with pytest.raises(BadArguments):
            command("token", *words)


async def test_an_observer_sees_the_runs_of_all_and_moves_none(place: Place) -> None:
    async with App.open(place.settings(asks("Which?"), flow=UNWATCHED), via="mcp") as app:
        anna = Caller("anna")
        run_id = (await app.runs.start(PlannerRequest("look", caller_tools=(ASK,)), anna)).run_id
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=anna)
        assert await app.runs.newest_ids(OBSERVER) == [run_id]
        report = await app.runs.report(run_id, OBSERVER)
        assert report.next is not None
        assert (report.status, report.next["tool"]) == ("input_required", "run_status")
        with pytest.raises(UnknownRun):
            await app.runs.report(run_id, replace(OBSERVER, sees_all=False))
        key = report.waiting[0]["key"]
        moves: list[Callable[[], Awaitable[Any]]] = [
            lambda: app.answers.submit(run_id, {key: {"content": "a.txt"}}, OBSERVER),
            lambda: app.control.pause(run_id, OBSERVER),
            lambda: app.control.cancel(run_id, OBSERVER),
        ]
        for move in moves:
            with pytest.raises(UnknownRun):
                await move()
        assert (await app.runs.report(run_id, anna)).status == "input_required"
        assert await rests(app, await app.runs.start_call("read_file", {"path": "a.txt"}, ME))


@pytest.mark.parametrize(
    ("scopes", "tool", "status"),
    [
        (("observe",), "run_status", 200),
        (("observe",), "budget_status", 200),
        (("observe",), "", 200),
        (("observe",), "planner_run", 403),
        (("observe",), "run_continue", 403),
        (("observe",), "run_control", 403),
        (("observe", "run"), "planner_run", 200),
        (("run",), "registry_register", 403),
        (("admin",), "registry_register", 403),
    ],
)
async def test_the_tools_of_a_token_are_those_of_its_scopes(scopes: tuple[str, ...], tool: str, status: int) -> None:
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken
    from starlette.responses import Response

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    set_scopes(scopes)
    user = AuthenticatedUser(AccessToken(token="", client_id="x", scopes=list(scopes)))
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [], "user": user, TOOL: tool}
    await AdminTools(Response("ok"), Challenge())(scope, receive, send)
    assert sent[0]["status"] == status
