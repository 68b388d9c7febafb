"""Only the page itself is answered: every request that another page, host or browser could send is refused."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from support.app import Place
from support.http_server import Site, read_answer, tokens_of
from support.page import Visitor

from kairos_mcp.page import guard
from kairos_mcp.page.guard import HEADERS, MAX_SESSIONS, SESSION_S, Sessions
from kairos_mcp.store import page_files
from kairos_mcp.store.page_files import find_page_ports, find_pages, make_code, published_page, use_code, write_redirect

NEVER = {"act": "cancel", "run": "run-000000000000"}
FOREIGN_SITES = ("cross-site", "same-site", "", "Same-Origin", "same-origin, none")
PATHS = ("api/me", "api/runs", "api/events", "api/waits")


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def raw(visitor: Visitor, *lines: str, path: str = "/api/me", method: str = "GET") -> int:
    """The status of a request with these very header lines."""
    parts = urlsplit(visitor.url)
    with socket.create_connection((parts.hostname, parts.port), 20) as connection:
        connection.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
        return read_answer(connection).status


def secret(visitor: Visitor) -> str:
    return f"X-Kairos-Secret: {visitor.secret}"


HOSTS = ("evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}0", "LOCALHOST:{port}", "")


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/api/me"])
@pytest.mark.parametrize("host", HOSTS)
def test_another_host_is_misdirected(visitor: Visitor, host: str, path: str) -> None:
    port = urlsplit(visitor.url).port
    assert raw(visitor, f"Host: {host.format(port=port)}", secret(visitor), path=path) == 421
    assert raw(visitor, f"Host: localhost:{port}", secret(visitor), path=path) == 200


ORIGINS = (
    *("http://evil.example", "null", "", "http://127.0.0.1:1", "http://127.0.0.1", "https://127.0.0.1:{port}"),
    *("http://localhost:{port}", "http://127.0.0.1:{port}.evil", "http://127.0.0.1:{port}/"),
)


@pytest.mark.parametrize("origin", ORIGINS)
def test_another_origin_is_refused_with_our_own_secret(visitor: Visitor, origin: str) -> None:
    """A page on another port of this machine is the same site to a browser."""
    said = origin.format(port=urlsplit(visitor.url).port)
    for path in PATHS:
        assert code_of(visitor.get(path, Origin=said)) == (403, "other_page")
    assert code_of(visitor.post("api/act", NEVER, Origin=said)) == (403, "other_page")
    assert code_of(visitor.post("api/enter", {"code": "x"}, Origin=said)) == (403, "other_page")


@pytest.mark.parametrize("site", FOREIGN_SITES)
def test_a_request_that_another_page_made_is_refused(visitor: Visitor, site: str) -> None:
    sent = {"Sec-Fetch-Site": site}
    for path in (*PATHS, "static/page.js", "", "api/nothing"):
        assert code_of(visitor.get(path, **sent)) == (403, "other_page")
    assert code_of(visitor.post("api/act", NEVER, **sent)) == (403, "other_page")


def test_a_link_elsewhere_may_lead_to_the_shell_and_to_nothing_else(visitor: Visitor) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert visitor.get("", **link).status_code == 200
    assert code_of(visitor.get("", **link | {"Sec-Fetch-Dest": "iframe"})) == (403, "other_page")
    assert code_of(visitor.get("api/me", **link)) == (403, "other_page")


BROWSERS = {"User-Agent": "Mozilla/5.0 (X11; Linux)", "Cookie": "a=b", "Referer": "x", "Accept-Language": "en"}


@pytest.mark.parametrize("name", BROWSERS)
def test_a_browser_that_does_not_state_who_asks_is_foreign(visitor: Visitor, name: str) -> None:
    """Old browsers, and new ones where a page is not trusted, send no `Sec-Fetch-Site`."""
    sent = {name: BROWSERS[name]}
    for path in (*PATHS, "static/page.js", ""):
        assert code_of(visitor.get(path, **sent)) == (403, "other_page")
    assert code_of(visitor.post("api/act", NEVER, **sent)) == (403, "other_page")
    assert visitor.get("api/me", **sent, **{"Sec-Fetch-Site": "same-origin"}).status_code == 200


LEFT_OUT = {
    "Origin": (None, (403, "other_page")),
    "Content-Type": ("text/plain", (403, "other_page")),
    "X-Kairos-Secret": (None, (401, "no_session")),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_an_act_lacks_nothing(visitor: Visitor, name: str) -> None:
    value, refused = LEFT_OUT[name]
    assert code_of(visitor.post("api/act", NEVER, **{name: value})) == refused
    assert code_of(visitor.post("api/act", NEVER)) == (404, "unknown_run")


@pytest.mark.parametrize("path", [*PATHS, "api/text?run=x&ref=y", "api/budget", "api/tools"])
def test_without_a_session_nothing_is_read(visitor: Visitor, path: str) -> None:
    for secret in ("", "x", visitor.secret[:-1], f"{visitor.secret}x", "A" * len(visitor.secret)):
        stranger = Visitor(visitor.url, visitor.home, secret)
        assert code_of(stranger.get(path)) == (401, "no_session")
    assert Visitor(visitor.url, visitor.home, visitor.secret).get("api/me").status_code == 200


def test_whoever_is_sent_the_cookies_of_this_host_reads_and_approves_nothing(
    visitor: Visitor, waiting_run: str, shared_place: Place
) -> None:
    """What listens on another port gets every cookie of this one, and may send them back with whatever headers."""
    assert (dict(visitor.http.cookies), "set-cookie" in visitor.get("").headers) == ({}, False)
    assert "set-cookie" not in Visitor(visitor.url, visitor.home).enter().get("api/me").headers
    thief = Visitor(visitor.url, visitor.home)
    names = (f"kairos_ui_{urlsplit(visitor.url).port}", "x-kairos-secret", "kairos-secret")
    sent = {"Cookie": "; ".join(f"{name}={visitor.secret}" for name in names), "Sec-Fetch-Site": "same-origin"}
    for path in (*PATHS, f"api/run?run={waiting_run}", f"api/export?run={waiting_run}"):
        assert code_of(thief.get(path, **sent)) == (401, "no_session")
    item = visitor.waiting(waiting_run)
    act = {"act": "approve", "run": waiting_run, "key": item["key"], "digest": item["digest"]}
    assert code_of(thief.post("api/act", act, **sent)) == (401, "no_session")
    assert shared_place.rows("select verdict from approval") == [(None,)]


def test_a_session_is_over_after_twelve_hours_and_the_oldest_of_many_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, now = Sessions(), time.monotonic()
    first = sessions.enter()
    later = [sessions.enter() for _ in range(MAX_SESSIONS - 1)]
    assert sessions.include(first)
    later.append(sessions.enter())
    assert [sessions.include(each) for each in (first, *later)] == [False] + [True] * MAX_SESSIONS
    monkeypatch.setattr(guard.time, "monotonic", lambda: now + SESSION_S - 1)
    assert sessions.include(later[0])
    monkeypatch.setattr(guard.time, "monotonic", lambda: now + SESSION_S + 60)
    assert not sessions.include(later[0])


@pytest.mark.parametrize(
    "line", ["Host: 127.0.0.1:1", "Origin: http://127.0.0.1", "X-Kairos-Secret: x", "Sec-Fetch-Site: none"]
)
def test_a_header_that_stands_twice_is_refused(visitor: Visitor, line: str) -> None:
    ours = [f"Host: {urlsplit(visitor.url).netloc}", secret(visitor)]
    doubled = [line] if line.startswith(("Host", "X-Kairos")) else [line, line]
    assert raw(visitor, *ours, *doubled) == 400
    assert raw(visitor, *ours) == 200


@pytest.mark.parametrize("path", ["api/act", "api/enter"])
def test_nothing_is_done_by_GET_nor_read_by_POST(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status_code == 405
    assert visitor.post("api/runs", {}).status_code == 405


def test_an_act_that_is_too_long_or_no_object_is_refused(visitor: Visitor) -> None:
    assert code_of(visitor.post("api/act", {"act": "x" * 300_000})) == (413, "too_large")
    for body in ([], None, {"act": "nothing"}, {"act": "cancel"}, {**NEVER, "more": 1}, {**NEVER, "run": 7}):
        assert code_of(visitor.post("api/act", body)) == (400, "bad_arguments")


FILES = ("", "static/page.js", "static/page.css", "static/nothing.js", "static/../app.py", "api/me", "api/nothing")


@pytest.mark.parametrize("path", FILES)
def test_every_answer_holds_the_page_in_its_place(visitor: Visitor, path: str) -> None:
    found = visitor.get(path).headers
    assert {name: found[name] for name in HEADERS} == HEADERS
    assert "script-src 'self';" in HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_only_the_page_s_own_files_are_served(visitor: Visitor) -> None:
    for path in ("static/app.js", "static/index.html", "static/vendor/README.md", "static/..%2fapp.py", "app.js"):
        assert visitor.get(path).status_code == 404


# -- how one enters -----------------------------------------------------------------------------------------------


def test_a_code_is_good_for_one_browser(visitor: Visitor) -> None:
    code = make_code(visitor.home)
    first, second = Visitor(visitor.url, visitor.home), Visitor(visitor.url, visitor.home)
    entered = first.post("api/enter", {"code": code})
    assert entered.status_code == 200
    assert code_of(second.post("api/enter", {"code": code})) == (401, "code_used")
    assert set(entered.json()) == {"secret"}


@pytest.mark.parametrize("code", ["", "x", "../kairos.db", "A" * 32, "A" * 100_000, None, 7, ["a"]])
def test_what_was_never_a_code_lets_nobody_in(visitor: Visitor, code: object) -> None:
    assert code_of(Visitor(visitor.url, visitor.home).post("api/enter", {"code": code})) == (401, "code_used")


def test_a_code_is_forgotten_after_two_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with published_page(tmp_path, "http://127.0.0.1:1/"):
        codes = [make_code(tmp_path) for _ in range(2)]
        now = time.time()
        monkeypatch.setattr(page_files.time, "time", lambda: now + 119)
        assert use_code(tmp_path, codes[0])
        monkeypatch.setattr(page_files.time, "time", lambda: now + 130)
        assert not use_code(tmp_path, codes[1])


def test_what_lets_a_browser_in_is_for_its_owner_s_eyes_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with published_page(home, "http://127.0.0.1:1/"):
        code = make_code(home)
        redirect = write_redirect(home, f"http://127.0.0.1:1/#enter={code}&to=%2F")
        assert "url=http://127.0.0.1:1/#enter=" in redirect.read_text()
        files = list((home / page_files.FOLDER).iterdir())
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE((home / page_files.FOLDER).stat().st_mode) == 0o700
        assert not any(code in file.name or (file != redirect and code in file.read_text()) for file in files)


def test_a_page_is_known_while_its_process_lives(tmp_path: Path) -> None:
    with published_page(tmp_path, "http://127.0.0.1:8766/"):
        assert (find_pages(tmp_path), find_page_ports(tmp_path)) == (["http://127.0.0.1:8766/"], {8766})
    assert (find_pages(tmp_path), list((tmp_path / page_files.FOLDER).iterdir())) == ([], [])
    left = tmp_path / page_files.FOLDER / "1-x.address"
    left.write_text("http://127.0.0.1:1/")
    assert (find_pages(tmp_path), left.exists()) == ([], False)


def test_beside_MCP_the_page_is_below_its_prefix(sites: Callable[..., Visitor], shared_place: Place) -> None:
    beside = sites()
    assert beside.url.endswith("/ui/")
    assert beside.read("me")["serves"] == "http"
    bare = beside.http.get(beside.url.removesuffix("/"))
    assert (bare.status_code, bare.headers["location"]) == (308, "/ui/")
    assert code_of(beside.get("api/runs", Origin=beside.origin.replace("127.0.0.1", "localhost"))) == (
        403,
        "other_page",
    )
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert beside.get("", **link).status_code == 200


def test_beyond_this_machine_there_is_no_page(tmp_path: Path) -> None:
    token = tokens_of(tmp_path).add("alice")
    site = Site.start(tmp_path, token=token, host="0.0.0.0")
    try:
        assert site.still_answers()
        assert site.says_to(site.head("Connection: close", method="GET", path="/ui/") + b"\r\n").status == 404
        assert find_pages(site.home) == []
    finally:
        site.stop()
