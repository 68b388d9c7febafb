"""The command `budget`: what is spent and left today, on whom, and on the days before."""

from __future__ import annotations

import os

from kairos_mcp.app.app import App
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.output import dollars
from kairos_mcp.cli.session import PERSON, person, with_host
from kairos_mcp.cli.speech import say, say_json
from kairos_mcp.core.counting import count_of
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags


def show_budget(flags: Flags, run_id: str | None, *, days: bool, as_json: bool) -> int:
    """Today, the newest days, a mandate's day (`mandate:ID`), or a run."""
    scope = run_id or ("days" if days else "day")

    async def look(host: App) -> JsonObject:
        return host.spending(scope, PERSON)

    told = with_host(load_settings(flags, os.environ), look)
    if as_json:
        say_json(told)
        return COMPLETED
    match scope:
        case "days":
            for each in told["days"]:
                say(f"{each['day']}  {_amounts(each['spent'], each['unpriced'])}")
            if not told["days"]:
                say("Nothing was used yet.")
        case _ if "day" in told:
            of = f"mandate {told['scope'].partition(':')[2]}, " if scope != "day" else ""
            say(f"{of}{told['day']} ({told['time_zone']}), until {told['resets_at']}")
            if "note" in told:
                say(f"  {told['note']}")
            _say_figures(told)
            for each in told["by"]:
                whom = [each["route"], *(each[name] for name in ("model", "agent") if each[name])]
                mandate = f" for {each['mandate']}" if each["mandate"] else ""
                used = f"{_amounts(each, each['unpriced'])} in {count_of(each['attempts'], 'attempt')}"
                say(f"  {' '.join(whom)}{mandate}: {used}")
            for each in told.get("mandates", ()):
                say(f"  mandate {each['mandate']}")
                _say_figures(each, "    ")
        case _:
            say(f"run {scope}")
            _say_figures(told)
            for each in told.get("branches", ()):
                deep = "  " * (1 + each["branch"].count("/"))
                say(f"{deep}branch {each['branch']}")
                _say_figures(each, f"{deep}  ")
    return COMPLETED


def correct_days(flags: Flags, principal: str, *, as_json: bool) -> int:
    """A person's word that the clock is right: days after today that were begun count as begun no more."""

    async def trust(host: App) -> list[str]:
        return await host.trust_clock(person(principal))

    gone = with_host(load_settings(flags, os.environ), trust)
    if as_json:
        say_json({"no_longer_begun": gone})
    elif gone:
        say(f"No longer counted as begun: {', '.join(gone)}. What was used on it counts when it comes.")
    else:
        say("No day after today was begun: there was nothing to correct.")
    return COMPLETED


def _say_figures(told: JsonObject, margin: str = "  ") -> None:
    for name, spent in told["spent"].items():
        limit, held = told["limits"][name], told["held"][name]
        reserved = f", {_figure(name, held)} reserved" if held else ""
        allowed = "no limit" if limit is None else f"of {_figure(name, limit)}"
        uncounted = told.get("unpriced") if name == "usd" else None  # a branch is part of a run, which says it
        used = f"{dollars(spent, uncounted)} ({', '.join(uncounted)})" if uncounted else _figure(name, spent)
        say(f"{margin}{name:<14} {used} {allowed}{reserved}")


def _amounts(spent: JsonObject, unpriced: list[str] | None) -> str:
    calls, tokens = count_of(spent["model_calls"], "call"), count_of(spent["total_tokens"], "token")
    return f"{calls}, {tokens}, {dollars(spent['usd'], unpriced)}"


def _figure(name: str, amount: float) -> str:
    return f"${amount:.4f}" if name == "usd" else f"{amount:,g}" if isinstance(amount, float) else f"{amount:,}"
