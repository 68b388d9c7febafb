"""Tokens of an authorization server: which are accepted, what clients are told of the others, and what scopes allow."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp_types import ElicitResult
from support.app import Place
from support.authorization_server import AUDIENCE, ISSUER, AuthorizationServer, KeyPair, claims_of, sign
from support.http_server import META, WAYS, Answer, Site, tokens_of

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.server.auth import KeysUnavailable
from kairos_mcp.server.oauth import COOLDOWN_S, FRESH_S, STALE_S, SigningKeys
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

METADATA = "https://kairos.example.com/.well-known/oauth-protected-resource/mcp"
OTHER = KeyPair.rsa("first")  # another key under the same name


@pytest.fixture(scope="module")
def issuer() -> Iterator[AuthorizationServer]:
    server = AuthorizationServer([KeyPair.rsa("first"), KeyPair.ec("curve")]).start()
    yield server
    server.stop()


def configure(place: Path, *lines: str) -> None:
    (place / "home").mkdir(parents=True, exist_ok=True, mode=0o700)
    (place / "home" / "kairos.toml").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, issuer: AuthorizationServer) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("oauth")
    configure(place, issuer.settings())
    site = Site.start(place)
    yield site
    site.stop()


def as_bearer(site: Site, token: str | None, name: str = "run_status", **arguments: Any) -> Answer:
    site.token = token
    return site.call(name, arguments)


def challenge(answer: Answer) -> dict[str, str]:
    kind, _, rest = answer.headers["www-authenticate"].partition(" ")
    assert kind == "Bearer"
    return {name: text.strip('"') for name, _, text in (part.partition("=") for part in rest.split(", "))}


# -- which tokens ------------------------------------------------------------------------------------------


def test_a_token_of_the_issuer_for_this_server_is_accepted(site: Site, issuer: AuthorizationServer) -> None:
    for token in (
        issuer.token(),
        issuer.token(key=issuer.keys[1]),
        issuer.token("openid run email"),
        issuer.token(None, scp=["run"]),
        issuer.token(aud=["https://other.example.com", AUDIENCE]),
        issuer.token(exp=int(time.time()) - 5),  # clocks differ
    ):
        assert as_bearer(site, token).status == 200
    assert issuer.fetches == 1


def unsigned_token(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none", "typ": "JWT", "kid": "first"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


def by_public_key(key: KeyPair) -> str:
    """A token signed with the public key as a shared secret: whoever takes the algorithm from the token believes it."""
    header = {"alg": "HS256", "typ": "JWT", "kid": key.id}
    said = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims_of())
    )
    digest = hmac.new(key.public_pem, said.encode(), hashlib.sha256).digest()
    return f"{said}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def change_claims(token: str) -> str:
    """A token whose claims were changed after it was signed."""
    header, _, signature = token.split(".")
    claims = base64.urlsafe_b64encode(json.dumps(claims_of(sub="root")).encode()).rstrip(b"=").decode()
    return f"{header}.{claims}.{signature}"


INVALID: dict[str, Callable[[AuthorizationServer], str]] = {
    "expired": lambda it: it.token(exp=int(time.time()) - 60),
    "not yet valid": lambda it: it.token(nbf=int(time.time()) + 600),
    "without an end": lambda it: it.token(exp=None),
    "for another server": lambda it: it.token(aud="https://other.example.com/mcp"),
    "for nobody": lambda it: it.token(aud=None),
    "of another issuer": lambda it: it.token(iss="https://evil.example.com"),
    "of an issuer with a slash more": lambda it: it.token(iss=f"{ISSUER}/"),
    "of no issuer": lambda it: it.token(iss=None),
    "of nobody": lambda it: it.token(sub=None),
    "of an empty subject": lambda it: it.token(sub=""),
    "of a subject with hidden characters": lambda it: it.token(sub="alice\n"),
    "of a subject without end": lambda it: it.token(sub="a" * 256),
    "signed with another key": lambda it: it.token(key=OTHER),
    "with an unknown key": lambda it: sign(claims_of(), OTHER.private, "RS256", "unknown"),
    "without a key's id": lambda it: sign(claims_of(), it.keys[0].private, "RS256", None),
    "signed by an algorithm that is not configured": lambda it: sign(claims_of(), it.keys[0].private, "PS256", "first"),
    "unsigned": lambda _: unsigned_token(claims_of()),
    "signed with the public key": lambda it: by_public_key(it.keys[0]),
    "changed": lambda it: change_claims(it.token()),
    "no token": lambda _: "x.y.z",
    "cut": lambda it: it.token().rpartition(".")[0],
    "of a bearer token's form": lambda _: "kairos.alice.secret",
}


@pytest.mark.parametrize("kind", INVALID)
def test_a_token_that_is_not_valid_here_is_refused(site: Site, issuer: AuthorizationServer, kind: str) -> None:
    answer = as_bearer(site, INVALID[kind](issuer))
    told = challenge(answer)
    assert (answer.status, told["error"], told["resource_metadata"]) == (401, "invalid_token", METADATA)
    assert as_bearer(site, issuer.token()).status == 200


def test_without_a_token_a_client_is_told_where_to_get_one(site: Site) -> None:
    told = challenge(as_bearer(site, None))
    assert told == {"realm": "kairos-mcp", "scope": "run approve", "resource_metadata": METADATA}


def test_the_metadata_of_the_resource_lies_at_the_well_known_place(site: Site) -> None:
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
        asked = site.head("Connection: close", "Host: kairos.example.com", method="GET", path=path, without=("Host",))
        answer = site.says_to(asked + b"\r\n")
        assert answer.status == 200
        assert answer.json == {
            "resource": AUDIENCE,
            "authorization_servers": [ISSUER],
            "scopes_supported": ["run", "approve", "admin", "observe"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Kairos",
        }


def test_a_bearer_token_of_ours_is_accepted_beside_them(
    sites: Callable[..., Site], tmp_path: Path, issuer: AuthorizationServer
) -> None:
    configure(tmp_path / "place", issuer.settings())
    own = tokens_of(tmp_path / "place").add("bob")
    site = sites(host="0.0.0.0")
    assert [as_bearer(site, token).status for token in (own, issuer.token(), None)] == [200, 200, 401]


def test_without_any_bearer_token_it_may_listen_beyond_this_machine(
    sites: Callable[..., Site], tmp_path: Path, issuer: AuthorizationServer
) -> None:
    configure(tmp_path / "place", issuer.settings())
    site = sites(host="0.0.0.0")
    assert as_bearer(site, None).status == 401
    assert as_bearer(site, issuer.token()).status == 200


# -- keys --------------------------------------------------------------------------------------------------


async def test_keys_that_were_rotated_are_fetched_again_and_not_for_every_token_that_names_one() -> None:
    now = [0.0]
    server = AuthorizationServer().start()
    keys = SigningKeys(server.jwks_uri, lambda: now[0])
    assert await keys.find("first")
    server.keys = [KeyPair.rsa("second")]
    now[0] = COOLDOWN_S + 1
    assert await keys.find("second")
    assert await keys.find("first") is None  # withdrawn
    for number in range(20):
        assert await keys.find(f"made-up-{number}") is None
    assert server.fetches == 2
    now[0] += FRESH_S + 1
    server.keys = [KeyPair.rsa("third")]
    assert await keys.find("second") is None  # also where no token names another
    server.stop()


async def test_an_outage_of_the_authorization_server_is_bridged_and_not_for_ever() -> None:
    now = [0.0]
    server = AuthorizationServer().start()
    keys = SigningKeys(server.jwks_uri, lambda: now[0])
    assert await keys.find("first")
    server.is_down = True
    now[0] = FRESH_S + 1
    assert await keys.find("first")
    assert await keys.find("first")
    assert server.fetches == 2  # the failed one is not repeated at once
    now[0] = STALE_S + 1
    with pytest.raises(KeysUnavailable):
        await keys.find("first")
    server.is_down = False
    now[0] += COOLDOWN_S + 1
    assert await keys.find("first")
    server.stop()


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b"[]", b'{"keys": []}', b'{"keys": 3}', b'{"keys": ["x", {"kid": 1}]}', b'{"keys": [{"kty": "RSA"}]}'),
        *(b'{"keys": [{"kty": "oct", "kid": "first", "k": "c2VjcmV0"}]}', b"[" * 20_000),
    ],
    ids=["empty", "list", "none", "number", "strange", "nameless", "shared secret", "deep"],
)
async def test_what_is_no_set_of_keys_is_none(document: bytes) -> None:
    server = AuthorizationServer(document=document).start()
    with pytest.raises(KeysUnavailable):
        await SigningKeys(server.jwks_uri).find("first")
    server.stop()


async def test_a_set_of_keys_that_is_too_large_is_not_read() -> None:
    server = AuthorizationServer().start()
    server.document = json.dumps({"keys": [server.keys[0].public_jwk]}).encode() + b" " * 300_000
    with pytest.raises(KeysUnavailable):
        await SigningKeys(server.jwks_uri).find("first")
    server.document = server.document[:-100_000]
    assert await SigningKeys(server.jwks_uri).find("first")
    server.stop()


async def test_a_redirect_of_the_keys_is_not_followed() -> None:
    elsewhere = AuthorizationServer().start()
    server = AuthorizationServer(redirect=elsewhere.jwks_uri).start()
    with pytest.raises(KeysUnavailable):
        await SigningKeys(server.jwks_uri).find("first")
    assert elsewhere.fetches == 0
    server.stop()
    elsewhere.stop()


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")  # when the test signs with one
def test_a_key_is_used_for_its_own_algorithm_alone_and_a_weak_one_not_at_all(
    sites: Callable[..., Site], tmp_path: Path
) -> None:
    published = [KeyPair.rsa("other", stated="RS512"), KeyPair.rsa("weak", bits=1024), KeyPair.rsa("good")]
    server = AuthorizationServer(published).start()
    configure(tmp_path / "place", server.settings())
    site = sites()
    assert [as_bearer(site, server.token(key=key)).status for key in published] == [401, 401, 200]
    server.stop()


def test_a_server_that_can_not_have_the_keys_says_so_and_serves_its_own_tokens(
    sites: Callable[..., Site], tmp_path: Path
) -> None:
    server = AuthorizationServer(is_down=True).start()
    configure(tmp_path / "place", server.settings())
    own = tokens_of(tmp_path / "place").add("bob")
    site = sites()
    answer = as_bearer(site, server.token())
    assert (answer.status, answer.headers["retry-after"]) == (503, "10")
    assert as_bearer(site, own).status == 200
    server.stop()


# -- what they may do --------------------------------------------------------------------------------------


def test_a_run_belongs_to_issuer_and_subject(site: Site, issuer: AuthorizationServer) -> None:
    mine = as_bearer(site, issuer.token(), "planner_run", goal="mine", route="caller").json["result"]
    run_id = mine["structuredContent"]["run_id"]
    asked = Place(site.home.parent).rows("select principal from run where id = ?", run_id)
    assert asked == [(f"oauth:{ISSUER}|alice",)]
    for token, code in (
        (issuer.token(client_id="another client"), None),
        (issuer.token(sub="bob"), "unknown_run"),
        (issuer.token("run approve admin", sub="bob"), "unknown_run"),
    ):
        found = as_bearer(site, token, "run_continue", run_id=run_id).json["result"]["structuredContent"]
        assert found.get("code") == code


@pytest.mark.parametrize("scope", ["", "approve admin", "running", "kairos:run"])
def test_without_the_scope_run_nothing_is_served(site: Site, issuer: AuthorizationServer, scope: str) -> None:
    answer = as_bearer(site, issuer.token(scope))
    told = challenge(answer)
    assert (answer.status, told["error"], told["resource_metadata"]) == (403, "insufficient_scope", METADATA)
    assert "run" in told["scope"].split()
    head = site.head("Connection: close", method="GET", path="/sse", without=("MCP-Protocol-Version",))
    assert site.says_to(head + b"\r\n").status == 403


PROPOSED = {
    "kind": "http_tool",
    "name": "forecast",
    "description": "The weather.",
    "url": "https://api.example.com/forecast",
}


def test_only_with_the_scope_admin_tools_are_proposed(site: Site, issuer: AuthorizationServer) -> None:
    answer = as_bearer(site, issuer.token("run approve"), "registry_register", spec=PROPOSED)
    told = challenge(answer)
    assert (answer.status, told["error"], told["scope"]) == (403, "insufficient_scope", "run approve admin")
    answer = as_bearer(site, issuer.token("run admin"), "registry_register", spec=PROPOSED)
    assert answer.json["result"]["structuredContent"].get("code") is None


EDIT = {"tool_calls": [{"id": "c", "name": "write_file", "arguments": {"path": "new.txt", "content": "new\n"}}]}


async def approve(_context: object, _params: object) -> ElicitResult:
    await anyio.sleep(0.4)  # a dialog that is answered sooner was seen by nobody
    return ElicitResult(action="accept", content={"decision": "approve"})


async def run_with_edit(client: Client, goal: str) -> dict[str, Any]:
    arguments = {"goal": goal, "tools": ["write_file"]}
    return (await client.call_tool("planner_run", arguments)).structured_content


@pytest.mark.parametrize("ways", [("legacy http", "modern http"), pytest.param(WAYS, marks=pytest.mark.slow)])
async def test_a_dialog_is_shown_where_the_token_has_the_scope_approve(
    sites: Callable[..., Site],
    write_script: Callable[..., None],
    tmp_path: Path,
    issuer: AuthorizationServer,
    ways: tuple[str, ...],
) -> None:
    configure(tmp_path / "place", issuer.settings())
    write_script(EDIT, {"content": "done", "finish": "stop"})
    site = sites()
    made = tmp_path / "place" / "workspace" / "new.txt"
    for way in ways:
        async with site.client(way, issuer.token("run"), elicitation_callback=approve) as client:
            run = await run_with_edit(client, f"not mine to approve, {way}")
            assert (run["status"], [item["kind"] for item in run["waiting"]]) == ("input_required", ["approval"])
            assert not made.exists()
        async with site.client(way, issuer.token("run approve"), elicitation_callback=approve) as client:
            run = await run_with_edit(client, f"mine to approve, {way}")
            assert run["status"] == "completed", way
            made.unlink()


async def test_an_argument_decides_where_the_host_is_trusted_and_the_token_has_the_scope_approve(
    sites: Callable[..., Site], write_script: Callable[..., None], tmp_path: Path, issuer: AuthorizationServer
) -> None:
    configure(tmp_path / "place", 'approvals = "host"', issuer.settings())
    write_script(EDIT, {"content": "done", "finish": "stop"})
    site = sites()
    async with site.client("modern http", issuer.token("run")) as client:
        run = await run_with_edit(client, "edit")
        (item,) = run["waiting"]
        answers = {item["key"]: {"decision": "approve", "digest": item.get("digest", "")}}
        asked = {"run_id": run["run_id"], "answers": answers}
        refused = (await client.call_tool("run_continue", asked)).structured_content
        assert refused["code"] == "approval_required"
    async with site.client("modern http", issuer.token("run approve")) as client:
        (shown,) = (await client.call_tool("run_status", {"run_ids": [run["run_id"]]})).structured_content["runs"]
        (item,) = shown["waiting"]
        answers = {item["key"]: {"decision": "approve", "digest": item["digest"]}}
        done = (await client.call_tool("run_continue", {**asked, "answers": answers})).structured_content
    assert done["status"] == "completed"


def test_a_dialog_that_was_shown_is_not_answered_by_a_token_without_the_scope_approve(
    sites: Callable[..., Site], write_script: Callable[..., None], tmp_path: Path, issuer: AuthorizationServer
) -> None:
    configure(tmp_path / "place", issuer.settings())
    write_script(EDIT, {"content": "done", "finish": "stop"})
    site = sites()
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}

    def start(scope: str, **more: Any) -> dict[str, Any]:
        arguments = {"goal": "edit", "tools": ["write_file"]}
        params = {"name": "planner_run", "arguments": arguments, "_meta": meta, **more}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        site.token = issuer.token(scope)
        return site.post(body, "MCP-Method: tools/call", "MCP-Name: planner_run").json["result"]

    asked = start("run approve")
    (key,) = asked["inputRequests"]
    time.sleep(0.4)  # a dialog that is answered sooner was seen by nobody
    approved = {key: {"action": "accept", "content": {"decision": "approve"}}}
    replied = {"inputResponses": approved, "requestState": asked["requestState"]}
    run = start("run", **replied)["structuredContent"]
    assert run["status"] == "input_required"
    assert not (tmp_path / "place" / "workspace" / "new.txt").exists()


# -- settings ----------------------------------------------------------------------------------------------

TABLE = {
    "issuer": "https://login.example.com",
    "audience": "https://kairos.example.com/mcp",
    "jwks_uri": "https://login.example.com/jwks.json",
    "algorithms": ["RS256"],
}


@pytest.mark.parametrize(
    "changes",
    [
        *({name: None} for name in TABLE),
        {"algorithms": []},
        *({"algorithms": [name]} for name in ("HS256", "none", "rs256", "RSA-OAEP")),
        {"issuer": "http://login.example.com"},
        {"jwks_uri": "http://login.example.com/jwks.json"},
        {"jwks_uri": "file:///etc/passwd"},
        {"issuer": "https://login.example.com?x=1"},
        {"issuer": "http://localhost.evil.example/"},
        {"audience": "api://kairos"},
        {"audience": ""},
        {"resource": "kairos.example.com"},
        {"colour": "red"},
    ],
)
def test_a_table_that_is_not_whole_and_safe_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    fields = {name: value for name, value in {**TABLE, **changes}.items() if value is not None}
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    configure(tmp_path, "[oauth]", *lines)
    with pytest.raises(ConfigError):
        load_settings(Flags(home=str(tmp_path / "home")), {})


def test_an_audience_that_is_no_address_needs_the_resource(tmp_path: Path) -> None:
    fields = {**TABLE, "audience": "api://kairos", "resource": "https://kairos.example.com/mcp"}
    configure(tmp_path, "[oauth]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items()))
    setting = load_settings(Flags(home=str(tmp_path / "home")), {}).oauth
    assert setting is not None
    assert (setting.audience, setting.resource) == ("api://kairos", "https://kairos.example.com/mcp")


@pytest.mark.slow
def test_nobody_pays_for_signatures_who_has_not_configured_them() -> None:
    code = "import sys; import kairos_mcp.server.http; print(*({'kairos_mcp.server.oauth', 'jwt'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == []
