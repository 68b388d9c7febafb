"""The page for operators in a browser: signed in by the authorization server, or with a token; nothing to press."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.app import Place
from support.authorization_server import AuthorizationServer
from support.http_server import Site, tokens_of

from tests.browser.chromium import wait_until
from tests.browser.served_page import looks, run_until_rest, says


@pytest.fixture
def issuer() -> Iterator[AuthorizationServer]:
    server = AuthorizationServer().start()
    yield server
    server.stop()


def test_an_operator_signs_in_and_finds_a_run_with_nothing_to_decide_by(
    site: Place, issuer: AuthorizationServer, new_context: Callable[..., Any]
) -> None:
    run_until_rest(site, "Look around", [looks(1), says("Done.")], "read_file", "search_files")
    (site.home / "kairos.toml").write_text(issuer.settings(**issuer.page_client))
    served = Site.start(site.root, token="")
    try:
        page = new_context().new_page()
        page.goto(f"{served.url}/observe/")
        page.click("#sign-in")
        page.wait_for_selector("table.plain tbody tr")
        assert "code=" not in page.url
        assert page.locator("tbody tr td").first.text_content() == "local"
        page.click("tbody tr a")
        page.wait_for_selector(".group")
        assert page.locator(".controls button, .decision").count() == 0
        for name in ("waits", "budget", "servers"):
            page.goto(f"{served.url}/observe/#/{name}")
            page.wait_for_selector(f'nav a[aria-current="page"][href="#/{name}"]')
            wait_until(
                page, "!document.querySelector('[role=alert]') && document.querySelectorAll('main > *').length > 1"
            )
    finally:
        served.stop()


def test_a_token_opens_the_page_until_it_is_revoked(site: Place, new_context: Callable[..., Any]) -> None:
    tokens = tokens_of(site.root)
    token = tokens.add("olga", scopes=("observe",))
    served = Site.start(site.root, token=token)
    try:
        page = new_context().new_page()
        page.goto(f"{served.url}/observe/")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("nav")
        tokens.revoke("olga")
        page.wait_for_selector("#token")
        assert page.evaluate("sessionStorage.length") == 0
    finally:
        served.stop()
