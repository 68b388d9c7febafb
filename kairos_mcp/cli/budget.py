"""`budget`: show what is spent and left, and correct days that a wrong clock has begun."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AsJson, Everyone, Since, StateFlags, Whose
from kairos_mcp.cli.session import find_target, person_for, with_app
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import Line, Prose, emit
from kairos_mcp.cli.times import parse_since
from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Settings
from kairos_mcp.views.words import cost_words

if TYPE_CHECKING:
    from kairos_mcp.app.app import App


def budget(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run, or mandate:ID; without one: today.")] = None,
    *,
    days: Annotated[bool, typer.Option("--days", help="The newest days in place of today.")] = False,
    principal: Whose = None,
    everyone: Everyone = False,
    since: Since = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Of this model alone.")] = None,
    trust_clock: Annotated[
        bool, typer.Option("--trust-clock", help="State that the clock is right, and later days began by mistake.")
    ] = False,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Show what was spent and what is left: today and by whom, on earlier days, for a mandate or a run."""
    _check_choice(run, days=days, everyone=everyone, since=since, model=model, trust_clock=trust_clock, whose=principal)
    settings, caller = read_settings(flags), person_for(principal or LOCAL)
    if trust_clock:
        return _trust_clock(settings, caller, as_json=as_json)
    if everyone or since is not None or (model is not None and not run):
        return _list_days(settings, None if everyone else caller.principal, since, model, as_json=as_json)
    scope = run or ("days" if days else "day")
    if run is not None and not run.startswith("mandate:"):
        target = find_target(flags, run, principal)
        scope, caller, settings = target.run_id, target.caller, target.settings

    async def look(app: App) -> JsonObject:
        return await app.records.read_spending(scope, caller)

    spending = with_app(settings, look)
    emit(spending, spending_lines(scope, spending), as_json=as_json)
    return COMPLETED


def _check_choice(
    run: str | None,
    *,
    days: bool,
    everyone: bool,
    since: str | None,
    model: str | None,
    trust_clock: bool,
    whose: str | None,
) -> None:
    """Raise BadArguments for an option that has no effect beside another."""
    given = {"--days": days, "--everyone": everyone, "--since": since, "--model": model, "--trust-clock": trust_clock}
    chosen = [name for name, value in given.items() if value]
    if run is not None and chosen:
        raise BadArguments(f"{chosen[0]} is about days, and {run[:40]} was named.", "Leave out one of them.")
    if everyone and whose is not None:
        raise BadArguments("--principal names one principal, --everyone means all.", "Give one of them.")
    if trust_clock and len(chosen) > 1:
        raise BadArguments(f"{chosen[0]} has no effect with --trust-clock.", "Leave it out.")
    if days and (everyone or since is not None or model is not None):
        raise BadArguments("--days has no effect beside --everyone, --since and --model.", "Leave it out.")


def _list_days(
    settings: Settings, principal: str | None, since: str | None, model: str | None, *, as_json: bool
) -> int:
    """Show days of one principal or of all (None), today or since then, of all models or of one."""

    async def look(app: App) -> JsonObject:
        begun = None if since is None else parse_since(since, app.now(), settings.time_zone)
        return await app.records.read_spending_by_day(principal, begun, model)

    found = with_app(settings, look)
    rows = [
        (day["day"], day["principal"], _format_spent(day["spent"], day["unpriced"]), _format_left(day["remaining"]))
        for day in found["days"]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    emit(found, lines or ["Nothing was used then."], as_json=as_json)
    return COMPLETED


def _format_left(remaining: JsonObject) -> str:
    """Say what is left of each limit of a day; empty where it has none."""
    left = [f"{_format_amount(name, amount)} {name}" for name, amount in remaining.items() if amount is not None]
    return f"left {', '.join(left)}" if left else ""


def spending_lines(scope: str, spending: JsonObject) -> Iterable[Line]:
    """Return the lines about what is spent: of the newest days, of today, or of a run."""
    if scope != "days":
        return _day_lines(scope, spending) if "day" in spending else _run_lines(scope, spending)
    spent = [f"{day['day']}  {_format_spent(day['spent'], day['unpriced'])}" for day in spending["days"]]
    return spent or ["Nothing was used yet."]


def _trust_clock(settings: Settings, caller: Caller, *, as_json: bool) -> int:
    """Forget the principal's days after today: a clock that was ahead had begun them."""

    async def trust(app: App) -> list[str]:
        return await app.control.trust_clock(caller)

    forgotten = with_app(settings, trust)
    line = "No later day has begun, so nothing was corrected."
    if forgotten:
        line = f"No longer counted as begun: {', '.join(forgotten)}. Its usage counts once that day comes."
    emit({"no_longer_begun": forgotten}, [line], as_json=as_json)
    return COMPLETED


def _day_lines(scope: str, spending: JsonObject) -> Iterator[Line]:
    """Today, of everything or of one mandate."""
    of = f"mandate {spending['scope'].partition(':')[2]}, " if scope != "day" else ""
    yield Prose(f"{of}{spending['day']} ({spending['time_zone']}), until {spending['resets_at']}", has_times=True)
    if "note" in spending:
        yield f"  {spending['note']}"
    yield from _limit_lines(spending)
    yield from _lost_lines(spending)
    for user in spending["by"]:
        names = [user["route"], *(user[name] for name in ("model", "agent") if user[name])]
        mandate = f" for {user['mandate']}" if user["mandate"] else ""
        used = f"{_format_spent(user, user['unpriced'])} in {count_of(user['attempts'], 'attempt')}"
        yield f"  {' '.join(names)}{mandate}: {used}"
    for account in spending.get("groups", ()):
        yield f"  group {account['group']}, which shares this"
        yield from _limit_lines(account, "    ")
    for account in spending.get("mandates", ()):
        yield f"  mandate {account['mandate']}"
        yield from _limit_lines(account, "    ")


def _run_lines(run_id: str, spending: JsonObject) -> Iterator[str]:
    """A run, and its branches below it."""
    yield f"run {run_id}"
    yield from _limit_lines(spending)
    yield from _lost_lines(spending)
    for branch in spending.get("branches", ()):
        margin = "  " * (1 + branch["branch"].count("/"))
        yield f"{margin}branch {branch['branch']}"
        yield from _limit_lines(branch, f"{margin}  ")


def _lost_lines(spending: JsonObject) -> Iterator[str]:
    """Say what of it is the bound of model calls whose outcome is unknown, as after a kill: at most that was used."""
    if "at_bound" in spending:
        yield f"  of this for calls of unknown outcome, at their bounds: {_format_spent(spending['at_bound'], None)}"


def _limit_lines(account: JsonObject, margin: str = "  ") -> Iterator[str]:
    """What is spent of each limit of an account."""
    for name, spent in account["spent"].items():
        limit, held = account["limits"][name], account["held"][name]
        reserved = f", {_format_amount(name, held)} reserved" if held else ""
        allowed = "(no limit)" if limit is None else f"of {_format_amount(name, limit)}"
        unpriced = account.get("unpriced") if name == "usd" else None  # a branch has none: its run names them
        used = f"{cost_words(spent, unpriced)} ({', '.join(unpriced)})" if unpriced else _format_amount(name, spent)
        yield f"{margin}{name:<14} {used} {allowed}{reserved}"


def _format_spent(spent: JsonObject, unpriced: list[str] | None) -> str:
    calls, tokens = count_of(spent["model_calls"], "call"), count_of(spent["total_tokens"], "token")
    return f"{calls}, {tokens}, {cost_words(spent['usd'], unpriced)}"


def _format_amount(name: str, amount: float) -> str:
    return f"${amount:.4f}" if name == "usd" else f"{amount:,g}" if isinstance(amount, float) else f"{amount:,}"
