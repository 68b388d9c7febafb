"""The tests notice what is changed in the files that carry the promises: at least 95 of 100 random mutants.

`python tests/mutation/score.py --help` tries other files, counts and seeds.
"""

from __future__ import annotations

import pytest
from equivalent import EQUIVALENT
from lawfiles import LAW_FILES
from mutants import mutants, sample
from score import ROOT, SEED, WANTED, score_files

PACKAGE = ROOT / "kairos_mcp"
EACH = 40  # mutants of a file, or all where it has fewer: the fourteen files together are some 540

SMALL = '''"""A docstring."""

LIMIT = 3

def fits(size: int, name: str) -> bool:
    """Say whether it fits."""
    if not name:
        raise ValueError("no name, 1 of 2")
    return size + 1 <= LIMIT and name != "L0"
'''


def test_each_mutant_differs_from_the_file_in_one_place_that_a_test_could_tell() -> None:
    changes = {(each.function, each.before, each.after) for each in mutants(SMALL, "small.py")}
    assert changes == {
        ("", "3", "4"),
        ("", "3", "2"),
        ("fits", "not name", "(name)"),
        ("fits", 'raise ValueError("no name, 1 of 2")', "pass"),
        ("fits", 'return size + 1 <= LIMIT and name != "L0"', "return None"),
        ("fits", 'size + 1 <= LIMIT and name != "L0"', "(size + 1 <= LIMIT or name != 'L0')"),
        ("fits", 'size + 1 <= LIMIT and name != "L0"', "(name != 'L0')"),
        ("fits", 'size + 1 <= LIMIT and name != "L0"', "(size + 1 <= LIMIT)"),
        ("fits", "size + 1 <= LIMIT", "(size + 1 < LIMIT)"),
        ("fits", "size + 1 <= LIMIT", "(size + 1 > LIMIT)"),
        ("fits", "size + 1", "(size - 1)"),
        ("fits", "1", "2"),
        ("fits", "1", "0"),
        ("fits", 'name != "L0"', "(name == 'L0')"),
        ("fits", '"L0"', "'L0?'"),
    }


@pytest.mark.parametrize("file", LAW_FILES)
def test_a_sample_is_the_same_for_the_same_seed_and_its_tests_are_there(file: str) -> None:
    first, again = (sample(PACKAGE / file, file, EACH, SEED) for _ in range(2))
    assert [each.key for each in first] == [each.key for each in again]
    there_are = len(list(mutants((PACKAGE / file).read_text(encoding="utf-8"), file)))
    assert len({each.source for each in first}) == min(EACH, there_are)
    for each in first:
        compile(each.source, file, "exec")  # what no interpreter reads would be noticed by any test
    assert all((ROOT / "tests" / test).exists() for test in LAW_FILES[file])


def test_a_mutant_that_is_said_to_be_equivalent_is_one_of_its_file() -> None:
    """So the list can't go stale unseen, and none of it says more than it should."""
    every = {each.key for file in LAW_FILES for each in mutants((PACKAGE / file).read_text(encoding="utf-8"), file)}
    assert set(EQUIVALENT) <= every
    assert all(reason.strip() for reason in EQUIVALENT.values())


@pytest.mark.slow
@pytest.mark.parametrize("file", LAW_FILES)
def test_the_tests_notice_nearly_every_mutant(file: str) -> None:
    (score,) = score_files([file], EACH, SEED, jobs=2)
    assert score.share >= WANTED, "\n".join(map(str, score.survivors))
