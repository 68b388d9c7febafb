"""Without Node: what the conformance suite is run against is our own server, and what is expected of it is complete."""

from __future__ import annotations

import io
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.forked_program import start
from support.http_server import META, MODERN

from kairos_mcp.server.mcp_server import list_tools
from kairos_mcp.server.request_state import STATE_REFUSED
from tests.foreign.conformance.suite import (
    EXTENSIONS,
    PACKAGE,
    REVISIONS,
    VERSION,
    Outcome,
    differences,
    expected_endings,
)
from tests.foreign.conformance.table import DOCUMENT, not_passed

ROOT = Path(__file__).parents[2]
SERVE = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from tests.foreign.conformance.server import main; main()"
LISTENS_S = 20


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("content")
    (place / "workspace").mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
    words = ["--home", str(place / "home"), "--workspace", str(place / "workspace"), "--no-auth"]
    server = start(words, code=SERVE, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
    with io.TextIOWrapper(server.stderr) as printed:
        printed.readline()  # that no token is asked for
        found = re.search(r"listening on (http://[^/\s]+/mcp)", printed.readline())
        assert found is not None
        yield found[1]
        server.kill()
        server.wait(LISTENS_S)


def ask(url: str, method: str, **params: Any) -> Any:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    return httpx2.post(url, json=body, headers=headers, timeout=LISTENS_S).json()


def test_ours_stay_in_the_lists(url: str) -> None:
    names = [tool["name"] for tool in ask(url, "tools/list")["result"]["tools"]]
    ours = [tool.name for tool in list_tools("all").tools]
    assert names[: len(ours)] == ours
    assert "test_simple_text" in names
    uris = [resource["uri"] for resource in ask(url, "resources/list")["result"]["resources"]]
    assert {"kairos://schema/result", "test://static-text"} <= set(uris)


def test_their_calls_pass_our_dispatch(url: str) -> None:
    said = ask(url, "tools/call", name="test_simple_text", arguments={})["result"]
    assert said["content"][0]["text"] == "This is a simple text response for testing."
    refused = ask(url, "tools/call", name="test_simple_text", arguments={"more": 1})["result"]
    failed = ask(url, "tools/call", name="test_error_handling", arguments={})["result"]
    assert [each["structuredContent"]["code"] for each in (refused, failed)] == ["bad_arguments", "intended"]
    assert "runs" in ask(url, "tools/call", name="run_status", arguments={})["result"]["structuredContent"]


def test_what_they_carry_is_sealed_by_us(url: str) -> None:
    name = "test_input_required_result_request_state"
    state = ask(url, "tools/call", name=name, arguments={})["result"]["requestState"]
    answers = {"confirm": {"action": "accept", "content": {"ok": True}}}
    again = {"name": name, "arguments": {}, "inputResponses": answers}
    assert ask(url, "tools/call", **again, requestState=state)["result"]["content"][0]["text"] == "state-ok"
    error = ask(url, "tools/call", **again, requestState="asked")["error"]
    assert (error["code"], error["message"]) == (-32602, STATE_REFUSED.format(hours=72))


def test_what_is_expected_says_why() -> None:
    entries = [each for leg in (*REVISIONS, EXTENSIONS) for each in expected_endings(leg).values()]
    assert entries
    assert all(status in ("failed", "skipped") and why for status, why in entries)


def test_a_scenario_is_compared_both_ways() -> None:
    (leg, name) = next((leg, name) for leg in (*REVISIONS, EXTENSIONS) for name in expected_endings(leg))
    as_due = [
        Outcome(scenario, {"FAILURE": 1} if status == "failed" else {"SKIPPED": 1}, (), ())
        for scenario, (status, _) in expected_endings(leg).items()
    ]
    assert differences(as_due, leg) == []
    others = [outcome for outcome in as_due if outcome.scenario != name]
    assert len(differences([*others, Outcome(name, {"SUCCESS": 1}, (), ())], leg)) == 1
    assert len(differences(others, leg)) == 1
    assert len(differences([*as_due, Outcome("another", {"SUCCESS": 1, "FAILURE": 1}, (), ())], leg)) == 1


def test_the_page_names_what_does_not_pass() -> None:
    page = DOCUMENT.read_text()
    assert not_passed() in page
    assert f"{PACKAGE} {VERSION}" in page
