"""Run the suite and write docs/conformance.md: `python -m tests.foreign.conformance.table`, some two minutes."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests.foreign.conformance.suite import (
    ENVIRON,
    EXTENSIONS,
    PACKAGE,
    REVISIONS,
    VERSION,
    Outcome,
    ScenarioPlace,
    differences,
    expected_endings,
    required_scenarios,
    run_suite,
    serving,
)
from tests.foreign.environs import make_environment
from tests.foreign.served import Place

DOCUMENT = Path(__file__).parents[3] / "docs" / "conformance.md"
LEGS = (*REVISIONS, EXTENSIONS)
SIGNS = {"passed": "yes", "failed": "**no**", "skipped": "skipped"}
Found = dict[str, list[Outcome]]

HEAD = """# Conformance

The conformance suite of the protocol's authors, run against this server over Streamable HTTP, by
`python -m tests.foreign.conformance.table`; how to run it as a test is in [CONTRIBUTING.md](../CONTRIBUTING.md).
Its scenarios name the tools, prompts and resources that they want. `tests/foreign/conformance` adds those to the real
server, for the test alone; the last column says for which revisions the program passes as it is.
"""


def document(found: Found, alone: Found, needed: dict[str, list[str]]) -> str:
    """The page: the versions, the counts, each scenario, and what doesn't pass."""
    parts = [HEAD, versions(), _counts(found, alone, needed), _scenarios(found, alone), not_passed(), _remarks(found)]
    return "\n".join(parts)


def versions() -> str:
    """What was run with what."""
    return f"Suite {PACKAGE} {VERSION}, Node {ENVIRON.node}, Python SDK mcp {version('mcp')}.\n"


def not_passed() -> str:
    """What doesn't pass and why; a test holds the page against it."""
    lines = [
        f"- `{name}` ({leg}): {status}. {why}"
        for leg in LEGS
        for name, (status, why) in sorted(expected_endings(leg).items())
    ]
    return "\n".join(["## What does not pass", "", *(lines or ["Nothing."]), ""])


def _remarks(found: Found) -> str:
    """The single checks that warn or are skipped in scenarios that pass: the suite counts neither."""
    lines = [
        f"- `{outcome.scenario}` ({leg}): {', '.join(outcome.remarks)}"
        for leg in LEGS
        for outcome in found[leg]
        if outcome.status == "passed" and outcome.remarks
    ]
    return "\n".join(["## Checks that warn or are skipped", "", *(lines or ["None."]), ""])


def _counts(found: Found, alone: Found, needed: dict[str, list[str]]) -> str:
    lines = ["| revision | scenarios | pass | of those required | skipped | fail | the program as it is passes |"]
    lines.append("|---|---|---|---|---|---|---|")
    for leg in LEGS:
        passed = {outcome.scenario for outcome in found[leg] if outcome.status == "passed"}
        due = set(needed.get(leg, ()))
        share = f"{len(passed & due)} of {len(due)}" if due else "-"
        by_status = [str(sum(outcome.status == status for outcome in found[leg])) for status in ("skipped", "failed")]
        own = sum(outcome.status == "passed" for outcome in alone[leg])
        lines.append(f"| {leg} | {len(found[leg])} | {len(passed)} | {share} | {' | '.join(by_status)} | {own} |")
    return "\n".join([*lines, ""])


def _scenarios(found: Found, alone: Found) -> str:
    names = list(dict.fromkeys(outcome.scenario for leg in LEGS for outcome in found[leg]))
    head = ["scenario", *LEGS, "as it is"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in names:
        signs = [_sign(found[leg], name) for leg in LEGS]
        own = [leg for leg in LEGS if _sign(alone[leg], name) == "yes"]
        lines.append(f"| {' | '.join((name, *signs, ', '.join(own)))} |")
    return "\n".join([*lines, ""])


def _sign(outcomes: list[Outcome], name: str) -> str:
    return next((SIGNS[outcome.status] for outcome in outcomes if outcome.scenario == name), "")


def _run_legs(folder: Path, kind: type[Place], scratch: Path) -> Found:
    found: Found = {}
    for leg in LEGS:
        with serving(kind(scratch / leg / "place").lay(), leg) as url:
            found[leg] = run_suite(folder, url, leg, scratch / leg / "found")
    return found


def main() -> None:
    named = os.environ.get("KAIROS_FOREIGN_CACHE")
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_environment(ENVIRON, Path(named or scratch).absolute())
        found = _run_legs(folder, ScenarioPlace, Path(scratch) / "with")
        alone = _run_legs(folder, Place, Path(scratch) / "alone")
        needed = {revision: required_scenarios(folder, revision) for revision in REVISIONS}
        DOCUMENT.write_text(document(found, alone, needed))
    for leg, outcomes in found.items():
        for difference in differences(outcomes, leg):
            print(f"{leg}: {difference}")
    for leg, outcomes in alone.items():
        print(f"{leg} as it is: {', '.join(outcome.scenario for outcome in outcomes if outcome.status == 'passed')}")


if __name__ == "__main__":
    main()
