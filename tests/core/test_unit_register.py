"""The units in which runs are limited are declared once, and everything that lists them iterates over that."""

from __future__ import annotations

import ast
from typing import get_args

import pytest
from support.sources import nodes_with

from kairos_mcp.budget.reservation import Account, ReservationRequest, format_status_line, minimum_hold, reserve
from kairos_mcp.core.limits import (
    CAPS,
    DAY_CAPS,
    NOTHING,
    UNITS,
    UNITS_OF_FIRST_VERSION,
    Amount,
    Limits,
    Price,
    Unit,
    Units,
    counts_of,
)
from kairos_mcp.core.limits_table import limits_from_json, limits_to_json
from kairos_mcp.core.outcomes import StopName
from kairos_mcp.core.steps import Refused
from kairos_mcp.store.accounts import unit_columns
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.schema import list_statements, migrate
from kairos_mcp.views.run_report import RESULT_SCHEMA

ROUND = ReservationRequest(counts_of("round"), "round", False, 4_000, 2_000, 60_000, price=Price(3, 15))
CALL = ReservationRequest(counts_of("call"), "call", timeout_ms=60_000)
NAMES = {name for field, unit in UNITS.items() for name in (field, unit.name)}
LISTS_OF_ANOTHER_KIND = {
    "views/shown_run.py": "the figures of a row in the list of runs",
    "core/agent.py": "the figures of an agent's record",
    "models/replies/response.py": "the words of a provider's usage",
    "models/replies/chat.py": "the words of a provider's usage",
    "budget/ledger.py": "a total that has to stay the sum of its two parts",
}

every_unit = pytest.mark.parametrize(("field", "unit"), UNITS.items(), ids=UNITS)


def test_amounts_limits_and_what_is_left_have_a_field_for_each_unit() -> None:
    assert Units._fields == Limits._fields == Amount._fields == tuple(UNITS)
    assert len(UNITS) >= UNITS_OF_FIRST_VERSION
    assert len({unit.name for unit in UNITS.values()}) == len(UNITS)
    assert sorted(unit.order for unit in UNITS.values()) == list(range(len(UNITS)))


@every_unit
def test_a_record_says_what_its_way_of_being_held_needs(field: str, unit: Unit) -> None:
    assert unit.ends in get_args(StopName)
    assert unit.weighs is None or unit.held == "tokens"
    assert (unit.measured is not None) == (unit.held == "after")
    assert unit.words
    assert unit.noun


def test_one_unit_is_held_by_time_and_one_by_price() -> None:
    """What else would be held so needs a grant of its own in `budget/reservation.py`."""
    assert [field for field, unit in UNITS.items() if unit.held == "time"] == ["milliseconds"]
    assert [field for field, unit in UNITS.items() if unit.held == "tokens" and unit.weighs is None] == ["nano_usd"]


@every_unit
def test_nothing_begins_that_would_use_a_unit_of_which_nothing_is_left(field: str, unit: Unit) -> None:
    account = Account(1, Limits()._replace(**{field: 0}), NOTHING, NOTHING)
    step = next(step for step in (ROUND, CALL) if getattr(minimum_hold(step), field) or step is CALL)
    if unit.held == "time":
        step = ROUND
    for refused in (reserve(account, step), reserve(Account(2, Limits(), NOTHING, NOTHING), step, (), [account])):
        assert isinstance(refused, Refused)
        assert refused.limit == field


@every_unit
def test_the_status_line_shows_each_limit(field: str, unit: Unit) -> None:
    line = format_status_line(Account(1, Limits()._replace(**{field: 7 * unit.scale}), NOTHING, NOTHING))
    assert line is not None
    assert unit.words in line
    assert "7" in line


@every_unit
def test_a_limit_is_the_same_outside_and_inside(field: str, unit: Unit) -> None:
    limits = Limits(**limits_from_json({unit.name: 3}))
    assert getattr(limits, field) == 3 * unit.scale
    assert limits_to_json(limits)[unit.name] == 3
    assert [cap.unit for cap in limits.caps] == [field]


def test_results_settings_and_days_list_the_units() -> None:
    usage = RESULT_SCHEMA["properties"]["usage"]["properties"]
    assert [name for name in CAPS if name in usage] == [unit.name for unit in UNITS.values() if unit.in_usage]
    assert tuple(RESULT_SCHEMA["properties"]["remaining"]["properties"]) == CAPS
    assert [name for name in CAPS if name in DAY_CAPS] == [unit.name for unit in UNITS.values() if unit.shared]


def test_the_table_of_accounts_has_three_columns_for_each_unit() -> None:
    session = SqliteSession(":memory:")
    migrate(session)
    assert session.rows(f"select {', '.join(unit_columns('cap', 'held', 'spent'))} from account") == []
    session.close()


def test_an_event_tells_that_little_is_left_of_each_unit_but_rounds() -> None:
    (trigger,) = (sql for kind, sql in list_statements() if kind == "trigger" and " account_event " in sql)
    named = {field for field in UNITS if f"new.spent_{field} >= new.cap_{field} - new.cap_{field} / 10" in trigger}
    assert named == UNITS.keys() - {"rounds"}  # the line of progress counts those


def _lists_units(node: ast.AST) -> bool:
    """Whether it is a literal list in which several units are named."""
    match node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
            return sum(isinstance(item, ast.Constant) and item.value in NAMES for item in items) >= 3
        case _:
            return False


def test_no_list_of_units_stands_beside_their_register() -> None:
    found = {file for file, node in nodes_with(NAMES) if _lists_units(node)}
    assert found <= LISTS_OF_ANOTHER_KIND.keys()
