"""`loopfaults run --map SERVER.toml`: kill a server's runtime in the middle of a job, and count."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from .cases import DEFAULT_GROUPS, GROUPS, BadCases, make_cases, read_cases
from .controls import CONTROLS
from .mcp import BadMapping, McpSystem, read_mapping
from .report import make_report, make_table, read_rows
from .sweep import Subject, sweep
from .systems import Forked, Zygote


def control_subject(name: str) -> Subject:
    """Return what plays a control: a class of this package, in this Python."""
    zygote = Zygote(Path(sys.executable), "loopfaults.controls", dict(os.environ), Path(__file__).parent.parent)
    return Subject(name, lambda folder, url: Forked(zygote, folder, url, (name,)), zygote)


def mapped_subject(path: Path) -> Subject:
    """Return what plays the server of a mapping. Raises BadMapping."""
    mapping = read_mapping(path)
    title = mapping["server"].get("title", path.stem)
    about = {"title": title, "notes": mapping["server"].get("notes", "")}
    return Subject(
        path.stem,
        lambda folder, url: McpSystem(mapping, folder, url),
        about=about,
        has_approval="answer" in mapping,
        is_keyed=mapping["server"].get("keyed", False),
    )


def run(given: argparse.Namespace) -> int:
    cases = make_cases(given.groups.split(","), given.seed)
    if given.cases:
        cases += read_cases(given.cases)
    subjects = [mapped_subject(path) for path in given.map] + [control_subject(name) for name in CONTROLS]
    base = given.base or Path(tempfile.mkdtemp(prefix="loopfaults-"))
    asyncio.run(sweep(subjects, cases, given.seed, base, given.out))
    report = make_report(read_rows(given.out))
    given.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(make_table(report))
    if not report["is_valid"]:
        print(f"\nThis report is void: these controls were not caught: {', '.join(report['escaped'])}.")
    return 0 if report["is_valid"] else 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="loopfaults", description=__doc__)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="play cases on servers and on the controls")
    runs.add_argument("--map", type=Path, action="append", default=[], help="a server's mapping; may be repeated")
    runs.add_argument("--groups", default=",".join(DEFAULT_GROUPS), help=f"of {', '.join(GROUPS)}")
    runs.add_argument("--cases", type=Path, help="a TOML file of further cases")
    runs.add_argument("--seed", type=int, default=1, help="of what is drawn by lot")
    runs.add_argument("--base", type=Path, help="where servers keep their state; for the group disk a small disk")
    runs.add_argument("--out", type=Path, default=Path("outcomes.jsonl"), help="one line a case; what is there is kept")
    runs.add_argument("--report", type=Path, default=Path("report.json"))
    runs.set_defaults(do=run)
    given = parser.parse_args()
    try:
        sys.exit(given.do(given))
    except (BadCases, BadMapping) as reason:
        parser.error(str(reason))


if __name__ == "__main__":
    main()
