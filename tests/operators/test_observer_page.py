"""The page for operators: who has a token with the scope `observe` sees the runs of all, and decides nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.app import ASK, UNWATCHED, Place, asks, place_in
from support.authorization_server import AuthorizationServer
from support.http_server import Site, tokens_of

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

SECRET = "zebra-lantern-7261"
ANNA = Caller("anna")


@pytest.fixture(scope="module")
def issuer() -> Iterator[AuthorizationServer]:
    server = AuthorizationServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, str, str]:
    """A place with two runs of anna's: one waits for her tool, one for an approval about a private file."""
    place = place_in(tmp_path_factory.mktemp("observed") / "place")
    (place.workspace / ".env").write_text(f"password={SECRET}\n")

    async def start() -> tuple[str, str]:
        async with App.open(place.settings(asks("Which?"), flow=UNWATCHED), via="mcp") as app:
            first = (await app.runs.start(PlannerRequest("look", caller_tools=(ASK,)), ANNA)).run_id
            edit = {"path": ".env", "old_string": "password", "new_string": "word"}
            second = await app.runs.start_call("edit_file", edit, ANNA)
            await app.runs.wait([first, second], until="rest", wait_s=20, caller=ANNA)
            return first, second

    return place, *asyncio.run(start())


@pytest.fixture(scope="module")
def site(laid: tuple[Place, str, str], issuer: AuthorizationServer) -> Iterator[Site]:
    place = laid[0]
    (place.home / "kairos.toml").write_text(issuer.settings(**issuer.page_client))
    site = Site.start(place.root, token=tokens_of(place.root).add("olga", scopes=("observe",)))
    yield site
    site.stop()


def get(site: Site, path: str, token: str | None = None, **headers: str) -> httpx2.Response:
    sent = {"Authorization": f"Bearer {token or site.token}", "Sec-Fetch-Site": "same-origin", **headers}
    return httpx2.get(f"{site.url}/observe/{path}", headers={k: v for k, v in sent.items() if v}, timeout=20)


def read(site: Site, path: str) -> Any:
    answer = get(site, f"api/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_observer_reads_the_runs_of_all_what_waits_who_has_spent_and_who_lives(
    site: Site, laid: tuple[Place, str, str]
) -> None:
    _, first, second = laid
    rows = {row["run_id"]: row for row in read(site, "runs")["rows"]}
    assert {name: row["principal"] for name, row in rows.items()} == {first: "anna", second: "anna"}
    assert [row["run_id"] for row in read(site, "runs?principal=bob")["rows"]] == []
    assert len(read(site, "runs?status=input_required")["rows"]) == 2
    found = read(site, f"run?run={first}")
    assert (found["run"]["principal"], [step["path"] for step in found["steps"]]) == (
        "anna",
        ["round-1", "round-1/call-1"],
    )
    assert read(site, f"run?run={first}&seq={found['seq']}")["steps"] == []
    assert [each["run"]["run_id"] for each in read(site, "waits")["runs"]] == [second]
    (day,) = read(site, "budget")["days"]
    assert (day["principal"], day["spent"]["model_calls"]) == ("anna", 1)
    assert read(site, "servers")["open_runs"]["waiting"] == 2
    assert get(site, "api/run?run=nothing").status_code == 404


def test_what_an_observer_reads_holds_no_path_and_nothing_private(site: Site, laid: tuple[Place, str, str]) -> None:
    place, first, second = laid
    paths = ["runs", f"run?run={first}", f"run?run={second}", "waits", "budget", "servers", "me"]
    told = {path: json.dumps(read(site, path)) for path in paths}
    assert [path for path, text in told.items() if SECRET in text] == []
    assert [path for path, text in told.items() if str(place.root) in text] == []


def test_nothing_is_decided_at_any_address_of_the_page(site: Site, laid: tuple[Place, str, str]) -> None:
    _, first, _second = laid
    origin = {"Authorization": f"Bearer {site.token}", "Origin": site.url, "Content-Type": "application/json"}
    body = json.dumps({"act": "cancel", "run": first})
    for path in ("act", "runs", f"run?run={first}", "waits", "sign_in"):
        answer = httpx2.post(f"{site.url}/observe/api/{path}", content=body, headers=origin)
        assert answer.status_code in (400, 404, 405), path
    place = laid[0]
    assert place.rows("select count(*) from run where outcome is null") == [(2,)]
    assert place.rows("select count(*) from inbox") == [(0,)]
    assert place.rows("select verdict from approval") == [(None,)]


def test_data_needs_a_token_that_may_observe_and_files_need_none(site: Site, laid: tuple[Place, str, str]) -> None:
    usual = tokens_of(laid[0].root).add("carl")
    for path in ("api/runs", "api/me"):
        assert get(site, path, Authorization="").status_code == 401
        assert get(site, path, "kairos.olga.wrong").status_code == 401
        refused = get(site, path, usual)
        assert (refused.status_code, "observe" in refused.headers["www-authenticate"]) == (403, True)
        assert get(site, path, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    for path in ("", "observer.js", "static/view.js"):
        answer = get(site, path, **{"Authorization": "", "Sec-Fetch-Site": "cross-site"})
        assert (answer.status_code, "default-src 'none'" in answer.headers["content-security-policy"]) == (200, True)
        assert get(site, path, Host="evil.example").status_code == 421
    assert get(site, "static/../index.html").status_code == 404


@pytest.mark.parametrize(("scope", "status"), [("observe", 200), ("run", 403), (None, 401)])
def test_a_code_of_the_authorization_server_is_exchanged_for_a_token_that_may_observe(
    site: Site, issuer: AuthorizationServer, scope: str | None, status: int
) -> None:
    described = get(site, "api/sign_in", Authorization="").json()["oauth"]
    assert (described["client_id"], described["authorize"]) == ("operators", issuer.page_client["authorize_uri"])
    issuer.codes = {} if scope is None else {"good": scope}
    body = {"code": "good", "code_verifier": "v", "redirect_uri": f"{site.url}/observe/"}
    headers = {"Origin": site.url, "Content-Type": "application/json"}
    answer = httpx2.post(f"{site.url}/observe/api/sign_in", content=json.dumps(body), headers=headers)
    assert answer.status_code == status, answer.text
    assert issuer.exchanged[-1].items() >= {
        **body, "grant_type": "authorization_code", "client_id": "operators", "resource": described["resource"]
    }.items()  # fmt: skip
    if status == 200:
        assert get(site, "api/runs", answer.json()["token"]).status_code == 200


def test_the_keys_for_the_page_are_given_together(tmp_path: Path, issuer: AuthorizationServer) -> None:
    file = tmp_path / "kairos.toml"
    file.write_text(issuer.settings(client_id="operators"))
    with pytest.raises(ConfigError):
        load_settings(replace(Flags(home=str(tmp_path)), config=str(file)), {})
