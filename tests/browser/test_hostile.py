"""Other pages on this machine, and texts that want to be more than text."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx2
import pytest
from support.app import Place

from tests.browser.served_page import EDITED, ServedPage, asks_to_edit, guide_in, run_until_rest, says, wait_for_rows

APPROVE = "[data-approve]:not([disabled])"
MARKUP = '<img src=x onerror="window.ran=1"><script>window.ran=1</script><a href="javascript:window.ran=1">x</a>'
TURNED = "right\u202eto left\u200bzero width"

# What another page tries in the browser that has entered ours: what each try came to, as that page sees it.
TRIES = """async ([base, run, key, digest]) => {
  const body = JSON.stringify({ act: "approve", run, key, digest });
  const json = { "content-type": "application/json" };
  const found = {};
  const attempt = async (name, request) => {
    try { const answer = await request(); found[name] = answer.type === "opaque" ? "opaque" : answer.status; }
    catch { found[name] = "refused"; }
  };
  const credentials = "include";
  await attempt("a simple post", () => fetch(base + "api/act", { method: "POST", mode: "no-cors", credentials, body }));
  await attempt("a post of json", () => fetch(base + "api/act", { method: "POST", credentials, headers: json, body }));
  const guessed = { ...json, "x-kairos-secret": "0" };
  await attempt("a guessed secret", () =>
    fetch(base + "api/act", { method: "POST", credentials, headers: guessed, body }));
  await attempt("a read", () => fetch(base + "api/runs", { credentials }));
  await attempt("a blind read", () => fetch(base + "api/runs", { mode: "no-cors", credentials }));
  found.events = await new Promise((done) => {
    const line = new EventSource(base + "api/events", { withCredentials: true });
    line.onopen = line.onmessage = () => done("open");
    line.onerror = () => done("refused");
    setTimeout(() => done("silent"), 5000);
  });
  found.script = await new Promise((done) => {
    const script = document.createElement("script");
    script.onload = () => done("loaded");
    script.onerror = () => done("refused");
    script.src = base + "api/runs";
    document.body.append(script);
  });
  found.frame = await new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.onload = () => { try { done(frame.contentDocument ? "readable" : "closed"); } catch { done("closed"); } };
    frame.src = base + "#/runs/" + run;
    document.body.append(frame);
    setTimeout(() => done("silent"), 5000);
  });
  const form = document.createElement("form");
  Object.assign(form, { action: base + "api/act", method: "POST", enctype: "text/plain", target: "elsewhere" });
  form.append(Object.assign(document.createElement("input"), { name: body.slice(0, -1) + ',"x":"', value: '"}' }));
  document.body.append(form);
  form.submit();
  const opened = window.open(base + "#/runs/" + run);
  await new Promise((done) => setTimeout(done, 1500));
  found.storage = localStorage.length;
  try { found.window = !opened || opened.closed ? "severed" : opened.document ? "readable" : "closed"; }
  catch { found.window = "closed"; }
  return found;
}"""


class Listener(NamedTuple):
    """Somebody else on another port of this machine, and the cookies that browsers have sent there."""

    port: int
    cookies: list[str]


@contextmanager
def other_page() -> Iterator[Listener]:
    """A page of somebody else on another port of this machine."""
    cookies: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            cookies.append(self.headers.get("cookie", ""))
            body = b"<!doctype html><title>other</title><body>other"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Listener(int(server.server_address[1]), cookies)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_page_on_this_machine_learns_and_does_nothing(
    name: str, site: Place, served: ServedPage, new_context: Callable[..., Any], browser: Any
) -> None:
    run_id = run_until_rest(site, "Mend the guide", [asks_to_edit(), says("Done.")], "edit_file")
    context = browser.new_context()  # its errors are what is looked at
    ours = context.new_page()
    ours.goto(served.link)
    ours.wait_for_selector("nav")  # the link is exchanged for a secret
    ours.goto(f"{served.address}#/runs/{run_id}")
    ours.wait_for_selector(APPROVE)
    ((key, digest),) = site.rows("select key, digest from approval")
    with other_page() as listener:
        theirs = context.new_page()
        theirs.goto(f"http://{name}:{listener.port}/")
        tries = _watch_network(context, theirs)
        found = theirs.evaluate(TRIES, [served.address, run_id, key, digest])
    expected = {
        "a simple post": "opaque", "a post of json": "refused", "a guessed secret": "refused", "a read": "refused",
        "a blind read": "opaque", "events": "refused", "script": "refused", "frame": "closed", "window": "severed",
        "storage": 0,
    }  # fmt: skip
    blocked = {
        "a simple post": "refused",
        "a blind read": "refused",
    }  # by the browser itself: cross-origin-resource-policy
    assert all(found[each] in (result, blocked.get(each, result)) for each, result in expected.items()), found
    arrived = [each for each in tries.values() if f":{served.port}/" in each.get("url", "") and "status" in each]
    assert len(arrived) >= 6, "the tries didn't reach the server"
    assert {each["status"] for each in arrived} == {403}, arrived
    assert site.rows("select verdict from approval") == [(None,)]
    context.close()


def test_who_listens_on_another_port_is_sent_the_cookies_and_can_do_nothing_with_them(
    site: Place, served: ServedPage, enter: Callable[..., Any]
) -> None:
    """A link leads the user there, or an image: the browser adds the cookies of this host, whatever their port."""
    run_id = run_until_rest(site, "Mend the guide", [asks_to_edit(), says("Done.")], "edit_file")
    before = (site.workspace / EDITED).read_text()
    page = enter(f"#/runs/{run_id}")
    page.wait_for_selector(APPROVE)
    page.context.add_cookies([{"name": "any", "value": "thing", "url": served.address}])  # at least this one travels
    ((key, digest),) = site.rows("select key, digest from approval")
    act = {"act": "approve", "run": run_id, "key": key, "digest": digest}
    with other_page() as listener:
        page.context.new_page().goto(f"http://127.0.0.1:{listener.port}/")
        assert "any=thing" in listener.cookies[0]
        sent = {"Cookie": listener.cookies[0], "Origin": served.address.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        with httpx2.Client(base_url=served.address, headers=sent) as thief:
            reads = [thief.get(f"api/{path}").status_code for path in ("me", "runs", f"run?run={run_id}", "waits")]
            token = {"X-Kairos-CSRF": str(thief.get("api/me").json().get("csrf"))}  # what cookies once gave
            acted = thief.post("api/act", json=act, headers=token).status_code
    assert ((site.workspace / EDITED).read_text(), site.rows("select verdict from approval")) == (before, [(None,)])
    assert (reads, acted) == ([401] * 4, 401)
    page.click(APPROVE)  # the page itself still can
    wait_for_rows(site, "select verdict from approval where verdict = 'approve'")


def _watch_network(context: Any, page: Any) -> dict[str, dict[str, Any]]:
    """Collect the url, the cookie and the status of each request of a page, as they are on the wire: of what was
    refused a page's own events don't tell."""
    found: dict[str, dict[str, Any]] = {}

    def note(event: dict[str, Any], **facts: Any) -> None:
        found.setdefault(event["requestId"], {}).update(facts)

    network = context.new_cdp_session(page)
    network.on("Network.requestWillBeSent", lambda event: note(event, url=event["request"]["url"]))
    network.on(
        "Network.requestWillBeSentExtraInfo", lambda event: note(event, cookie=event["headers"].get("Cookie", ""))
    )
    network.on("Network.responseReceivedExtraInfo", lambda event: note(event, status=event["statusCode"]))
    network.send("Network.enable")
    return found


def test_texts_stay_texts(site: Place, enter: Callable[..., Any]) -> None:
    (site.workspace / "<img onerror=window.ran=1>.md").write_text("x")
    guide_in(site)
    lines = [{"content": MARKUP, "tool_calls": [{"name": "read_file", "arguments": {"path": EDITED, "note": MARKUP}}]}]
    run_id = run_until_rest(site, f"Read {MARKUP}", [*lines, says(f"Found {MARKUP}")], "read_file")
    page = enter()
    page.wait_for_selector(".runs li")
    assert MARKUP in page.inner_text(".goal")
    for address in (f"#/runs/{run_id}", f"#/runs/{run_id}/round-1", f"#/runs/{run_id}/round-1/call-1"):
        page.evaluate(f"location.hash = {address!r}")
        page.wait_for_selector(".summary")
        assert MARKUP in page.inner_text(".summary p")
    assert page.locator("#app img:not([src^='static/'])").count() == 0
    assert page.locator("#app script, #app a[href^='javascript']").count() == 0
    assert page.evaluate("window.ran") is None


def test_nothing_can_be_made_of_a_string(served: ServedPage, browser: Any) -> None:
    page = browser.new_context().new_page()  # the refusals are written to its console
    page.goto(served.link)
    page.wait_for_selector("nav")
    for sink in ("document.body.innerHTML = text", "document.createElement('script').text = text"):
        outcome = page.evaluate(
            f"(text) => {{ try {{ {sink}; return 'taken'; }} catch {{ return 'refused'; }} }}", MARKUP
        )
        assert outcome == "refused", sink
    page.context.close()


def test_what_is_invisible_is_spelled_out_before_it_is_approved(site: Place, enter: Callable[..., Any]) -> None:
    arguments = {"path": EDITED, "old_string": "(instal.md)", "new_string": f"({TURNED}.md)"}
    line = {"content": TURNED, "tool_calls": [{"name": "edit_file", "arguments": arguments}]}
    run_id = run_until_rest(site, f"Mend {TURNED}", [line, says("Done.")], "edit_file")
    page = enter(f"#/runs/{run_id}")
    page.wait_for_selector(".diff .warn")
    shown = page.inner_text("#app")
    assert not {"\u202e", "\u200b"} & set(shown)
    assert "U+202E" in page.inner_text(".words") + page.inner_text(".run h1")
    assert page.locator(".diff tr").nth(0).get_attribute("class") == "warn"
