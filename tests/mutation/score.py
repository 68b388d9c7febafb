"""Score the tests of the files that carry the promises: how many random mutants of each do they notice?

    python tests/mutation/score.py                     every file, the sample that the table states
    python tests/mutation/score.py --file gate.py --count 40 --seed 7
    python tests/mutation/score.py --file gate.py --all

Prints one line for each survivor and a table. A survivor either gets a test, or stands in `equivalent.py` with the
reason why no test could tell it from the original. Ends with 1 where a file's score is below WANTED.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from equivalent import EQUIVALENT
from lawfiles import LAW_FILES
from mutants import Mutant, mutants, sample

ROOT = Path(__file__).resolve().parent.parent.parent
WANTED = 0.95  # of the mutants that a test could tell
SEED = 20261122
LONGEST_S = 240  # a mutant that runs longer hangs, and is noticed by that


@dataclass(slots=True)
class Score:
    """What came of the mutants of one file."""

    file: str
    killed: int = 0
    equivalent: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of mutants that were noticed, of those that a test could tell; 1 where there are none."""
        decided = self.killed + len(self.survivors)
        return self.killed / decided if decided else 1.0

    def __str__(self) -> str:
        counts = f"{self.killed} killed, {len(self.survivors)} survived, {self.equivalent} equivalent"
        return f"{self.file:24} {self.share:6.1%}  ({counts})"


class Copy:
    """A copy of the package in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("kairos_mcp", "config", "skills"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        # Compiled with the hash of the source: a mutant of the same size within the same second is never passed over.
        compileall.compile_dir(
            folder / "kairos_mcp", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )

    def is_noticed(self, mutant: Mutant | None, tests: Iterable[str]) -> bool:
        """Whether a test fails with this mutant (None: with the file as it is)."""
        if mutant is None:
            return self._fails(tests)
        file = self._folder / "kairos_mcp" / mutant.file
        before = file.read_text(encoding="utf-8")
        file.write_text(mutant.source, encoding="utf-8")
        try:
            return self._fails(tests)
        finally:
            file.write_text(before, encoding="utf-8")

    def _fails(self, tests: Iterable[str]) -> bool:
        words = ["-n", "0", "-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider"]
        paths = [str(ROOT / "tests" / test) for test in tests]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "KAIROS_"))}
        environ |= {
            "PYTHONPATH": str(self._folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "examples"),
        }
        command = [sys.executable, "-m", "pytest", *words, "-c", str(ROOT / "pyproject.toml"), *paths]
        with tempfile.TemporaryDirectory() as scratch:
            try:
                done = subprocess.run(
                    command,
                    cwd=self._folder,
                    env={**environ, "TMPDIR": scratch},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    timeout=LONGEST_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return True
        return done.returncode != 0


def score(file: str, chosen: Iterable[Mutant], copies: SimpleQueue[Copy], pool: ThreadPoolExecutor) -> Score:
    """Try each mutant of a file, several side by side. Raises RuntimeError where its tests fail as the file is."""
    result = Score(file)

    def is_noticed(mutant: Mutant | None) -> bool:
        copy = copies.get()
        try:
            return copy.is_noticed(mutant, LAW_FILES[file])
        finally:
            copies.put(copy)

    if is_noticed(None):
        raise RuntimeError(f"the tests of {file} fail without any mutant")
    different = []
    for mutant in chosen:
        if mutant.key in EQUIVALENT:
            result.equivalent += 1
        else:
            different.append(mutant)
    for mutant, noticed in zip(different, pool.map(is_noticed, different), strict=True):
        if noticed:
            result.killed += 1
        else:
            result.survivors.append(mutant)
            print(f"survived  {mutant}", flush=True)
    return result


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--file", action="append", choices=sorted(LAW_FILES), help="a file below kairos_mcp/")
    options.add_argument("--count", type=int, default=40, help="mutants of each file (default 40)")
    options.add_argument("--all", action="store_true", help="every mutant there is")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--jobs", type=int, default=2, help="side by side (default 2)")
    chosen = options.parse_args()
    begun = time.monotonic()
    scores = score_files(chosen.file or list(LAW_FILES), None if chosen.all else chosen.count, chosen.seed, chosen.jobs)
    print("\n".join(map(str, scores)))
    print(f"seed {chosen.seed}, {time.monotonic() - begun:.0f} s")
    return int(any(each.share < WANTED for each in scores))


def score_files(files: Iterable[str], count: int | None, seed: int, jobs: int) -> list[Score]:
    """Score these files, by `count` mutants each (None: all)."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for n in range(jobs):
            copies.put(Copy(Path(scratch) / str(n)))
        scores = []
        for file in files:
            path = ROOT / "kairos_mcp" / file
            text = path.read_text(encoding="utf-8")
            chosen = list(mutants(text, file)) if count is None else sample(path, file, count, seed)
            scores.append(score(file, chosen, copies, pool))
            print(scores[-1], flush=True)
        return scores


if __name__ == "__main__":
    sys.exit(main())
