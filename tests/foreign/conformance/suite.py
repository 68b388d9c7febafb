"""The conformance suite of the protocol's authors: what it is run for, and what it found.

`expected.toml` names each scenario that fails or is skipped, with the reason; a test compares both ways, so a scenario
that comes to pass has to leave the list.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx2

from tests.foreign.environs import NodeEnv
from tests.foreign.served import START_S, Place, site

PACKAGE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"
"""The newest that was published. What npm calls `latest` (0.1.16) knows nothing of 2026-07-28."""
ENVIRON = NodeEnv("conformance", (f"{PACKAGE}@{VERSION}",), node="22.23.3")
REVISIONS = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26")
EXTENSIONS = "extensions"
HERE = Path(__file__).parent
SUITE_S = 300
SCHEMA_CHECK = "wire-schema-valid"  # the suite holds it against each scenario, also against one that did nothing
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "run_status",
        "arguments": {},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "warm-up", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}
CALL_HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "run_status",
}
SAID = {"WARNING": "warns", "SKIPPED": "is skipped"}
Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class ScenarioPlace(Place):
    """A place whose server is ours with the tools, resources and prompts that the scenarios ask for."""

    @property
    def command(self) -> list[str]:
        places = ["--home", str(self.home), "--workspace", str(self.workspace)]
        return [sys.executable, "-m", "tests.foreign.conformance.server", *places]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario: its checks by status, the texts of those that failed or warn, and the names of those
    that warn or were skipped."""

    scenario: str
    checks: dict[str, int]
    texts: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def status(self) -> Status:
        """Passed is a scenario with a check of its own that succeeded, and none that failed."""
        if self.checks.get("FAILURE"):
            return "failed"
        return "passed" if self.checks.get("SUCCESS") else "skipped"


@contextmanager
def serving(place: Place, leg: str = "") -> Iterator[str]:
    """The server of a place over HTTP, its address. The first call opens the state folder, which takes longer than the
    half second that one check allows; so one is made before. The suite sends no token, and a proxy that adds one would
    stand between it and what it checks of hosts and origins; of the extensions it needs one, since they decide."""
    with site(place, "http", no_auth=leg != EXTENSIONS) as url:
        assert httpx2.post(url, json=CALL, headers=CALL_HEADERS, timeout=START_S).status_code == 200
        yield url


def run_suite(folder: Path, url: str, leg: str, target: Path) -> list[Outcome]:
    """Run all scenarios of a revision, or those of the extensions, against a server."""
    target.mkdir(parents=True)
    if leg == EXTENSIONS:
        listed = _run_suite(folder, "list", "--server")
        for name in re.findall(r"- (\S+) \[extension\]", listed):
            _run_suite(folder, "server", "--url", url, "--scenario", name, "-o", str(target))
    else:
        _run_suite(folder, "server", "--url", url, "--suite", "all", "--spec-version", leg, "-o", str(target))
    return [_read_outcome(path) for path in sorted(target.iterdir())]


def required_scenarios(folder: Path, revision: str) -> list[str]:
    """The scenarios that a revision requires of a server, as frozen in the package."""
    listed = _run_suite(folder, "list", "--server", "--requirements", revision)
    return re.findall(r"^  - (\S+)$", listed.partition("Client scenarios")[0], re.MULTILINE)


def expected_endings(leg: str) -> dict[str, tuple[Status, str]]:
    """The scenarios of a leg that don't pass: how they end, and why."""
    table = tomllib.loads((HERE / "expected.toml").read_text()).get(leg, {})
    return {name: (each["status"], each["why"]) for name, each in table.items()}


def without_content(leg: str) -> list[str]:
    """The scenarios that the program passes as it is."""
    named: list[str] = tomllib.loads((HERE / "expected.toml").read_text())["without_content"][leg]
    return named


def differences(found: list[Outcome], leg: str) -> list[str]:
    """What did not end as `expected.toml` has it, either way."""
    due = expected_endings(leg)
    statuses = {outcome.scenario: outcome.status for outcome in found}
    texts = {outcome.scenario: "; ".join(outcome.texts) for outcome in found}
    return [*_unlike(statuses, texts, due), *(f"{name}: never ran" for name in due.keys() - statuses.keys())]


def _unlike(statuses: dict[str, Status], texts: dict[str, str], due: dict[str, tuple[Status, str]]) -> Iterator[str]:
    for name, status in statuses.items():
        wanted = due[name][0] if name in due else "passed"
        if status != wanted:
            yield f"{name}: {status}, not {wanted}: {texts[name]}"


def _read_outcome(folder: Path) -> Outcome:
    checks = json.loads((folder / "checks.json").read_text())
    own = [check for check in checks if check["id"] != SCHEMA_CHECK or check["status"] == "FAILURE"]
    texts = [
        f"{check['id']}: {check.get('errorMessage', '')}" for check in own if check["status"] in ("FAILURE", "WARNING")
    ]
    name = re.sub(r"^server-(.*?)-\d{4}-\d\d-\d\dT.*$", r"\1", folder.name)
    remarks = [f"{check['id']} {SAID[check['status']]}" for check in own if check["status"] in SAID]
    return Outcome(name, dict(Counter(check["status"] for check in own)), tuple(texts), tuple(remarks))


def _run_suite(folder: Path, *words: str) -> str:
    """What the suite's command prints. Its exit code says no more than its files do."""
    script = folder / "node_modules" / PACKAGE / "dist" / "index.js"
    done = subprocess.run(
        [ENVIRON.program(folder), str(script), *words],
        capture_output=True, text=True, check=False, timeout=SUITE_S, cwd=folder, env=dict(os.environ),
    )  # fmt: skip
    return done.stdout
