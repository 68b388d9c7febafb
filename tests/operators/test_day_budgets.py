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
    file.write_text('[[day_budget]]\ngroup = "red"\nprincipals = ["anna"]\nusd = 1\n')
    assert [each.group for each in read_settings_file(file)["day_budget"]] == ["red"]
    for wrong in (
        'group = "Red:1"\nprincipals = ["a"]',
        'usd = -1\nprincipals = ["a"]',
        "usd = 1",
        'rounds = 3\nprincipals = ["a"]',
        "principals = []",
    ):
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


RED = DayBudget(("anna", "bob"), Limits(model_calls=3), group="red")


def test_a_group_is_beside_what_each_may_use(place: Place) -> None:
    settings = place.settings(day=Limits(model_calls=50), day_budget=(RED, *BUDGETS))
    assert settings.day_of("anna").model_calls == 1
    assert settings.group_caps_of("anna") == settings.group_caps_of("bob") == {"group:red": RED.caps}
    assert settings.group_caps_of("carl") == {}


@both_stores
async def test_members_of_a_group_use_up_one_sum_together_and_not_more(place: Place) -> None:
    settings = place.settings(says("done"), day_budget=(RED,), flow=UNWATCHED)
    async with App.open(settings, via="mcp") as app, App.open(settings, via="mcp") as beside:
        started = {}
        for number in range(3):
            for opened, name in ((app, "anna"), (beside, "bob")):
                run_id = (await opened.runs.start(PlannerRequest(f"look {number}"), Caller(name))).run_id
                started[run_id] = Caller(name)
        for run_id, caller in started.items():
            await app.runs.wait([run_id], until="rest", wait_s=20, caller=caller)
        found = [(await app.runs.report(run_id, caller)).status for run_id, caller in started.items()]
        assert (found.count("completed"), found.count("paused")) == (3, 3)
        for name in ("anna", "bob"):
            (group,) = (await app.records.read_spending("day", Caller(name)))["groups"]
            assert (group["group"], group["spent"]["model_calls"], group["remaining"]["model_calls"]) == ("red", 3, 0)
        other = Caller("carl")
        run_id = (await app.runs.start(PlannerRequest("look"), other)).run_id
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=other)
        assert (await app.runs.report(run_id, other)).status == "completed"
        assert (await app.health(thorough=True))["damage"] == []
