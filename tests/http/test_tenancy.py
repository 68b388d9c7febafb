"""Who comes in, as whom, and what they see of each other."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from support import postgres
from support.app import Place
from support.environment import plain_environ
from support.forked_program import run_program
from support.http_server import WAYS, Answer, Site, call_body, read_answer, tokens_of
from support.notified import Notified, subscribe
from support.sampling_clients import MODERN

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.server.auth import RateLimiter
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.http_sessions import HttpSession, HttpSessions
from kairos_mcp.server.tokens import Tokens


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return tokens_of(tmp_path / "place")


@pytest.fixture
def two(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("two")
    tokens = tokens_of(place)
    alice, bob = tokens.add("alice"), tokens.add("bob")
    site = Site.start(place, token=alice)
    yield site, alice, bob
    site.stop()


async def outcome(client: Client, name: str, **arguments: object) -> dict:
    return (await client.call_tool(name, arguments)).structured_content


async def test_a_run_belongs_to_the_token_that_began_it(two) -> None:
    site, alice, bob = two
    for number, way in enumerate(WAYS):
        async with site.client(way, alice) as a, site.client(way, bob) as b:
            mine = await outcome(a, "planner_run", goal=f"secret {number}", route="caller")
            run_id, (item,) = mine["run_id"], mine["waiting"]
            answers = {item["key"]: {"content": "done"}}
            reaching = [  # TENANCY-002 as far as it exists: there is no other way to a run
                ("run_status", {"run_ids": [run_id]}),
                ("run_continue", {"run_id": run_id, "answers": answers}),
                ("run_control", {"run_id": run_id, "action": "cancel"}),
                ("run_trace", {"run_id": run_id}),
                ("planner_run", {"goal": "go on", "continues": run_id}),
            ]
            for name, arguments in reaching:
                result = await outcome(b, name, **arguments)
                guessed = json.loads(json.dumps(arguments).replace(run_id, "run-000000000000"))
                unknown = await outcome(b, name, **guessed)
                assert result["code"] == "unknown_run", (way, name)
                assert json.dumps(result).replace(run_id, "run-000000000000") == json.dumps(unknown), (way, name)
            assert (await outcome(b, "run_status"))["runs"] == []
            assert (await outcome(a, "run_continue", run_id=run_id, answers=answers))["status"] == "completed"
    assert Place(site.home.parent).rows("select distinct principal from run") == [("alice",)]


@pytest.mark.parametrize("way", WAYS)
async def test_TENANCY_003_nobody_can_listen_to_events_of_another(two, way: str) -> None:
    site, alice, bob = two
    hers, his = Notified(), Notified()
    async with (
        site.client(way, alice, message_handler=hers) as a,
        site.client(way, bob, message_handler=his) as b,
    ):
        era = b.protocol_version
        run_id = (await outcome(a, "planner_run", goal=f"secret by {way}", route="caller"))["run_id"]
        mine = (await outcome(b, "planner_run", goal=f"own by {way}", route="caller"))["run_id"]
        uri, own = f"kairos://runs/{run_id}", f"kairos://runs/{mine}"
        if era != MODERN:
            with pytest.raises(MCPError, match="There is no run"):
                async with subscribe(b, his, era, uri):
                    pass
        wished = [uri, own] if era == MODERN else [own]
        async with subscribe(a, hers, era, uri), subscribe(b, his, era, *wished) as accepted:
            assert accepted == [own]
            await outcome(a, "run_continue", run_id=run_id, answers={"round-1": {"content": "done"}})
            await outcome(b, "run_continue", run_id=mine, answers={"round-1": {"content": "done"}})
            await hers.until(uri)
            await his.until(own)
            assert uri not in his.told
            assert own not in hers.told


async def test_a_session_that_ends_is_told_nothing_more() -> None:
    ended: list[str] = []

    async def close(_session: HttpSession) -> None:
        return None

    clock = iter(range(0, 10_000, 1_000))
    sessions = HttpSessions(RequestBounds(idle_s=1_500), clock=lambda: next(clock))
    for name in ("deleted", "idle"):
        session = await sessions.begin(name, close)
        assert session is not None
        session.on_end = lambda name=name: ended.append(name)
        if name == "deleted":
            sessions.end(session)
    await sessions.begin("later", close)
    assert ended == ["deleted"]
    await sessions.begin("much later", close)
    assert ended == ["deleted", "idle"]


async def test_the_same_start_by_two_is_two_runs(two) -> None:
    site, alice, bob = two
    async with site.client("modern http", alice) as a, site.client("modern http", bob) as b:
        first = await outcome(a, "planner_run", goal="same", route="caller", key="k")
        second = await outcome(b, "planner_run", goal="same", route="caller", key="k")
    assert first["run_id"] != second["run_id"]


def test_HTTP_032_a_session_is_of_no_use_to_another(two) -> None:
    site, _, bob = two
    head = site.head(method="GET", path="/sse", without=("MCP-Protocol-Version",)) + b"\r\n"
    with site.connect() as stream:
        stream.sendall(head)
        got = b""
        while b"session_id=" not in got or not got.rpartition(b"session_id=")[2].strip().endswith(b"0"):
            got += stream.recv(65536)
            if b"session_id=" in got and b"\r\n\r\n" in got.partition(b"session_id=")[2]:
                break
        session = got.partition(b"session_id=")[2][:32].decode()
        ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
        path, as_bob = f"/messages/?session_id={session}", f"Authorization: Bearer {bob}"
        assert site.post(ping, as_bob, path=path, without=("Authorization",)).status == 404
        assert site.post(ping, path=path).status == 202
    assert site.still_answers()


async def test_a_legacy_session_is_of_no_use_to_another(two) -> None:
    site, _, bob = two
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    legacy = ("MCP-Protocol-Version",)
    session = site.post(json.dumps(hello).encode(), without=legacy).headers["mcp-session-id"]
    ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}).encode()
    named, as_bob = f"Mcp-Session-Id: {session}", f"Authorization: Bearer {bob}"
    assert site.post(ping, named, as_bob, without=(*legacy, "Authorization")).status == 404
    assert site.post(ping, named, without=legacy).status == 200


def test_a_revoked_token_is_of_no_use_from_the_next_request_on(sites: Callable[..., Site], tokens: Tokens) -> None:
    site = sites(token=tokens.add("alice"))
    bob = tokens.add("bob")
    body = call_body("run_status", {})
    names = ("MCP-Method: tools/call", "MCP-Name: run_status", f"Content-Length: {len(body)}")
    with site.connect() as connection:
        connection.sendall(site.head(*names) + b"\r\n" + body)
        assert read_answer(connection).status == 200
        tokens.revoke("alice")
        connection.sendall(site.head(*names) + b"\r\n" + body)
        assert read_answer(connection).status == 401
    site.token = bob
    assert site.still_answers()
    tokens.revoke("bob")
    assert site.call("run_status", {}).status == 401
    assert site.call("run_status", {}, without=("Authorization",)).status == 401  # the last one opens nothing


def test_HTTP_028_one_principal_that_asks_too_often_slows_nobody_else(
    sites: Callable[..., Site], tokens: Tokens
) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob")
    site = sites(RequestBounds(calls_per_s=0.01, burst=5), token=alice)
    answers = [site.call("run_status", {}) for _ in range(8)]
    assert [answer.status for answer in answers] == [200] * 5 + [429] * 3
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 100
    site.token = bob
    assert site.still_answers()


def test_a_principal_that_holds_every_session_gives_them_up_to_others_down_to_an_equal_share(
    sites: Callable[..., Site], tokens: Tokens
) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob")
    site = sites(RequestBounds(sessions=4))
    legacy = ("MCP-Protocol-Version", "Authorization")
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}

    def post_as(whose: str, method: str, session: str = "", **params: object) -> Answer:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        named = (f"Mcp-Session-Id: {session}",) if session else ()
        return site.post(body, f"Authorization: Bearer {whose}", *named, without=legacy)

    def open_session(whose: str) -> str:
        return post_as(whose, "initialize", **hello).headers["mcp-session-id"]

    hers = [open_session(alice) for _ in range(4)]
    his = [open_session(bob) for _ in range(5)]
    assert [post_as(alice, "ping", each).status for each in hers] == [404, 404, 200, 200]
    assert [post_as(bob, "ping", each).status for each in his] == [404, 404, 404, 200, 200]
    assert post_as(bob, "ping", hers[3]).status == 404  # which counts as no use of it
    assert site.is_quiet()


async def test_of_each_share_the_longest_idle_session_goes_and_one_at_work_only_for_who_has_less() -> None:
    now, ended = [0.0], []

    async def close(session: HttpSession) -> None:
        ended.append((session.principal, session.used_at))

    sessions = HttpSessions(RequestBounds(sessions=3, idle_s=100), lambda: now[0])

    async def begin_session(whose: str) -> HttpSession | None:
        now[0] += 1
        return await sessions.begin(whose, close)

    first, second, third = [await begin_session("a") for _ in range(3)]
    now[0] += 1
    with sessions.count_request(first), sessions.count_request(second), sessions.count_request(third):
        assert await begin_session("a") is None
        his = await begin_session("b")  # a share of his own, whatever she does with hers
        assert ended == [("a", 4)]
        with sessions.count_request(his):
            assert await begin_session("b") is None
            theirs = await begin_session("c")
            assert [whose for whose, _ in ended] == ["a", "a"]
            with sessions.count_request(theirs):
                assert await begin_session("d") is None  # more of them than places, and all at work
            assert await begin_session("d")
            assert [whose for whose, _ in ended] == ["a", "a", "c"]
    now[0] += 100
    assert [await begin_session(whose) is not None for whose in "efg"] == [True] * 3
    assert len(ended) == 3  # what was idle for too long had ended by itself


async def test_a_principal_has_no_more_sessions_than_are_set_for_each() -> None:
    now, ended = [0.0], []

    async def close(session: HttpSession) -> None:
        ended.append((session.principal, session.used_at))

    sessions = HttpSessions(RequestBounds(sessions=10, principal_sessions=2), lambda: now[0])

    async def begin_session(whose: str) -> HttpSession | None:
        now[0] += 1
        return await sessions.begin(whose, close)

    first, second, his = await begin_session("a"), await begin_session("a"), await begin_session("b")
    assert None not in (first, second, his)
    third = await begin_session("a")
    assert ended == [("a", 1)]  # her longest idle one, though there is room, and nobody else's
    with sessions.count_request(second), sessions.count_request(third):
        assert await begin_session("a") is None
        assert await begin_session("b") is not None
    assert ended == [("a", 1)]


def test_a_rate_recovers_with_time_and_not_beyond_its_burst() -> None:
    now = [0.0]
    rates = RateLimiter(RequestBounds(calls_per_s=2, burst=3), lambda: now[0])
    assert [rates.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
    now[0] = 0.5
    assert [rates.wait_s("a"), rates.wait_s("a") > 0, rates.wait_s("b")] == [0, True, 0]
    now[0] = 1_000
    assert [rates.wait_s("a") for _ in range(4)][:3] == [0, 0, 0]
    assert rates.wait_s("a") > 0


# -- tokens ------------------------------------------------------------------------------------------------


@pytest.mark.state_file("a database has no file for a token")
def test_a_token_is_kept_as_a_hash_that_only_its_owner_may_read(tokens: Tokens, tmp_path: Path) -> None:
    made = tokens.add("alice")
    (file,) = (tmp_path / "place" / "home" / "tokens").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made.rpartition(".")[2] not in file.read_text()
    assert tokens.find_principal(made) == "alice"
    assert [token.name for token in tokens.list_tokens()] == ["alice"]
    tokens.revoke("alice")
    assert (tokens.find_principal(made), tokens.any()) == (None, False)


@pytest.mark.parametrize("name", ["", "local", "Alice", "a/b", "..", "a.b", "-a", "a" * 41, "a\n", "é"])
def test_a_name_that_is_none_is_refused(tokens: Tokens, name: str) -> None:
    with pytest.raises(BadArguments):
        tokens.add(name)
    assert not tokens.any()


def test_a_name_is_given_once(tokens: Tokens) -> None:
    made = tokens.add("alice")
    with pytest.raises(BadArguments):
        tokens.add("alice")
    assert tokens.find_principal(made) == "alice"
    with pytest.raises(BadArguments):
        tokens.revoke("bob")


@pytest.mark.state_file("a database has no file for a token")
@pytest.mark.parametrize("kept", ["", "0" * 63, "\0" * 64])
def test_a_damaged_token_lets_nobody_in(tokens: Tokens, tmp_path: Path, kept: str) -> None:
    made = tokens.add("alice")
    (tmp_path / "place" / "home" / "tokens" / "alice").write_text(kept)
    for text in (made, "kairos.alice.", "kairos.alice", f"kairos.alice.{kept}"):
        assert tokens.find_principal(text) is None


def test_the_commands_add_list_and_revoke(tmp_path: Path) -> None:
    made = kairos(tmp_path, "token", "add", "alice").stdout.strip()
    assert tokens_of(tmp_path).find_principal(made) == "alice"
    assert json.loads(kairos(tmp_path, "token", "list", "--json").stdout)["tokens"][0]["name"] == "alice"
    assert kairos(tmp_path, "token", "add", "alice").returncode == 2
    assert kairos(tmp_path, "token", "revoke", "alice").returncode == 0
    assert tokens_of(tmp_path).find_principal(made) is None
    assert kairos(tmp_path, "token", "revoke", "alice").returncode == 2


def kairos(place: Path, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = plain_environ() | postgres.environ_of(place)
    return run_program([*words, "--home", str(place / "home")], cwd=cwd, env=environ)


# -- beyond loopback ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [pytest.param("0.0.0.0", id="HTTP-008"), "::"])
def test_listening_beyond_this_machine_without_tokens_is_refused(tmp_path: Path, host: str) -> None:
    refused = kairos(tmp_path, "serve", "--transport", "http", "--host", host, "--port", "0")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "token add" in refused.stderr
    assert not (tmp_path / "home").exists()


def test_with_tokens_it_asks_for_one_even_from_this_machine(sites: Callable[..., Site], tokens: Tokens) -> None:
    site = sites(token=tokens.add("alice"), host="0.0.0.0")
    tokens.revoke("alice")
    assert site.call("run_status", {}, without=("Authorization",)).status == 401
    site.token = tokens.add("alice")
    assert site.call("run_status", {}, without=("Authorization",)).status == 401
    assert site.still_answers()
    assert site.call("run_status", {}, f"Host: evil.example:{site.port}", without=("Host",)).status == 421


def test_an_address_that_can_not_be_listened_on_is_said_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = kairos(tmp_path, "serve", "--transport", "http", "--port", port)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    refused = kairos(tmp_path, "serve", "--transport", "http", "--host", "no.such.host.invalid")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)


def test_TENANCY_005_files_of_the_folder_it_is_started_in_configure_nothing(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "kairos.toml").write_text("durability = 'nonsense'\n")
    (repo / ".env").write_text(f"KAIROS_WORKSPACE={repo}\nKAIROS_HOME={repo}\n")
    (repo / ".mcp.json").write_text('{"mcpServers": {"x": {"command": "false"}}}')
    shown = json.loads(kairos(tmp_path, "doctor", "--json", cwd=repo).stdout)["settings"]
    assert (shown["durability"]["from"], shown["workspaces"]["value"]) == ("default", [])
