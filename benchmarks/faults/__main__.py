"""`python -m benchmarks.faults [SYSTEM ...]`: Kairos, its peers and the controls, killed in the middle of one job."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loopfaults.__main__ import control_subject
from loopfaults.cases import APART, DEFAULT_GROUPS, DRAWN, make_cases
from loopfaults.controls import CONTROLS
from loopfaults.report import make_report, make_table, read_rows
from loopfaults.sweep import Subject, sweep

from benchmarks.faults.systems import PEER_SYSTEMS, make_subject
from tests.foreign.environs import Missing

APART_TITLES = {
    "commit": "Killed while it stores what it was answered:",
    "beside": "Killed while several effects of one round are under way:",
    "stop": "Standing still while a second process goes on, then waking up:",
    "provider": "Refused by the provider:",
    "loop": "Killed ten times at one completion:",
    "second": "Killed while a second server stands by, which goes on:",
    "disk": "The disk full, then with space again:",
}
ROOT = Path(__file__).parent.parent.parent


def make_subjects(names: list[str]) -> list[Subject]:
    """Make the systems; one whose environment can't be made is left out, and said."""
    subjects = []
    for name in names:
        try:
            subjects.append(make_subject(name))
        except (Missing, RuntimeError) as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return subjects


def main() -> None:
    known = ("kairos", "kairos_keyed", "kairos_postgres", "kairos_keyed_postgres", "kairos_work", *PEER_SYSTEMS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "systems", nargs="*", default=["kairos"], help=f"of {', '.join(known)}; the controls always are"
    )
    parser.add_argument("--groups", default=",".join(DEFAULT_GROUPS))
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[1],
        help="all after the first play what is drawn by lot, and the controls",
    )
    parser.add_argument("--base", type=Path, help="where the systems keep their state; for the group disk a small disk")
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"), help="one line a case; what is there is kept")
    parser.add_argument("--report", type=Path, default=Path("faults.json"))
    given = parser.parse_args()
    if unknown := [name for name in given.systems if name not in known]:
        parser.error(f"no such system: {', '.join(unknown)}")
    base = given.base or Path(tempfile.mkdtemp(prefix="kairos-faults-"))
    groups = given.groups.split(",")
    drawn = [group for group in groups if group in DRAWN]
    controls = [control_subject(name) for name in CONTROLS]
    for seed in given.seeds:
        own = make_cases(groups if seed == given.seeds[0] else drawn, seed)
        asyncio.run(sweep(make_subjects(given.systems), own, seed, base, given.out))
        asyncio.run(sweep(controls, make_cases(groups, seed), seed, base, given.out))
    report = make_report(read_rows(given.out))
    report |= {"seeds": given.seeds, "machine": platform.platform(), "commit": find_commit()}
    given.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    tables = describe_report(report)
    given.report.with_suffix(".md").write_text(tables, encoding="utf-8")
    print(tables)
    if not report["is_valid"]:
        sys.exit(f"This report is void: these controls were not caught: {', '.join(report['escaped'])}.")


def describe_report(report: dict[str, Any]) -> str:
    """Make the tables, and say of each system its version, what its own documents promise, and what was left out."""
    played = {group for each in report["systems"].values() for group in each["groups"]}
    tables = [make_table(report)] + [
        f"{APART_TITLES[group]}\n\n{make_table(report, group)}" for group in APART if group in played
    ]
    lines = []
    for each in report["systems"].values():
        if about := each["about"]:
            said = [about["contract"], about.get("notes"), f"{each['tokens']:,} tokens for the undisturbed job"]
            lines.append(f"- {about['title']} ({about['version']}): {'; '.join(filter(None, said))}.\n")
    return "\n\n".join([tables[0], "".join(lines).rstrip(), *tables[1:]]) + "\n"


def find_commit() -> str:
    named = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return named.stdout.strip()


if __name__ == "__main__":
    main()
