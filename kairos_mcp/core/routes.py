"""Routes to a model: which one `auto` takes, and which comes next. The only place that knows their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kairos_mcp.core.errors import BadArguments

Route = Literal["auto", "provider", "sampling", "caller", "scripted"]
CLIENT_ROUTES = ("caller", "sampling")  # completions on these routes wait for somebody outside this server
SERVER_ROUTE = "server"  # of what asks no model: a tool that this server runs, and what it answers itself


@dataclass(frozen=True, slots=True)
class AvailableRoutes:
    """The model sources there are: a script, a configured provider, a client that offers its model."""

    script: bool
    provider: bool
    sampling: bool
    sampling_first: bool = False

    def in_order(self) -> tuple[str, ...]:
        """Return the routes that could be taken, best first; the caller is always among them."""
        between = ("sampling", "provider") if self.sampling_first else ("provider", "sampling")
        order = ("scripted", *between, "caller")
        has = {"scripted": self.script, "provider": self.provider, "sampling": self.sampling, "caller": True}
        return tuple(route for route in order if has[route])


def choose_route(requested: str, available: AvailableRoutes) -> tuple[str, tuple[str, ...]]:
    """Return the route, and a note that says why where `auto` chose it. Raises BadArguments for one that is missing."""
    if requested == "auto":
        route = available.in_order()[0]
        return route, (_choice_note(route),)
    if requested == "scripted" and not available.script:
        raise BadArguments("There is no script.", "Start the server with KAIROS_SCRIPT=FILE, or use another route.")
    if requested == "provider" and not available.provider:
        raise BadArguments(
            "No provider is configured.", 'Set KAIROS_MODEL="provider:model" and its key, or use another route.'
        )
    if requested == "sampling" and not available.sampling:
        return requested, ("This client offers no sampling; the run waits for one that does (run_continue goes on).",)
    return requested, ()


def outdated_notes(route: str) -> frozenset[str]:
    """Return the notes by which `auto` chose another route than the one that a run has now."""
    return frozenset(_choice_note(other) for other in _REASONS if other != route)


def _choice_note(route: str) -> str:
    return f"route auto chose {route}: {_REASONS[route]}."


def route_after_sampling(available: AvailableRoutes) -> str:
    """Return the next route for a run on `auto` whose client would not answer."""
    routes = available.in_order()
    return routes[routes.index("sampling") + 1] if "sampling" in routes else routes[0]


_REASONS = {
    "scripted": "a script is set",
    "provider": "a provider is configured",
    "sampling": "this client offers its model",
    "caller": "there is no script, no provider and no sampling to rely on, so you answer through run_continue",
}
