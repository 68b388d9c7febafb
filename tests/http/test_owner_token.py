"""Over HTTP there is always a token: one is made for the local owner; without one (`--no-auth`) nobody decides."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult
from support import postgres
from support.app import Place
from support.environment import plain_environ
from support.forked_program import run_program
from support.http_server import META, SECONDS, Site, call_body, tokens_of
from support.postgres import both_stores
from support.terminal import Terminal

from kairos_mcp.server.tokens import OWNER_FILE, make_owner_token, read_owner_token

NOBODY = 65534
WRITES = {"tool_calls": [{"name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}
FINAL = {"content": "done", "finish": "stop"}
START = {"goal": "write", "tools": ["write_file"], "wait_s": 10}
ELICITS = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
ENDPOINTS = (("POST", "/mcp"), ("GET", "/sse"), ("POST", "/messages/"), ("GET", "/mcp"))
WITHOUT = ("Authorization",)
SLOW = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


def configure(place: Path, *lines: str) -> None:
    (place / "home").mkdir(parents=True, exist_ok=True, mode=0o700)
    (place / "home" / "kairos.toml").write_text("\n".join(lines))


def approval_of(run: dict[str, Any]) -> dict[str, Any]:
    """The argument by which a caller approves what the run waits for."""
    (item,) = run["waiting"]
    return {item["key"]: {"decision": "approve", "digest": item["digest"]}}


def verdicts(place: Path) -> list[tuple[Any, ...]]:
    return Place(place).rows("select verdict from approval")


@both_stores
def test_a_server_without_tokens_makes_one_for_the_local_owner(tmp_path: Path, sites: Callable[..., Site]) -> None:
    site = sites()
    token = read_owner_token(site.home)
    assert token is not None
    assert stat.S_IMODE((site.home / OWNER_FILE).stat().st_mode) == 0o600
    assert not any(token in line for line in site.said)  # nobody sits at a pipe
    for method, path in ENDPOINTS:
        refused = site.says_to(site.head("Connection: close", method=method, path=path, without=WITHOUT) + b"\r\n")
        assert refused.status == 401
    assert site.call("planner_run", {"goal": "think", "route": "caller"}).status == 200
    assert Place(tmp_path / "place").rows("select distinct principal from run") == [("local",)]
    again = sites()
    assert (again.token, again.still_answers()) == (token, True)
    assert [each.name for each in tokens_of(tmp_path / "place").list_tokens()] == ["local"]


@both_stores
def test_none_is_made_where_there_is_one(tmp_path: Path, place: Path, sites: Callable[..., Site]) -> None:
    tokens = tokens_of(place)
    site = sites(token=tokens.add("alice"))
    assert site.still_answers()
    assert ([each.name for each in tokens.list_tokens()], read_owner_token(site.home)) == (["alice"], None)
    assert site.call("run_status", {}, without=WITHOUT).status == 401


def test_none_is_made_without_auth(place: Path, sites: Callable[..., Site]) -> None:
    assert sites(no_auth=True).still_answers()
    assert (tokens_of(place).any(), read_owner_token(place / "home")) == (False, None)


def test_of_two_servers_that_start_at_once_one_makes_it(place: Path) -> None:
    tokens = tokens_of(place)
    made = make_owner_token(tokens, place / "home")
    assert (make_owner_token(tokens, place / "home"), read_owner_token(place / "home")) == (None, made)
    assert tokens.find_principal(str(made)) == "local"


def test_a_token_whose_text_can_not_be_kept_is_none(place: Path) -> None:
    """It would lock its owner out: nobody has it, and no start makes one beside it."""
    (place / "home" / OWNER_FILE).mkdir(parents=True)
    tokens = tokens_of(place)
    with pytest.raises(OSError, match=OWNER_FILE):
        make_owner_token(tokens, place / "home")
    assert not tokens.any()


def test_a_token_that_fills_the_disk_is_none(place: Path) -> None:
    tokens = tokens_of(place)
    (place / "home").mkdir(parents=True)
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom kairos_mcp.server.tokens import TokenStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "TokenStore(Path(sys.argv[1])).add('alice')"
    )
    words = [sys.executable, "-c", code, str(place / "home")]
    assert subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 1
    assert not tokens.any()
    assert tokens.add("alice")


def test_it_is_revoked_by_its_name(place: Path, sites: Callable[..., Site]) -> None:
    site = sites()
    assert site.still_answers()
    environ = plain_environ() | postgres.environ_of(place)
    assert run_program(["token", "revoke", "local", "--home", str(site.home)], env=environ).returncode == 0
    assert (site.call("run_status", {}).status, read_owner_token(site.home)) == (401, None)
    after = sites()
    assert (after.still_answers(), after.token != site.token) == (True, True)


def test_a_terminal_is_shown_it_once(place: Path) -> None:
    place.mkdir()
    words = ("serve", "--transport", "http", "--port", "0", "--home", str(place / "home"))
    with Terminal(*words, folder=place, environ=plain_environ(), columns=200) as first:
        first.shows("listening on")
        token = read_owner_token(place / "home")
        assert first.text.count(str(token)) == 1
    with Terminal(*words, folder=place, environ=plain_environ(), columns=200) as second:
        second.shows("listening on")
        assert "kairos.local." not in second.text


# -- without a token ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["modern http", "legacy http", pytest.param("legacy sse", marks=SLOW)])
async def test_without_auth_runs_are_started_and_read_and_nothing_is_decided_by_dialog(
    place: Path, sites: Callable[..., Site], write_script: Callable[..., None], way: str
) -> None:
    write_script(WRITES, FINAL)
    site, asked = sites(no_auth=True), []

    async def elicit(_context: object, params: object) -> ElicitResult:
        asked.append(params)
        return ElicitResult(action="accept", content={"decision": "approve"})

    async with site.client(way, elicitation_callback=elicit) as client:
        run = (await client.call_tool("planner_run", START)).structured_content
        assert run["status"] == "input_required"
        again = (await client.call_tool("run_continue", {"run_id": run["run_id"], "wait_s": 1})).structured_content
        assert again["status"] == "input_required"
    assert (asked, verdicts(place)) == ([], [(None,)])
    assert Place(place).rows("select principal from run") == [("local",)]
    assert not (place / "workspace" / "new.txt").exists()


@pytest.mark.parametrize("approvals", ["host", *(pytest.param(each, marks=SLOW) for each in ("ask", "person"))])
def test_without_auth_nothing_is_decided_by_an_argument_whatever_the_settings(
    place: Path, sites: Callable[..., Site], write_script: Callable[..., None], approvals: str
) -> None:
    write_script(WRITES, FINAL)
    configure(place, f'approvals = "{approvals}"')
    site = sites(no_auth=True)
    run = site.call("planner_run", START).json["result"]["structuredContent"]
    answers = approval_of(run)
    refused = site.call("run_continue", {"run_id": run["run_id"], "answers": answers}).json["result"]
    assert (refused["isError"], refused["structuredContent"]["code"]) == (True, "approval_required")
    assert verdicts(place) == [(None,)]
    with_token = sites()  # on the same state folder, with a token: there the settings decide
    decided = with_token.call("run_continue", {"run_id": run["run_id"], "answers": answers, "wait_s": 10}).json
    assert decided["result"].get("isError", False) == (approvals != "host")
    assert verdicts(place) == [("approve" if approvals == "host" else None,)]


def test_without_auth_a_token_is_still_one(place: Path, sites: Callable[..., Site]) -> None:
    token = tokens_of(place).add("alice")
    site = sites(no_auth=True)
    assert site.call("planner_run", {"goal": "mine", "route": "caller"}).status == 200
    site.token = token
    assert site.call("planner_run", {"goal": "hers", "route": "caller"}).status == 200
    assert Place(place).rows("select principal from run order by n") == [("local",), ("alice",)]
    assert site.call("run_status", {}, "Authorization: Bearer kairos.alice.wrong", without=WITHOUT).status == 401


OAUTH = """
[oauth]
issuer = "https://login.example.com"
audience = "https://kairos.example.com/mcp"
jwks_uri = "https://login.example.com/jwks.json"
algorithms = ["RS256"]
"""


@pytest.mark.parametrize(
    ("more", "file"), [(("--host", "0.0.0.0"), ""), ((), OAUTH)], ids=["beyond this machine", "with OAuth"]
)
def test_without_auth_it_listens_on_this_machine_alone(place: Path, more: tuple[str, ...], file: str) -> None:
    configure(place, file)
    words = ["serve", "--transport", "http", "--no-auth", "--port", "0", "--home", str(place / "home"), *more]
    refused = run_program(words, env=plain_environ())
    assert (refused.returncode, "--no-auth" in refused.stderr, "Traceback" in refused.stderr) == (2, True, False)


# -- another user of this machine -----------------------------------------------------------------------------------


def as_nobody(site: Site, sent: bytes) -> tuple[int, Any]:
    """The status and the body of what another user of this machine is answered."""
    words = ["bash", "-c", 'exec 3<>"/dev/tcp/127.0.0.1/$0"; cat >&3; cat <&3', str(site.port)]
    said = subprocess.run(words, input=sent, capture_output=True, check=True, timeout=SECONDS, user=NOBODY, cwd="/")
    head, _, body = said.stdout.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def call_as_nobody(site: Site, name: str, arguments: dict[str, Any]) -> tuple[int, Any]:
    body = call_body(name, arguments).replace(json.dumps(META).encode(), json.dumps(ELICITS).encode())
    names = (f"Content-Length: {len(body)}", "MCP-Method: tools/call", f"MCP-Name: {name}", "Connection: close")
    return as_nobody(site, site.head(*names, without=WITHOUT) + b"\r\n" + body)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("no_auth", [False, True])
def test_another_user_of_this_machine_decides_nothing(
    place: Path, sites: Callable[..., Site], write_script: Callable[..., None], no_auth: bool
) -> None:
    write_script(WRITES, FINAL)
    configure(place, 'approvals = "host"')
    site = sites(no_auth=no_auth)
    run = site.call("planner_run", START).json["result"]["structuredContent"]
    answers = approval_of(run)
    attempts = [
        ("planner_run", START),
        ("run_continue", {"run_id": run["run_id"], "answers": answers}),
        ("run_continue", {"run_id": run["run_id"], "wait_s": 1}),
        ("run_status", {}),
    ]
    answered = [call_as_nobody(site, name, arguments) for name, arguments in attempts]
    assert {status for status, _ in answered} == {200 if no_auth else 401}
    assert "inputRequests" not in json.dumps([body for _, body in answered])  # nor is a dialog asked of them
    assert set(verdicts(place)) == {(None,)}
    assert not (place / "workspace" / "new.txt").exists()
    if not no_auth:
        assert Place(place).rows("select count(*) from run") == [(1,)]
        read = subprocess.run(["cat", str(site.home / OWNER_FILE)], user=NOBODY, capture_output=True, check=False)
        assert read.returncode != 0
