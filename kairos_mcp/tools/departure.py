"""Marks in a run's rows that a call leaves, right before its first byte: nobody is asked about one that never left.

Only irreversible calls are marked (`ToolContext.is_marked`), since a mark is a commit. The mark goes with the call's
answer, as the intents of edits do.
"""

from __future__ import annotations

from collections.abc import Callable

from kairos_mcp.core.effects import Effect, is_stricter
from kairos_mcp.core.errors import NoSpace, NotMarked, StoreBusy, StoreUnavailable
from kairos_mcp.core.tool import ProbeResult, Tool, ToolContext
from kairos_mcp.store.tool_intents import intent_name

LEFT = "{}"


def mark_departure(ctx: ToolContext) -> None:
    """Mark that the call leaves now, where it is to be marked. Raises NotMarked if the store does not take the mark,
    FenceLost, and Stale for a call that has its answer already."""
    if not ctx.is_marked:
        return
    try:
        ctx.memory.keep(intent_name(ctx.path), LEFT)
    except (NoSpace, StoreBusy, StoreUnavailable) as error:
        raise NotMarked(str(error)) from error


def check_before_leaving(ctx: ToolContext, effect: Effect) -> Callable[[], None]:
    """Return the check to make before each part of a call is sent (`ToolContext.recheck_for`): before the first one it
    also marks that the call leaves."""
    recheck = ctx.recheck_for(effect)
    has_left = not ctx.is_marked

    def check() -> None:
        nonlocal has_left
        if has_left:
            recheck()
            return
        if ctx.check_paths is not None:
            ctx.check_paths()
        mark_departure(ctx)  # which checks the owner
        has_left = True

    return check


def probe_departure(tool: Tool, effect: Effect, ctx: ToolContext) -> ProbeResult:
    """Say of an interrupted call, by the effect with which it was begun, whether it may be made again: it never left,
    or the other end still knows its key. A clock that was set back proves nothing, and nothing does for a tool whose
    effect is stricter by now: a key is not enough then, and what was begun before has no mark."""
    if is_stricter(tool.spec.effect, effect):
        return ProbeResult("unclear")
    if effect == "keyed":
        may_repeat = 0 <= ctx.begun_s_ago < tool.key_life_s
    else:
        may_repeat = effect == "irreversible" and ctx.memory.recall(intent_name(ctx.path)) is None
    return ProbeResult("not_done" if may_repeat else "unclear")
