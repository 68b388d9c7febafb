"""The register of routes knows each of them, and nothing else does: a route that is added has what every route has."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import fields
from typing import get_args

import pytest
from support.sources import PACKAGE, nodes_with

from kairos_mcp.core.routes import AUTO, OUTSIDE_ROUTES, PRIVATE_ROUTES, ROUTES, RouteName, order_routes
from kairos_mcp.models.route_models import MAKERS
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store.report_queries import OF_PROVIDER
from kairos_mcp.store.schema import MIGRATIONS

REGISTER = "core/routes.py"
MEANS_ANOTHER_THING = {  # a word that is also a route's name
    "core/messages.py": 1,  # the source of a tool that the caller brings along
    "views/run_facts.py": 1,  # who decides about an approval
    "views/next_action.py": 1,  # the same
    "app/run_reports.py": 1,  # the same
    "cli/doctor_checks.py": 1,  # the subject of a finding
    "store/gauges.py": 2,  # why a run is paused
}


def test_what_a_run_may_ask_for_is_auto_or_a_route_of_the_register():
    assert sorted(get_args(RouteName)) == sorted((AUTO, *ROUTES))


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_a_route_has_what_its_kind_of_answerer_needs(route):
    has_maker, has_setting = route.name in MAKERS, route.setting is not None
    if route.answered_by == "server":
        assert (has_maker, has_setting, route.refusal is None) == (True, True, False)
        assert (route.kept is None) == (route.kept_refusal is None)
        assert route.kept is not None or route.lacking is not None
        assert route.setting in {field.name for field in fields(Settings)}
    else:
        assert not any((has_maker, has_setting, route.is_paid, route.has_private_parts))


def test_auto_always_finds_somebody_last():
    last = list(ROUTES.values())[-1]
    assert (last.answered_by, last.refusal) == ("caller", None)
    for clients_first in (False, True):
        order = order_routes(ROUTES, clients_first=clients_first)
        assert set(order) == set(ROUTES)
        assert order[-1] == last.name
    assert last.name in OUTSIDE_ROUTES


def test_the_index_of_private_parts_names_the_routes_that_have_them():
    assert re.findall(r'"route":"(\w+)"', OF_PROVIDER) == list(PRIVATE_ROUTES)
    assert f"where {OF_PROVIDER}" in MIGRATIONS[0]


def test_the_words_and_the_cases_of_every_route_name_each():
    words = (PACKAGE.parent / "docs" / "words.md").read_text().split("| route |")[1].splitlines()[0]
    cases = (PACKAGE.parent / "tests" / "sampling" / "test_every_route.py").read_text()
    for name in ROUTES:
        assert f"`{name}`" in words
        assert name in OUTSIDE_ROUTES or f'"{name} ' in cases


def test_no_name_of_a_route_stands_outside_the_register():
    lines = {
        (file, node.lineno)
        for file, node in nodes_with(ROUTES)
        if isinstance(node, ast.Constant) and node.value in ROUTES
    }
    found = Counter(file for file, _ in lines)
    assert found.pop(REGISTER) > 0
    assert found == MEANS_ANOTHER_THING
    for script in (PACKAGE / "page" / "assets").glob("*.js"):
        assert not re.search(r'\broute [!=]== "', script.read_text()), script.name
