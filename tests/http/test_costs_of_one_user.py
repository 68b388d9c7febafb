"""What one user sends costs the others nothing: hostile schemas, patterns and answers over a real server's HTTP."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from support.http_server import SECONDS, Site
from support.waiting import wait_until

BUSY_S = 4.0  # of processor time for all of it: without the bounds one of these inputs takes more
MEMORY = 100 * 2**20
VALUES = "{}" * 1_900_000  # as many bytes as an answer may have
NESTED: dict[str, Any] = {"type": "string"}
for _ in range(10):
    NESTED = {"properties": {"a": NESTED}, "unevaluatedProperties": NESTED}
SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "names against patterns": (
        {"type": "object", "patternProperties": {f"^a*{n}?b*$": {"type": "integer"} for n in range(30)}},
        json.dumps({f"{'ab'[n % 2] * 40}{n}": n for n in range(9_000)}),
    ),
    "items against contains": (
        {"type": "object", "properties": {"a": {"allOf": [{"contains": {"const": "y"}}] * 500}}},
        json.dumps({"a": ["x"] * 18_000 + ["y"]}),
    ),
    "a text against a pattern": (
        {"type": "object", "properties": {"a": {"pattern": "(a|b)*a(a|b){200}$"}}},
        json.dumps({"a": "ab" * 900_000}),
    ),
    "two million objects": ({"type": "object"}, VALUES),
    "two million objects in a list": ({"type": "object"}, '{"a":[' + "{}," * 1_200_000 + "0]}"),
    "a long fence": ({"type": "object"}, "```json" + " " * 200_000 + "x\n{}\n```"),
}


def processor_s(site: Site) -> float:
    fields = Path(f"/proc/{site.server.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class OtherUser:
    """Asks for its runs again and again; `served` counts the answers."""

    def __init__(self, site: Site) -> None:
        self.served = 0
        self._site, self._done = site, Event()
        self._thread = Thread(target=self._ask_on, daemon=True)

    def __enter__(self) -> OtherUser:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(SECONDS)

    def _ask_on(self) -> None:
        while not self._done.wait(0.05):
            self.served += self._site.still_answers()


def begin_run(site: Site, schema: dict[str, Any]) -> dict[str, Any]:
    arguments = {"goal": "go", "route": "caller", "tools": [], "output_schema": schema, "wait_s": 0}
    return dict(site.call("planner_run", arguments).json["result"]["structuredContent"])


def answer_run(site: Site, run: dict[str, Any], text: str) -> Any:
    key = run["waiting"][0]["key"]
    return site.call("run_continue", {"run_id": run["run_id"], "answers": {key: {"content": text}}, "wait_s": 0})


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    return sites()


def test_hostile_answers_cost_little_and_another_user_is_served_meanwhile(
    site: Site, sites: Callable[..., Site]
) -> None:
    assert site.still_answers()
    begun, held = processor_s(site), site.resident_bytes()
    runs = []
    with OtherUser(site) as other:
        for schema, text in SCHEMAS.values():
            runs.append(begin_run(site, schema))
            assert answer_run(site, runs[-1], text).status in (200, 400)
        wait_until(lambda: other.served > 0, SECONDS)
    assert processor_s(site) - begun < BUSY_S
    assert site.resident_bytes() - held < MEMORY
    assert other.served
    site.stop()

    again = sites()  # what was stored is replayed, and costs no more than before
    begun = processor_s(again)
    for run in runs:
        found = again.call("run_status", {"run_ids": [run["run_id"]]}).json["result"]["structuredContent"]
        assert found["runs"][0]["status"] != "failed"
        assert again.call("run_continue", {"run_id": run["run_id"], "wait_s": 0}).status == 200
    assert processor_s(again) - begun < BUSY_S


def test_schemas_that_would_cost_much_are_refused_and_nothing_is_left_of_them(site: Site) -> None:
    assert site.still_answers()
    begun, held = processor_s(site), site.resident_bytes()
    for schema in (
        {"type": "object", "properties": {"x": NESTED}},
        {"type": "object", "properties": {f"p{n}": {"pattern": f"\\pL{{{300 - n}}}"} for n in range(30)}},
        {"type": "object", "properties": {f"p{n}": {"pattern": "(?i)" + "\\pL" * (300 - n)} for n in range(30)}},
    ):
        refused = site.call("planner_run", {"goal": "go", "route": "caller", "output_schema": schema})
        assert refused.json["result"]["structuredContent"]["code"] == "schema_rejected"
    assert processor_s(site) - begun < BUSY_S
    assert site.resident_bytes() - held < MEMORY
    assert site.still_answers()


def test_a_server_that_was_just_sent_hostile_answers_ends_at_sigterm(site: Site) -> None:
    def send(run: dict[str, Any], text: str) -> None:
        with suppress(OSError):  # the server ends meanwhile
            answer_run(site, run, text)

    sent = [Thread(target=send, args=(begin_run(site, schema), text), daemon=True) for schema, text in SCHEMAS.values()]
    for thread in sent:
        thread.start()
    os.kill(site.server.pid, signal.SIGTERM)
    assert site.server.wait(SECONDS) == 0
