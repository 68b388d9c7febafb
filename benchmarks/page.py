"""The page in Debian's chromium: how soon a list is drawn and what it takes on the wire; how long after a commit in
another process its step is on the screen; what a viewer costs the server.

Needs chromium and npm's or PyPI's packages, as `tests/browser` does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # whose helpers import each other from there

from tests.browser.chromium import open_browser, wait_until
from tests.browser.served_page import (
    ServedPage,
    guide_in,
    looks,
    run_until_rest,
    says,
    serve_page,
    start_run,
    wait_for_rows,
)  # fmt: skip
from tests.support.app import Place, place_in

TOOLS = ("read_file", "search_files")
TURN_S = 0.07  # of a turn of the model, so that a run of 1,000 steps takes some 25 s
LISTED_RUNS = 30
DRAWN = """new MutationObserver((_, observer) => {
  if (!document.querySelector(".runs li")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.drawn = performance.now(); }));
}).observe(document, { childList: true, subtree: true });"""
# Notes when each completion was answered, and when it was seen on the screen as answered.
SEEN = """window.late = [];
const waiting = new Map();
const Line = window.EventSource;
window.EventSource = class extends Line {
  constructor(...given) {
    super(...given);
    this.addEventListener("steps", ({ data }) => {
      for (const step of JSON.parse(data)) {
        if (step.kind === "round" && step.ms !== undefined && !waiting.has(step.path)) {
          waiting.set(step.path, window.isCounting ? step.at + step.ms : null);
        }
      }
      requestAnimationFrame(() => setTimeout(look));
    });
  }
};
function look() {
  for (const [path, at] of waiting) {
    if (at !== null && document.getElementById(`step-${path}`)?.classList.contains("ok")) {
      window.late.push(Date.now() - at);
      waiting.set(path, null);
    }
  }
}"""


def figures(rounds: int = 333, viewers: int = 50, times: int = 5) -> dict[str, float]:
    """Measure with runs of so many rounds (three steps each), so many viewers, and first pictures."""
    named = os.environ.get("KAIROS_FOREIGN_CACHE")
    cache = Path(named) if named else Path.home() / ".cache" / "kairos-foreign"
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made, open_browser(cache) as browser:
        place = place_in(Path(made) / "place")
        guide_in(place)
        for number in range(LISTED_RUNS):
            run_until_rest(place, f"Look at page {number}", [looks(), says("Done.")], *TOOLS)
        with serve_page(place) as served:
            first = [_first_picture(browser, served) for _ in range(times)]
            late = _commit_to_pixel(browser, served, rounds)
            alone, among = (_cpu_of_server(served, rounds, each) for each in (1, viewers))
    return {
        "first_picture_ms": median(ms for ms, _ in first),
        "first_picture_kb": median(kb for _, kb in first),
        "commit_to_pixel_p50_ms": median(late),
        "commit_to_pixel_p95_ms": quantiles(late, n=20)[-1],
        "seen": len(late),
        "server_ms_one_viewer": alone,
        f"server_ms_{viewers}_viewers": among,
        "server_ms_a_further_viewer": (among - alone) / (viewers - 1) if viewers > 1 else 0.0,
    }


def _first_picture(browser: Any, served: ServedPage) -> tuple[float, float]:
    """Return the milliseconds until the list is drawn in a fresh browser that enters, and the kilobytes received."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.add_init_script(DRAWN)
    page = context.new_page()
    network = context.new_cdp_session(page)
    received: list[int] = []
    network.on("Network.dataReceived", lambda event: received.append(event["encodedDataLength"]))
    network.on("Network.responseReceived", lambda event: received.append(event["response"]["encodedDataLength"]))
    network.send("Network.enable")
    page.goto(served.make_link())
    wait_until(page, "window.drawn !== undefined")
    drawn = float(page.evaluate("window.drawn"))
    context.close()
    return drawn, sum(received) / 1_000


def _commit_to_pixel(browser: Any, served: ServedPage, rounds: int) -> list[float]:
    """Return, for each turn of a run of another process, how long after it was answered it was on the screen."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.add_init_script(SEEN)
    page = context.new_page()
    page.goto(served.make_link())
    page.wait_for_selector(".runs li")
    with _moving_run(served.place, f"Seen {time.time_ns()}", rounds) as run_id:
        page.evaluate(f"location.hash = '#/runs/{run_id}'")
        page.wait_for_selector(".group:nth-child(2)")
        page.evaluate("window.isCounting = true")
        page.wait_for_selector(".pill.completed", timeout=600_000)
    late = [float(each) for each in page.evaluate("window.late")]
    context.close()
    return late


def _cpu_of_server(served: ServedPage, rounds: int, viewers: int) -> float:
    """Return the milliseconds of CPU that the server takes while so many look at a run, from its begin to its end."""
    with httpx2.Client(base_url=served.address, headers={"origin": served.address.rstrip("/")}) as client:
        code = served.make_link().partition("enter=")[2]
        secret = client.post("api/enter", json={"code": code}).raise_for_status().json()["secret"]
        with _moving_run(served.place, f"Watched {time.time_ns()}", rounds) as run_id:
            ended = threading.Event()
            before = _cpu_ms(served.pid)
            lines = [
                threading.Thread(target=_watch, args=(served.address, secret, run_id, ended)) for _ in range(viewers)
            ]
            for line in lines:
                line.start()
            for line in lines:
                line.join()
            return _cpu_ms(served.pid) - before


def _watch(address: str, secret: str, run_id: str, ended: threading.Event) -> None:
    """Read a line of events until the run has ended."""
    headers = {"accept-encoding": "gzip", "x-kairos-secret": secret}
    with (
        httpx2.Client(headers=headers, timeout=60) as client,
        client.stream("GET", f"{address}api/events", params={"run": run_id}) as answer,
    ):
        answer.raise_for_status()
        event = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            if event == "run" and line.startswith("data: ") and json.loads(line[6:])["status"] == "completed":
                ended.set()
            if ended.is_set():
                return


@contextmanager
def _moving_run(place: Place, goal: str, rounds: int) -> Iterator[str]:
    lines = [*(looks(n, delay_s=TURN_S) for n in range(1, rounds + 1)), says("All were looked at.")]
    process = start_run(place, goal, lines, *TOOLS, KAIROS_CONTEXT_TOKENS="2000000")
    ((run_id,),) = wait_for_rows(place, "select id from run where spec like ?", f"%{goal}%")
    try:
        yield run_id
    finally:
        process.kill()
        process.wait(10)


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1_000 / os.sysconf("SC_CLK_TCK")
