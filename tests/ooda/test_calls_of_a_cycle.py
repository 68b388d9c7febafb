"""How often a client's model is asked in a cycle: once a phase that thinks, for repairs, for reads it was granted.

SAMPLING-021: a client counts the calls, and its model does what it can to be asked for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as wire
import pytest
from support.app import assert_all_lawful
from support.cycles import MANDATE, cycle, noop
from support.reviewers import UNHURRIED, connect_person
from support.sampling_clients import ClientModel, encode_reply

from kairos_mcp.app.app import App

ONE_CYCLE = {"mandate": MANDATE, "cycles": 1, "route": "sampling"}
PHASES = 3  # orient, decide, reflect
READS, REPAIRS = 20, 2  # reads of a cycle, repairs of a phase


@dataclass
class Greedy(ClientModel):
    """A model that reads and reads, or talks past the question, whatever it is asked."""

    says: Mapping[str, Any] = field(default_factory=dict)

    async def __call__(self, _ctx: object, params: wire.CreateMessageRequestParams) -> Any:
        self.asked.append(params)
        orients = len(self.asked) == 1
        turn = self.turns[0] if orients else self.says
        return encode_reply(turn, native=self.native)


async def one_cycle(place: Any, era: str, model: ClientModel) -> tuple[dict[str, Any], dict[str, int]]:
    """The run's result after as many calls as it takes, and its steps by kind."""
    async with App.open(place.settings(), via="mcp") as app:
        async with connect_person(app, era, None, patience=UNHURRIED, model=model) as client:
            run = await client.ask("ooda_run", ONE_CYCLE)
            while run["status"] == "input_required":  # eight rounds of one call are the most
                run = await client.ask("run_continue", run["next"]["arguments"])
        await assert_all_lawful(app)
    return run, dict(place.rows("select kind, count(*) from step group by kind"))


async def test_SAMPLING_021_a_cycle_that_goes_well_asks_once_a_phase(place, era):
    model = ClientModel([json.dumps({"final": line["content"]}) for line in cycle(noop())])
    run, steps = await one_cycle(place, era, model)
    assert (run["stop_reason"], len(model.asked)) == ("nothing_to_do", PHASES)
    assert (run["route"], run["model"]) == ("sampling", "m")  # as the host names it
    assert (run["usage"]["model_calls"], steps["phase"], "repair" in steps) == (PHASES, PHASES, False)


@pytest.mark.parametrize(
    ("says", "most"),
    [
        ({"content": "Ask me again."}, 1 + 1 + REPAIRS),
        ({"tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]}, 1 + 1 + READS + REPAIRS),
        ({"tool_calls": [{"name": "read_file", "arguments": {"path": "no.txt"}}] * 3}, 1 + 1 + READS + REPAIRS),
        ({"content": "half", "finish": "length"}, 1 + 1 + 1),
    ],
    ids=["talks", "reads", "reads what is not there", "is cut off"],
)
async def test_SAMPLING_021_one_that_wants_to_be_asked_for_ever_is_not(place, era, says, most):
    orient = cycle(noop())[0]
    model = Greedy([orient], native=True, says=says)
    run, steps = await one_cycle(place, era, model)
    assert run["output"]["cycles"][0]["status"] == "parse_error"
    assert len(model.asked) <= most
    assert (run["usage"]["model_calls"], steps.get("repair", 0) <= REPAIRS) == (len(model.asked), True)
