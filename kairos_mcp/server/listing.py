"""Which tools are listed. The list is made from table.py ahead of time; a test fails when it is stale."""

from __future__ import annotations

from pathlib import Path

import mcp_types as wire

from kairos_mcp.core.errors import ConfigError

LISTING = Path(__file__).with_name("listing.json")
LEAN = ("planner_run", "run_status", "run_continue")
CORE = (
    *("planner_run", "ooda_run", "mandate_save", "run_status", "run_continue"),
    *("run_control", "run_trace", "registry_search", "budget_status"),
)


def list_tools(choice: str) -> wire.ListToolsResult:
    """The tools of `--tools`: lean, core, all, or names with commas between; always in the table's order."""
    listing = wire.ListToolsResult.model_validate_json(LISTING.read_bytes())
    known = tuple(tool.name for tool in listing.tools)
    names = {"lean": LEAN, "core": CORE, "all": known}.get(choice)
    if names is None:
        names = tuple(name.strip() for name in choice.split(","))
    for name in names:
        if name not in known:
            raise ConfigError(
                f"There is no tool {name[:80]!r} to list.",
                f"Use lean, core, all, or names of: {', '.join(known)}.",
            )
    return wire.ListToolsResult(tools=[tool for tool in listing.tools if tool.name in names])
