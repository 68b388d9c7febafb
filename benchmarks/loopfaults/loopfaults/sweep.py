"""All cases on all systems, one line a case in a file, so that a sweep that was ended goes on where it was."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cases import Case
from .play import Make, Play
from .report import read_rows
from .systems import Zygote
from .witness import Witness


@dataclass
class Subject:
    """A system by its name. `about`: its title, version, configuration and notes, which the report repeats."""

    name: str
    make: Make
    zygote: Zygote | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    has_approval: bool = True
    is_keyed: bool = False


def keep_whole_rows(out: Path) -> list[dict[str, Any]]:
    """Read what was played before, and drop a last line that was cut."""
    rows = read_rows(out)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


async def sweep(subjects: Iterable[Subject], cases: Iterable[Case], seed: int, base: Path, out: Path) -> None:
    """Play what the file does not have yet: by system, seed, group and case."""
    cases = list(cases)
    rows = keep_whole_rows(out)
    known = {(row["system"], row["seed"], row["group"], row["case"]) for row in rows}
    witness = Witness()
    await witness.open()
    try:
        for subject in subjects:
            left = [case for case in cases if (subject.name, seed, case.group, case.name) not in known]
            await _play_all(subject, left, seed, base, out, witness)
    finally:
        await witness.close()


async def _play_all(subject: Subject, cases: list[Case], seed: int, base: Path, out: Path, witness: Witness) -> None:
    if not subject.has_approval:
        cases = [case.without_approval() for case in cases if case.group != "approval"]
    if not cases:
        return
    if subject.zygote:
        await subject.zygote.open()
    folder = Path(tempfile.mkdtemp(prefix=f"{subject.name}-", dir=base))
    try:
        with out.open("a", encoding="utf-8") as lines:
            for number, case in enumerate(cases):
                name = f"{subject.name}-{number}"
                outcome = await Play(witness, subject.make, case, name, folder, subject.is_keyed).play()
                row = {"system": subject.name, "seed": seed, **outcome.as_json(), "about": dict(subject.about)}
                print(json.dumps(row), file=lines, flush=True)
    finally:
        if subject.zygote:
            await subject.zygote.close()
