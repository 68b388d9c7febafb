"""The register of routes: one record says who completes on a route, who pays, and what makes it available.

A route is known by name only where one of them is meant and no other; everywhere else code asks its record. A route on
which this server completes also has a maker of its model (`models/route_models.py`), by its name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.steps import DialectName

RouteName = Literal["auto", "provider", "sampling", "caller", "scripted"]
"""What a run may ask for, in the order in which arguments and settings list it."""
AUTO: RouteName = "auto"
ROUTE_TEXT = (
    "Who completes: `provider` (the model that this server is configured with), `sampling` (the model of your host), "
    "`caller` (you, by run_continue), `scripted` (a file of answers). "
    "`auto` takes the first that is there of scripted, provider, sampling and caller."
)
Answerer = Literal["server", "client", "caller"]
SERVER_ROUTE = "server"  # of what asks no model: a tool that this server runs, and what it answers itself


class Refusal(NamedTuple):
    """Why a route can't be taken, and what to do."""

    message: str
    hint: str


class Route(NamedTuple):
    name: RouteName
    why: str
    """Why `auto` chose it."""
    about: str
    """Who completes, as a person chooses it."""
    answered_by: Answerer
    """Who completes: this server by a model of its own, a client's model that it asks, or the caller itself."""
    setting: str | None = None
    """The field of `Settings` without which this server can't complete on it."""
    lacking: str | None = None
    """What a server without that setting lacks for a run on this route."""
    refusal: Refusal | None = None
    """Why it can't be taken where it is not available."""
    absence: str | None = None
    """The note where it is taken though it is not available, since somebody may come who answers."""
    kept: str | None = None
    """What a run keeps of the setting from its start, so that later values of the setting change nothing."""
    kept_refusal: Refusal | None = None
    """Why a run that was started without it can't be sent there."""
    is_paid: bool = False
    """This server asks a provider and pays. Models are named `provider:model`, have a price and may be small."""
    has_private_parts: bool = False
    """Its answers hold parts that are sent back to it alone: thinking, signatures, ids."""
    takes_options: bool = True
    """`model` and `temperature` have an effect."""
    reads_lines: bool = False
    """Each completion is the next line of a script."""
    dialect: DialectName | None = None
    """The dialect of its requests, where nobody chooses it."""


SCRIPTED = Route(
    "scripted",
    why="a script is set",
    about="a script",
    answered_by="server",
    setting="script",
    refusal=Refusal("There is no script.", "Start the server with KAIROS_SCRIPT=FILE, or use another route."),
    kept="script",
    kept_refusal=Refusal(
        "This run was started without a script, and a run keeps the script of its start.",
        "Use another route, or start a new run with KAIROS_SCRIPT=FILE.",
    ),
    takes_options=False,
    reads_lines=True,
)
PROVIDER = Route(
    "provider",
    why="a provider is configured",
    about="the provider that is configured",
    answered_by="server",
    setting="model",
    lacking="a provider (KAIROS_MODEL)",
    refusal=Refusal(
        "No provider is configured.", 'Set KAIROS_MODEL="provider:model" and its key, or use another route.'
    ),
    is_paid=True,
    has_private_parts=True,
)
SAMPLING = Route(
    "sampling",
    why="this client offers its model",
    about="a client's model",
    answered_by="client",
    absence="This client offers no sampling; the run waits for one that does (run_continue goes on).",
)
CALLER = Route(
    "caller",
    why="there is no script, no provider and no sampling to rely on, so whoever calls answers the model's turns",
    about="whoever calls the server",
    answered_by="caller",
    takes_options=False,
    dialect="native",
)

ROUTES: Mapping[str, Route] = {route.name: route for route in (SCRIPTED, PROVIDER, SAMPLING, CALLER)}
"""Every route, in the order of `auto`: the first that is available is taken."""

OUTSIDE_ROUTES = tuple(route.name for route in ROUTES.values() if route.answered_by != "server")
"""On these a completion is an open step, which waits for somebody outside this server."""
PAID_ROUTES = tuple(route.name for route in ROUTES.values() if route.is_paid)
PRIVATE_ROUTES = tuple(route.name for route in ROUTES.values() if route.has_private_parts)
SCRIPT_ROUTES = tuple(route.name for route in ROUTES.values() if route.reads_lines)


def is_answered_by(who: Answerer, name: str | None) -> bool:
    """Whether these complete on the route of this name; False where no model is asked."""
    route = ROUTES.get(name or "")
    return route is not None and route.answered_by == who


def order_routes(available: Collection[str], *, clients_first: bool) -> tuple[RouteName, ...]:
    """Return the available routes in the order of `auto`. `clients_first`: a client's model before a paid one."""
    routes = [route for name, route in ROUTES.items() if name in available]
    if clients_first:
        routes.sort(key=lambda route: (route.answered_by == "caller", route.is_paid))
    return tuple(route.name for route in routes)


def choose_route(requested: str, available: tuple[RouteName, ...]) -> tuple[RouteName, tuple[str, ...]]:
    """Return the route and the notes on it: why `auto` chose it, or that nobody answers on it yet.

    `available`: as `order_routes` returns them. Raises BadArguments for a route that can't be taken.
    """
    if requested == AUTO:
        return available[0], (_choice_note(ROUTES[available[0]]),)
    route = ROUTES.get(requested)
    if route is None:
        raise BadArguments(f"There is no route {requested[:40]!r}.", f"Routes: {', '.join(ROUTES)}, {AUTO}.")
    if route.name in available:
        return route.name, ()
    if route.refusal is not None:
        raise BadArguments(*route.refusal)
    return route.name, () if route.absence is None else (route.absence,)


def choose_paid_route(requested: str, available: tuple[RouteName, ...]) -> tuple[RouteName, tuple[str, ...]]:
    """Return the route and the notes on it where dollars are limited: `auto` skips routes without a price."""
    paid = next((name for name in available if name in PAID_ROUTES), None)
    if requested != AUTO or paid is None or paid == available[0]:
        return choose_route(requested, available)
    skipped = available[: available.index(paid)]
    lack = "has no price" if len(skipped) == 1 else "have no price"
    return paid, (f"route auto chose {paid}: limits.usd is set, and {' and '.join(skipped)} {lack}.",)


def outdated_notes(name: str) -> frozenset[str]:
    """Return the notes by which `auto` chose another route than the one that a run has now."""
    return frozenset(_choice_note(route) for route in ROUTES.values() if route.name != name)


def next_route(name: RouteName, available: tuple[RouteName, ...]) -> RouteName:
    """Return the route after this one, for a run on `auto` that nobody would answer there; the first if it is not
    available."""
    return available[available.index(name) + 1] if name in available else available[0]


def _choice_note(route: Route) -> str:
    return f"route auto chose {route.name}: {route.why}."
