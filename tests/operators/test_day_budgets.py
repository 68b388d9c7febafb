"""What principals may use on a day: one's own table, a group's, else what [day] says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.app import UNWATCHED, Place, says
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.schema import read_settings_file
from kairos_mcp.settings.table_values import DayBudget

BUDGETS = (
    DayBudget(("anna",), Limits(model_calls=1)),
    DayBudget(("team-*", "bob"), Limits(model_calls=2)),
    DayBudget(("*",), Limits(model_calls=9)),
)


def test_the_first_table_that_names_a_principal_counts_and_the_day_says_the_rest(place: Place) -> None:
    settings = place.settings(day=Limits(total_tokens=1_000, model_calls=50), day_budget=BUDGETS[:2])
    found = {name: settings.day_of(name) for name in ("anna", "team-red", "bob", "carl")}
    assert {name: caps.model_calls for name, caps in found.items()} == {"anna": 1, "team-red": 2, "bob": 2, "carl": 50}
    assert {caps.total_tokens for caps in found.values()} == {1_000}


def test_a_settings_file_names_them_with_their_limits(tmp_path: Path) -> None:
    file = tmp_path / "kairos.toml"
    file.write_text('[[day_budget]]\nprincipals = ["anna", "team-*"]\nusd = 2.5\nmodel_calls = 10\n')
    (budget,) = read_settings_file(file)["day_budget"]
    assert budget == DayBudget(("anna", "team-*"), Limits(nano_usd=2_500_000_000, model_calls=10))
    for wrong in ('usd = -1\nprincipals = ["a"]', "usd = 1", 'rounds = 3\nprincipals = ["a"]', "principals = []"):
        file.write_text(f"[[day_budget]]\n{wrong}\n")
        with pytest.raises(ConfigError):
            read_settings_file(file)


@both_stores
async def test_one_principals_day_is_used_up_and_anothers_is_not(place: Place) -> None:
    settings = place.settings(says("done"), day_budget=BUDGETS, flow=UNWATCHED)
    async with App.open(settings, via="mcp") as app:
        found = {}
        for name in ("anna", "bob"):
            caller = Caller(name)
            for number in range(2):
                run_id = (await app.runs.start(PlannerRequest(f"look {number}"), caller)).run_id
                await app.runs.wait([run_id], until="rest", wait_s=20, caller=caller)
                found[name, number] = (await app.runs.report(run_id, caller)).status
            spending = await app.records.read_spending("day", caller)
            assert spending["limits"]["model_calls"] == {"anna": 1, "bob": 2}[name]
    assert found == {
        ("anna", 0): "completed",
        ("anna", 1): "paused",
        ("bob", 0): "completed",
        ("bob", 1): "completed",
    }
