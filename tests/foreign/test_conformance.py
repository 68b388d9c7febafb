"""The conformance suite against our server: with the content that its scenarios ask for, and as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.foreign.conformance.suite import (
    ENVIRON,
    EXTENSIONS,
    REVISIONS,
    ScenarioPlace,
    differences,
    required_scenarios,
    run_suite,
    serving,
    without_content,
)
from tests.foreign.environs import Environ
from tests.foreign.served import Place

pytestmark = pytest.mark.foreign


@pytest.mark.parametrize("leg", [*REVISIONS, EXTENSIONS])
def test_scenarios_end_as_expected(leg: str, environment: Callable[[Environ], Path], tmp_path: Path) -> None:
    folder = environment(ENVIRON)
    with serving(ScenarioPlace(tmp_path / "place").lay(), leg) as url:
        found = run_suite(folder, url, leg, tmp_path / "found")
    assert differences(found, leg) == []
    if leg in ("2026-07-28", "2025-11-25"):
        passed = {outcome.scenario for outcome in found if outcome.status == "passed"}
        assert set(required_scenarios(folder, leg)) - passed == set()


@pytest.mark.parametrize("leg", [*REVISIONS, EXTENSIONS])
def test_the_program_as_it_is(leg: str, environment: Callable[[Environ], Path], tmp_path: Path) -> None:
    folder = environment(ENVIRON)
    with serving(Place(tmp_path / "place").lay()) as url:
        found = run_suite(folder, url, leg, tmp_path / "found")
    assert sorted(outcome.scenario for outcome in found if outcome.status == "passed") == sorted(without_content(leg))
