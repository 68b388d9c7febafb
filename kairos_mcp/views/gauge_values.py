"""The values of the gauges that are read from rows, by their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kairos_mcp.store.gauges import PAUSE_REASONS, WAIT_KINDS, DayUse, LivingServers, StoreGauges
from kairos_mcp.store.span_rows import OpenRuns
from kairos_mcp.telemetry import names

if TYPE_CHECKING:
    from kairos_mcp.telemetry.recorder import Values

GAUGES_OF_ROWS = (
    *(names.OPEN_RUNS, names.APPROVALS_WAITING, names.PAUSED_RUNS, names.OLDEST_WAIT, names.LIVING_SERVERS),
    *(names.FREE_SLOTS, names.BUDGET_SPENT, names.BUDGET_LEFT),
)
NOTHING_STORED = StoreGauges(
    OpenRuns(0, 0, 0, 0), dict.fromkeys(PAUSE_REASONS, 0), dict.fromkeys(WAIT_KINDS, 0), LivingServers(0, 0, 0)
)
"""How a store stands that was not made yet."""


def gauge_values(stands: StoreGauges, approvals: int, used: Sequence[DayUse]) -> Mapping[str, Values]:
    """Return the values of each gauge, by its name. `used`: what principals use of their day, who used most first; the
    first are shown by name, and the others as one."""
    shown = used[: names.MAX_LABEL_VALUES]
    spent: dict[tuple[str, ...], float] = {
        (each.principal, unit): amount for each in shown for unit, amount in each.spent.items()
    }
    for each in used[len(shown) :]:
        for unit, amount in each.spent.items():
            spent[names.OTHER, unit] = spent.get((names.OTHER, unit), 0) + amount
    living = stands.living
    values: dict[names.Metric, Values] = {
        names.OPEN_RUNS: {(state,): count for state, count in stands.open_runs._asdict().items()},
        names.APPROVALS_WAITING: {(): approvals},
        names.PAUSED_RUNS: {(reason,): count for reason, count in stands.paused.items()},
        names.OLDEST_WAIT: {(kind,): waited / 1000 for kind, waited in stands.waits_ms.items()},
        names.LIVING_SERVERS: {("server",): living.servers, ("worker",): living.workers},
        names.FREE_SLOTS: {(): living.free_slots},
        names.BUDGET_SPENT: spent,
        names.BUDGET_LEFT: {(each.principal, unit): left for each in shown for unit, left in each.left.items()},
    }
    return {metric.name: found for metric, found in values.items()}
