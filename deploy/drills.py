#!/usr/bin/env python3
"""Drills for a set-up on PostgreSQL: what a team relies on is tried on this machine, and a report says what was seen.

    python deploy/drills.py --store 'postgresql://kairos@db/drills' [--runs 24] [--report drills.md]

It needs an EMPTY database (or schema) and the Python that Kairos is installed for; it asks no real model. Servers,
workers, a model and what runs post to are processes and threads of this machine, on loopback ports; all end with it,
and every wait has a limit. It takes some three minutes, and longer where a drill fails: then all processes are ended
and started anew for the next one. The rows stay in the database, which can then be dropped.

--restart COMMAND   a command that restarts the database, for the drill of an outage
--check-store URL   another empty database, into which a backup is restored (needs pg_dump)

Ends with 0 if every drill went as it should.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

WITHIN_S = 90.0
LOG_CHARS = 400  # of what a process logged last, where it ended before its time
MODEL_S, POST_S = 0.3, 0.4  # how long the model thinks, and how long a post takes
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "drills", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
SETTINGS = """
workspaces = ["files"]
model = "openai:drill"
base_url = "{url}/v1"
price_input = 1.0
price_output = 10.0
private_hosts = ["{host}"]
telemetry = true

[flow]
mode = "off"

[[gate]]
tools = "append"
verdict = "allow"

[[http_tools]]
name = "append"
description = "append"
method = "POST"
url = "{url}/append"
parameters = [{{ name = "step", in = "body", schema = {{ type = "integer" }} }}]
effect = "irreversible"
"""


class Drill(NamedTuple):
    """What was tried, what was seen, and whether it is as it should be."""

    tried: str
    seen: str
    is_right: bool


class World:
    """What runs meet outside: a model that has each run post once, and what counts these posts by run."""

    def __init__(self) -> None:
        self.posts: Counter[int] = Counter()
        world, lock = self, threading.Lock()

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/append":
                    with lock:
                        world.posts[body["step"]] += 1
                    time.sleep(POST_S)
                    answer: Any = {"ok": True}
                else:
                    time.sleep(MODEL_S)
                    answer = _completion(body)
                content = json.dumps(answer).encode()
                try:
                    self.send_response(200)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # whoever asked was killed

            def log_message(self, *_words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return the model's turn: the post of the run's number, and once that is answered the end."""
    messages = body["messages"]
    message: dict[str, Any] = {"role": "assistant", "content": "done"}
    if not any(each["role"] == "tool" for each in messages):
        goal = next(text for each in messages if (text := str(each["content"])) and "drill-" in text)
        number = int(goal.partition("drill-")[2].split()[0].strip(".\"'"))
        call = {"name": "append", "arguments": json.dumps({"step": number})}
        message = {**message, "tool_calls": [{"id": f"call-{number}", "type": "function", "function": call}]}
    return {
        "id": "drill",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


class SetUp:
    """Two servers that drive nothing and two workers on a database, in a folder of their own."""

    def __init__(self, folder: Path, store: str, world: World) -> None:
        self.folder, self.store, self.world = folder, store, world
        self.web: list[subprocess.Popen[bytes]] = []
        self.work: list[subprocess.Popen[bytes]] = []
        self.logs: dict[subprocess.Popen[bytes], Path] = {}
        self.ports = [_free_port(), _free_port()]
        self.numbers = 0
        (folder / "files").mkdir()
        (folder / "kairos.toml").write_text(SETTINGS.format(url=world.url, host=world.url.removeprefix("http://")))

    def run(self, *words: str, fails: bool = False) -> str:
        """Carry out a command; return what it printed."""
        done = subprocess.run(
            self._words(*words),
            env=self._environ(0),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if done.returncode and not fails:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def start_web(self, number: int) -> subprocess.Popen[bytes]:
        """Start a server, and wait until it is ready."""
        port = self.ports[number]
        words = ("serve", "--transport", "http", "--port", str(port), "--no-drive")
        process = self._start(f"web-{number}", words)
        self.wait_until("a server is ready", lambda: _status(f"http://127.0.0.1:{port}/readyz") == 200, process)
        return process

    def start_work(self) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it can act."""
        beat = self.folder / f"alive-{time.monotonic_ns()}"
        process = self._start("work", ("work", "--slots", "64", "--grace", "25", "--heartbeat", str(beat)))
        self.wait_until("a worker can act", beat.exists, process)
        return process

    def start_all(self) -> None:
        """Start both servers and both workers."""
        self.web += [self.start_web(0), self.start_web(1)]
        self.work += [self.start_work(), self.start_work()]

    def start_runs(self, count: int, server: int = 0) -> dict[str, int]:
        """Start `count` runs at once; return the number that each posts, by its id."""
        numbers = range(self.numbers + 1, self.numbers + count + 1)
        self.numbers += count
        started: dict[str, int] = {}

        def start(number: int) -> None:
            goal = f"Post drill-{number} and end."
            found = self.call("planner_run", {"goal": goal, "tools": ["append"], "wait_s": 0}, server)
            started[found["run_id"]] = number

        threads = [threading.Thread(target=start, args=(number,)) for number in numbers]
        for each in threads:
            each.start()
        for each in threads:
            each.join(WITHIN_S)
        if len(started) != count:
            raise RuntimeError(f"{count - len(started)} of {count} runs were not started")
        return started

    def finish(self, runs: dict[str, int], server: int = 1) -> tuple[int, float]:
        """Wait until all runs are completed; say of each post of unknown outcome what became of it, as a person would.
        Return how many had to be settled, and how long it took."""
        began, settled, left = time.monotonic(), 0, set(runs)
        while left:
            if time.monotonic() - began > WITHIN_S:
                raise RuntimeError(f"{len(left)} of {len(runs)} runs have not ended")
            for run_id in sorted(left)[:8]:
                (found,) = self.call("run_status", {"run_ids": [run_id], "until": "attention", "wait_s": 5}, server)[
                    "runs"
                ]
                if found["status"] == "completed":
                    left.discard(run_id)
                for item in found.get("waiting", ()):
                    if item["kind"] == "settle":
                        happened = "already_done" if self.world.posts[runs[run_id]] else "reattempt"
                        self.run("settle", run_id, item["key"], happened)
                        settled += 1
        return settled, time.monotonic() - began

    def posts_are_single(self, runs: dict[str, int]) -> bool:
        """Whether each of these runs has posted once."""
        return all(self.world.posts[number] == 1 for number in runs.values())

    def call(self, tool: str, arguments: dict[str, Any], server: int, token: str | None = None) -> dict[str, Any]:
        """Call a tool of a server, which may begin anew meanwhile."""
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments, "_meta": META},
        }
        headers = {
            "Authorization": f"Bearer {token or self.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "MCP-Method": "tools/call",
            "MCP-Name": tool,
        }
        until = time.monotonic() + WITHIN_S
        while True:
            request = Request(f"http://127.0.0.1:{self.ports[server]}/mcp", json.dumps(body).encode(), headers)
            try:
                with urlopen(request, timeout=WITHIN_S) as answer:
                    text = answer.read().decode()
                found = json.loads(text if text.startswith("{") else text.rpartition("data: ")[2])
                if "result" in found:
                    return dict(found["result"]["structuredContent"])
            except HTTPError as refused:
                if refused.code not in (429, 503):
                    raise
            except OSError:
                pass
            if time.monotonic() > until:
                raise RuntimeError(f"{tool} was not answered")
            time.sleep(0.2)

    def metrics(self, server: int = 0) -> dict[str, float]:
        """Return the samples at a server's /metrics, by their names with labels."""
        request = Request(
            f"http://127.0.0.1:{self.ports[server]}/metrics", headers={"Authorization": f"Bearer {self.watcher}"}
        )
        with urlopen(request, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}

    def wait_until(self, what: str, holds: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> float:
        """Wait until something holds, and return how long that took. `process`: without which it never will."""
        began = time.monotonic()
        while not holds():
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"it was not so that {what}: {self.describe_end(process)}")
            if time.monotonic() - began > WITHIN_S:
                raise RuntimeError(f"within {WITHIN_S:g} s it was not so that {what}")
            time.sleep(0.05)
        return time.monotonic() - began

    def end(self) -> None:
        """End all processes."""
        for each in self.logs:
            each.kill()
            each.wait()
        self.web.clear()
        self.work.clear()

    def describe_end(self, process: subprocess.Popen[bytes]) -> str:
        """Say with what a process ended, and what it logged last."""
        last = self.logs[process].read_text(errors="replace").strip()[-LOG_CHARS:]
        return f"{self.logs[process].stem} ended with {process.returncode}: {' '.join(last.split())}"

    def list_unexpected_ends(self) -> list[str]:
        """Say of each process that should still live with what it ended."""
        return [self.describe_end(each) for each in (*self.web, *self.work) if each.poll() is not None]

    def _start(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        path = self.folder / f"{name}-{len(self.logs)}.log"
        with path.open("ab") as log:
            process = subprocess.Popen(
                self._words(*words),
                env=self._environ(_free_port()),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.logs[process] = path
        return process

    def _words(self, *words: str) -> list[str]:
        home, settings = str(self.folder / "home"), str(self.folder / "kairos.toml")
        of_settings = () if words[0] in ("token", "settle", "audit") else ("--config", settings)
        return [sys.executable, "-m", "kairos_mcp", *words, *of_settings, "--home", home]

    def _environ(self, metrics_port: int) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("KAIROS_", "OTEL_"))}
        password = {name: value for name, value in os.environ.items() if name == "KAIROS_STORE_PASSWORD"}
        exporters = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "prometheus"}
        where = {"KAIROS_STORE": self.store, "OTEL_EXPORTER_PROMETHEUS_PORT": str(metrics_port)}
        return {**plain, **password, **exporters, **where, "OPENAI_API_KEY": "none"}


# -- the drills ---------------------------------------------------------------------------------------------------


def undisturbed(place: SetUp, count: int) -> Drill:
    """Runs that nothing disturbs."""
    runs = place.start_runs(count)
    settled, took = place.finish(runs)
    seen = f"{count} of {count} completed in {took:.1f} s, {settled} to settle"
    return Drill("runs that nothing disturbs", seen, settled == 0 and place.posts_are_single(runs))


def kill_worker(place: SetUp, count: int) -> Drill:
    """A worker is killed in the middle of runs."""
    runs = place.start_runs(count)
    place.wait_until("runs are posting", lambda: sum(place.world.posts[n] for n in runs.values()) >= count // 4)
    _kill(place.work.pop(0))
    settled, took = place.finish(runs)
    place.work.append(place.start_work())
    single = place.posts_are_single(runs)
    twice = "none" if single else "SOME"
    seen = f"{count} of {count} completed {took:.1f} s after it, {settled} settled by a person, {twice} posted twice"
    return Drill("a worker is killed", seen, single)


def kill_server(place: SetUp, count: int) -> Drill:
    """A server is killed while its clients' runs move; they ask another one."""
    runs = place.start_runs(count)
    _kill(place.web[0])
    settled, took = place.finish(runs)
    place.web[0] = place.start_web(0)
    seen = f"{count} of {count} completed {took:.1f} s after it, as another server said; {settled} to settle"
    return Drill("a server is killed", seen, settled == 0 and place.posts_are_single(runs))


def drain_worker(place: SetUp, count: int) -> Drill:
    """A worker is asked to end: it finishes steps that are under way, and leaves its runs."""
    runs = place.start_runs(count)
    place.wait_until("a run has posted", lambda: any(place.world.posts[n] for n in runs.values()))
    draining, began = place.work.pop(0), time.monotonic()
    draining.send_signal(signal.SIGTERM)
    code = draining.wait(WITHIN_S)
    ended = time.monotonic() - began
    settled, _ = place.finish(runs)
    place.work.append(place.start_work())
    seen = f"it ended with {code} after {ended:.1f} s, {count} of {count} completed, {settled} to settle"
    return Drill("a worker is drained", seen, (code, settled) == (0, 0) and place.posts_are_single(runs))


def no_worker(place: SetUp, _count: int) -> Drill:
    """Nobody drives: status, doctor and the metrics say so, and a worker that starts goes on."""
    for each in place.work:
        each.send_signal(signal.SIGTERM)
        each.wait(WITHIN_S)
    place.work.clear()
    runs = place.start_runs(2)
    queued = 'kairos_runs_open{kairos_run_state="queued"}'
    took = place.wait_until("the metrics tell of the queue", lambda: place.metrics().get(queued, 0) == 2)
    health = json.loads(place.run("status", "--json"))
    doctor = json.loads(place.run("doctor", "--offline", "--json", fails=True))
    named = [each["state"] for each in doctor["findings"] if each["matter"] == "workers"]
    place.work += [place.start_work(), place.start_work()]
    place.finish(runs)
    queued_runs = health["open_runs"]["queued"]
    seen = f"/metrics told of it after {took:.1f} s, status of {queued_runs} queued runs, doctor: {named}"
    return Drill("no worker lives", seen, (queued_runs, named) == (2, ["bad"]))


def rotate_token(place: SetUp, _count: int) -> Drill:
    """A token is rotated without a gap, then revoked."""
    old = place.run("token", "add", "rotated").split()[-1]
    new = place.run("token", "rotate", "rotated", "--keep", "1h").split()[-1]
    both = [place.call("run_status", {}, 0, token)["runs"] for token in (old, new)]
    place.run("token", "revoke", "rotated")
    refused = []
    for token in (old, new):
        try:
            place.call("run_status", {}, 0, token)
        except HTTPError as error:
            refused.append(error.code)
    refusals = sum(value for name, value in place.metrics().items() if name.startswith("kairos_tokens_refused_total"))
    seen = f"both gave access, after the revocation {refused}; /metrics counts {refusals:g} refused"
    return Drill("a token is rotated and revoked", seen, (both, refused) == ([[], []], [401, 401]) and refusals >= 2)


def spending(place: SetUp, _count: int) -> Drill:
    """What was spent is found by principal, with what is charged at a bound apart."""
    (day,) = json.loads(place.run("budget", "--everyone", "--json"))["days"]
    own = json.loads(place.run("budget", "--principal", "drill", "--json"))
    at_bound = own.get("at_bound", {"model_calls": 0, "usd": 0})
    calls, usd = day["spent"]["model_calls"], day["spent"]["usd"]
    bounded = f"of them at a bound {at_bound['model_calls']} calls, ${at_bound['usd']:.4f}"
    seen = f"{calls} model calls, ${usd:.4f}; {bounded}"
    return Drill("who has spent what", seen, day["principal"] == "drill" and calls >= 2 * place.numbers)


def restart_database(place: SetUp, count: int, command: str) -> Drill:
    """The database is restarted in the middle of runs."""
    runs = place.start_runs(count)
    place.wait_until("a run has posted", lambda: any(place.world.posts[n] for n in runs.values()))
    subprocess.run(command, shell=True, check=True, timeout=WITHIN_S)
    settled, took = place.finish(runs)
    single = place.posts_are_single(runs)
    twice = "none" if single else "SOME"
    seen = f"{count} of {count} completed {took:.1f} s after it, {settled} settled by a person, {twice} posted twice"
    return Drill("the database is restarted", seen, single)


def back_up(place: SetUp, _count: int, check: str) -> Drill:
    """A backup is made, and restored into another database."""
    script = Path(__file__).with_name("backup.sh")
    environ = {
        **os.environ,
        "BACKUPS": str(place.folder / "backups"),
        "KAIROS_STORE": place.store,
        "CHECK_STORE": check,
    }
    done = subprocess.run(
        ["sh", str(script)], env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    return Drill("a backup is made and restored", (done.stdout or done.stderr).strip()[-200:], done.returncode == 0)


DRILLS: tuple[Callable[[SetUp, int], Drill], ...] = (
    *(undisturbed, kill_worker, kill_server, drain_worker, no_worker, rotate_token, spending),
)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _status(url: str) -> int:
    try:
        with urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except (URLError, OSError):
        return 0


@contextmanager
def set_up(store: str) -> Iterator[SetUp]:
    """Servers and workers on an empty database, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="kairos-drills-"))
    place = SetUp(folder, store, World())
    try:
        if json.loads(place.run("store", "migrate", "--dry-run", "--json"))["before"]:
            raise RuntimeError("the database has tables of Kairos already: the drills need an empty one")
        place.run("store", "migrate")
        place.token = place.run("token", "add", "drill").split()[-1]
        place.watcher = place.run("token", "add", "watcher", "--scope", "observe").split()[-1]
        place.start_all()
        yield place
    finally:
        place.end()
        shutil.rmtree(folder, ignore_errors=True)


def carry_out(
    store: str, count: int, drills: Sequence[Callable[[SetUp, int], Drill]], tell: Callable[[list[Drill]], None]
) -> list[Drill]:
    """Carry out drills one after another; one that fails is one that is not right, and the next one finds all processes
    new. `tell` is called after each."""
    found: list[Drill] = []
    with set_up(store) as place:
        for drill in drills:
            try:
                if not (place.web or place.work):
                    place.start_all()
                found.append(drill(place, count))
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                seen = "; ".join([f"{type(error).__name__}: {error}", *place.list_unexpected_ends()])
                found.append(Drill(str(drill.__doc__), seen, False))
                place.end()
            print(f"{'ok  ' if found[-1].is_right else 'FAIL'} {found[-1].tried}: {found[-1].seen}", file=sys.stderr)
            tell(found)
    return found


def report(found: Sequence[Drill], count: int) -> str:
    """Return the report."""
    rows = [
        (each.tried, " ".join(each.seen.replace("|", ", ").split()), "yes" if each.is_right else "NO") for each in found
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    head = f"Drills with {count} runs each, on {os.cpu_count()} cores, Python {sys.version.split()[0]}."
    return "\n".join([head, "", "| drill | what was seen | as it should be |", "|---|---|---|", *lines, ""])


def main() -> int:
    """Read the arguments, carry the drills out, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--restart")
    parser.add_argument("--check-store")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    drills = list(DRILLS)
    if given.restart:
        drills.insert(4, lambda place, count: restart_database(place, count, given.restart))
    if given.check_store:
        drills.append(lambda place, count: back_up(place, count, given.check_store))

    def write_report(found: list[Drill]) -> None:
        if given.report:
            given.report.write_text(report(found, given.runs), encoding="utf-8")

    found = carry_out(given.store, given.runs, drills, write_report)
    print(report(found, given.runs))
    return 0 if all(each.is_right for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
