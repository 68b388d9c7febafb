"""Who thinks: the route that `auto` takes, and the one that comes after it. The only place that knows their order."""

from __future__ import annotations

from dataclasses import dataclass

from kairos_mcp.core.errors import BadArguments


@dataclass(frozen=True, slots=True)
class AvailableRoutes:
    """What there is to think with: a script, a configured provider, a client that offers its model."""

    script: bool
    provider: bool
    sampling: bool
    sampling_first: bool = False

    def in_order(self) -> tuple[str, ...]:
        """The routes that could be taken, best first; the caller is always there."""
        between = ("sampling", "provider") if self.sampling_first else ("provider", "sampling")
        order = ("scripted", *between, "caller")
        has = {"scripted": self.script, "provider": self.provider, "sampling": self.sampling, "caller": True}
        return tuple(route for route in order if has[route])


def choose_route(wanted: str, minds: AvailableRoutes) -> tuple[str, tuple[str, ...]]:
    """The route, and the note that says why where `auto` chose it. Raises BadArguments for one that is not there."""
    if wanted == "auto":
        route = minds.in_order()[0]
        return route, (f"route auto chose {route}: {_REASONS[route]}.",)
    if wanted == "scripted" and not minds.script:
        raise BadArguments("There is no script.", "Start the server with KAIROS_SCRIPT=FILE, or use another route.")
    if wanted == "provider" and not minds.provider:
        raise BadArguments(
            "No provider is configured.", 'Set KAIROS_MODEL="provider:model" and its key, or use another route.'
        )
    if wanted == "sampling" and not minds.sampling:
        return wanted, ("This client offers no sampling; the run waits for one that does (run_continue goes on).",)
    return wanted, ()


def route_after_sampling(minds: AvailableRoutes) -> str:
    """The route for a run on `auto` whose client would not answer."""
    there = minds.in_order()
    return there[there.index("sampling") + 1] if "sampling" in there else there[0]


_REASONS = {
    "scripted": "a script is set",
    "provider": "a provider is configured",
    "sampling": "this client offers its model",
    "caller": "there is no script, no provider and no sampling, so you answer through run_continue",
}
