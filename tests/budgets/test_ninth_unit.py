"""A unit that is added to the class of amounts, with a migration: stores hold it, a run ends where it is used up."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support import ninth_unit
from support.app import ME, Place, reads

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.limits import NOTHING, UNITS, Units
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.store.rows import decode_units, encode_units

IN_A_NEWER_FILE = pytest.mark.state_file("a program with a migration of its own makes it")


def with_a_ninth_unit(place: Place, run_id: str, answer: str) -> dict[str, Any]:
    command = [sys.executable, ninth_unit.__file__, str(place.root), run_id, answer]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@IN_A_NEWER_FILE
@pytest.mark.unreplayed
def test_a_new_store_has_the_unit_and_no_tool_is_called_once_nothing_is_left_of_it(place: Place) -> None:
    found = with_a_ninth_unit(place, "", "fine")
    assert (found["status"], found["summary"], found["damage"]) == ("stopped", "fine", [])
    assert found["calls"] == [False, True, False]
    assert found["accounts"] == [[500, 0, sum(found["content"])]]
    assert found["remaining"]["checks"] == 0
    assert {len(spent) for spent in found["spent"]} == {len(UNITS) + 1}


@IN_A_NEWER_FILE
@pytest.mark.unreplayed
async def test_a_run_that_began_before_goes_on_with_the_unit(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("go", route="caller"), ME)).run_id
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=ME)
        await app.answers.submit(run_id, {"round-1": reads("a.txt")}, ME)  # so that there are amounts of before
        await app.runs.wait([run_id], until="rest", wait_s=20, caller=ME)
    found = with_a_ninth_unit(place, run_id, "answered later")
    assert (found["status"], found["summary"], found["damage"]) == ("completed", "answered later", [])
    assert found["accounts"] == [[None, 0, len("answered later")]]
    assert sorted({len(spent) for spent in found["spent"]}) == [len(UNITS), len(UNITS) + 1]


def test_amounts_of_an_older_version_are_filled_with_zeros() -> None:
    whole = Units(*range(1, len(UNITS) + 1))
    assert decode_units(encode_units(whole)) == whole
    assert decode_units("[1,2,3,4,5,6,7,8]") == NOTHING._replace(**dict(zip(UNITS, range(1, 9), strict=False)))


def test_amounts_of_a_newer_version_are_refused_and_say_so() -> None:
    longer = encode_units(NOTHING).replace("]", ",0]")
    with pytest.raises(Unreadable) as caught:
        decode_units(longer)
    assert "newer version" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["[]", "[1,2,3]", "[1,2,3,4,5,6,7,null]", "{}", "null"])
def test_what_is_no_amount_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        decode_units(text)
