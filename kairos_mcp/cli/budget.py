"""`budget`: show what is spent and left, and correct days that a wrong clock has begun."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AsJson, StateFlags
from kairos_mcp.cli.session import PERSON, find_target, person_for, with_app
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import Line, Prose, emit
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.settings import Flags
from kairos_mcp.views.words import cost_words

if TYPE_CHECKING:
    from kairos_mcp.app.app import App


def budget(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run, or mandate:ID; without one: today.")] = None,
    *,
    days: Annotated[bool, typer.Option("--days", help="The newest days in place of today.")] = False,
    trust_clock: Annotated[
        bool, typer.Option("--trust-clock", help="State that the clock is right, and later days began by mistake.")
    ] = False,
    principal: Annotated[str, typer.Option("--principal", metavar="NAME", help="With --trust-clock: whose.")] = LOCAL,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Show what is spent and left: today by whom, on earlier days, of a mandate today, or of a run."""
    if trust_clock:
        return _trust_clock(flags, principal, as_json=as_json)
    scope, caller, settings = run or ("days" if days else "day"), PERSON, read_settings(flags)
    if run is not None and not run.startswith("mandate:"):
        target = find_target(flags, run)
        scope, caller, settings = target.run_id, target.caller, target.settings

    async def look(app: App) -> JsonObject:
        return await app.records.read_spending(scope, caller)

    spending = with_app(settings, look)
    emit(spending, spending_lines(scope, spending), as_json=as_json)
    return COMPLETED


def spending_lines(scope: str, spending: JsonObject) -> Iterable[Line]:
    """Return the lines about what is spent: of the newest days, of today, or of a run."""
    if scope != "days":
        return _day_lines(scope, spending) if "day" in spending else _run_lines(scope, spending)
    spent = [f"{day['day']}  {_format_spent(day['spent'], day['unpriced'])}" for day in spending["days"]]
    return spent or ["Nothing was used yet."]


def _trust_clock(flags: Flags, principal: str, *, as_json: bool) -> int:
    """Forget the principal's days after today: a clock that was ahead had begun them."""

    async def trust(app: App) -> list[str]:
        return await app.control.trust_clock(person_for(principal))

    forgotten = with_app(read_settings(flags), trust)
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
    for user in spending["by"]:
        names = [user["route"], *(user[name] for name in ("model", "agent") if user[name])]
        mandate = f" for {user['mandate']}" if user["mandate"] else ""
        used = f"{_format_spent(user, user['unpriced'])} in {count_of(user['attempts'], 'attempt')}"
        yield f"  {' '.join(names)}{mandate}: {used}"
    for account in spending.get("mandates", ()):
        yield f"  mandate {account['mandate']}"
        yield from _limit_lines(account, "    ")


def _run_lines(run_id: str, spending: JsonObject) -> Iterator[str]:
    """A run, and its branches below it."""
    yield f"run {run_id}"
    yield from _limit_lines(spending)
    for branch in spending.get("branches", ()):
        margin = "  " * (1 + branch["branch"].count("/"))
        yield f"{margin}branch {branch['branch']}"
        yield from _limit_lines(branch, f"{margin}  ")


def _limit_lines(account: JsonObject, margin: str = "  ") -> Iterator[str]:
    """What is spent of each limit of an account."""
    for name, spent in account["spent"].items():
        limit, held = account["limits"][name], account["held"][name]
        reserved = f", {_format_amount(name, held)} reserved" if held else ""
        allowed = "no limit" if limit is None else f"of {_format_amount(name, limit)}"
        unpriced = account.get("unpriced") if name == "usd" else None  # a branch has none: its run names them
        used = f"{cost_words(spent, unpriced)} ({', '.join(unpriced)})" if unpriced else _format_amount(name, spent)
        yield f"{margin}{name:<14} {used} {allowed}{reserved}"


def _format_spent(spent: JsonObject, unpriced: list[str] | None) -> str:
    calls, tokens = count_of(spent["model_calls"], "call"), count_of(spent["total_tokens"], "token")
    return f"{calls}, {tokens}, {cost_words(spent['usd'], unpriced)}"


def _format_amount(name: str, amount: float) -> str:
    return f"${amount:.4f}" if name == "usd" else f"{amount:,g}" if isinstance(amount, float) else f"{amount:,}"
