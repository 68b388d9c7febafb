"""The hints of what moves runs state the most that a run may do under a configuration, as a client is sent them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from kairos_mcp.core.builtin_tools import BUILTIN, WORKSPACE_TOOLS
from kairos_mcp.core.effects import EFFECTS, Effect
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.server.annotations import MOVES_RUNS, TOOLS_OF_PHASES, possible_effect
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule, ServerSetting

ALLOW_EDITS, ALLOW_ALL = (GateRule("edit_*", "allow"),), (GateRule("*", "allow"),)
COMMANDS = (GateRule("run_command", "allow"),)
SERVER = ServerSetting("x", ("x",), effects=(("look", "read"), ("put", "idempotent")))
READS = ServerSetting("y", ("y",), effects=(("*", "read"),))


@pytest.mark.parametrize(
    ("changes", "destructive", "open_world"),
    [
        ({}, False, False),
        ({"gate": ALLOW_EDITS}, True, False),
        ({"gate": (GateRule("edit_*", "allow", ("docs/*",)),)}, True, False),
        ({"gate": (GateRule("edit_*", "deny"), *ALLOW_EDITS)}, False, False),
        ({"gate": (GateRule("*", "ask"), *ALLOW_EDITS)}, False, False),
        ({"gate": COMMANDS}, True, True),
        ({"gate": ALLOW_ALL}, True, False),  # what can't be undone is not allowed by a star
        ({"gate": (GateRule("*", "allow", effect="irreversible"),)}, True, True),
        ({"gate": COMMANDS, "commands": "off"}, False, False),
        ({"approvals": "host"}, True, True),
        ({"approvals": "host", "commands": "off"}, True, False),
        ({"approvals": "host", "workspaces": ()}, False, False),
        ({"approvals": "host", "gate": (GateRule("*", "deny"),)}, False, False),
        ({"servers": (READS,), "workspaces": ()}, False, True),
        ({"servers": (SERVER,), "workspaces": (), "gate": (GateRule("x__put", "allow"),)}, True, True),
        ({"servers": (SERVER,), "workspaces": (), "gate": (GateRule("y__*", "allow"),)}, False, True),
    ],
)
async def test_a_tool_that_moves_runs_states_the_most_that_they_may_do(
    settings, connect, changes, destructive, open_world
) -> None:
    async with connect(replace(settings, **changes)) as client:
        for _ in range(2):  # the same at each look
            for tool in (await client.raw.list_tools()).tools:
                if tool.name in MOVES_RUNS - TOOLS_OF_PHASES.keys():
                    hints = tool.annotations
                    assert (hints.destructive_hint, hints.open_world_hint) == (destructive, open_world), tool.name
                    assert (hints.read_only_hint, hints.idempotent_hint) == (False, not destructive)
                elif tool.name in MOVES_RUNS:  # a phase that edits nothing
                    hints, runs_commands = tool.annotations, tool.name == "ooda_reflect" and (destructive, open_world)
                    if runs_commands == (True, True) and not changes.get("servers"):
                        assert (hints.destructive_hint, hints.open_world_hint) == (True, True)
                    else:
                        assert (hints.destructive_hint, hints.open_world_hint) == (False, bool(changes.get("servers")))


RULES = [
    GateRule(glob, verdict, paths, effect=effect)
    for glob, verdict, paths, effect in product(
        ("*", "edit_file", "edit_*", "run_command"), ("allow", "ask", "deny"), ((), ("a/*",)), (None, "irreversible")
    )
]


def test_what_the_gate_lets_through_is_never_above_what_is_stated() -> None:
    base = Settings(home=Path("/nowhere"), config_dirs=(), workspaces=(Path("/somewhere"),))
    changes = [(tool.name, tool.effect) for tool in BUILTIN.values() if tool.name in WORKSPACE_TOOLS]
    changes = [(name, effect) for name, effect in changes if effect != "read"]
    for pair in product(RULES, repeat=2):
        gate, (most, _) = Gate(pair), possible_effect(replace(base, gate=pair))
        for name, effect in changes:
            for path in ("a/b", "c"):
                assert _is_stated(gate, name, effect, path, most), (pair, name, path)


def _is_stated(gate: Gate, name: str, effect: Effect, path: str, most: Effect) -> bool:
    spec = ToolSpec(name, "", {"type": "object", "properties": {"path": {"type": "string"}}}, effect=effect)
    let_through = gate.judge(GatedCall(spec, {"path": path})).decision == "allow"
    return not let_through or EFFECTS.index(most) >= EFFECTS.index(effect)
