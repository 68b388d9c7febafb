"""What the builders of specs have in common: the source of a model, the route, limits, prompts and kept texts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from sys import intern
from typing import TYPE_CHECKING

from kairos_mcp.core.agent import Agent
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import UNITS, Limits
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import (
    AUTO,
    PAID_ROUTES,
    ROUTES,
    Route,
    RouteName,
    choose_paid_route,
    choose_route,
    is_answered_by,
    order_routes,
)
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import DialectName
from kairos_mcp.models.answers import Script
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_network import network_notes
from kairos_mcp.settings.settings import Settings

if TYPE_CHECKING:
    from kairos_mcp.specs.load import LoadedSpec

SHORT_MAX_TOKENS = 2048  # a small model that goes on for longer has lost its way, and takes minutes for it
MAX_TOKENS = 4096  # wanted for one completion; what it gets depends on what is left

Texts = dict[str, str]
SMALL_CONTEXT_TOKENS = 16_000
SMALL_BILLIONS = 4.0  # of parameters
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])")


@dataclass(frozen=True, slots=True)
class BuiltSpec:
    """A spec with the texts it refers to, the limits that hold, and notes on what differs from the request."""

    spec: Spec
    texts: tuple[tuple[str, str], ...]
    limits: Limits
    notes: tuple[str, ...]


@dataclass(slots=True)
class SpecBuilder:
    """Keeps texts by their content hash while a spec is made."""

    texts: Texts = field(default_factory=dict)

    def keep(self, text: str) -> str:
        content_hash = intern(sha256(text.encode()).hexdigest())  # most texts are of many runs, whose specs keep it
        self.texts[content_hash] = text
        return content_hash


def takes_short_prompts(settings: Settings, route: str, model: str | None) -> bool:
    """Whether a run with this model gets the short prompts: as the settings say, or by itself with a provider's model
    that is known as small or whose context is."""
    if settings.prompts != "auto":
        return settings.prompts == "short"
    return route in PAID_ROUTES and (settings.context_tokens <= SMALL_CONTEXT_TOKENS or is_small_model(model or ""))


def is_small_model(name: str) -> bool:
    """Whether a model's name tells a size of at most 4 billion parameters, as `qwen2.5-coder:1.5b` does. Of several
    sizes in a name, as of a mixture of experts, the largest counts."""
    sizes = [float(number) / (1 if unit == "b" else 1_000) for number, unit in _SIZE.findall(name.lower())]
    return bool(sizes) and max(sizes) <= SMALL_BILLIONS


def dialect_for(settings: Settings, route: str, *, is_short: bool) -> tuple[DialectName, tuple[str, ...]]:
    """Return the dialect of a run, and a note where it was chosen here: `text`, unless the settings set one, where a
    provider's model was found to be small and gets the short prompts."""
    if not is_short or settings.prompts != "auto" or route not in PAID_ROUTES:
        return settings.dialect, ()
    dialect = "text" if settings.origins.get("dialect") == "default" else settings.dialect
    return dialect, (f"prompts: short, in the dialect {dialect}, since the model is small; `prompts` sets it.",)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model source of a run: the route as asked and as chosen, with its script and model."""

    asked: str
    route: RouteName
    script: str | None
    model: str | None
    notes: Sequence[str]


def left_out_note(agent: Agent | None) -> tuple[str, ...]:
    """Note what of an agent's file has no counterpart here."""
    if agent is None or not agent.left_out:
        return ()
    return (f"agent {agent.name}: of {agent.origin} is left out: {', '.join(agent.left_out)}.",)


def choose_model(wanted: str, limits: Limits, model: str | None, settings: Settings, *, samples: bool) -> ModelChoice:
    """Choose the model source of a run with these limits of its own. Raises BadArguments."""
    script = _script_text(settings)
    asked = wanted if wanted != AUTO else settings.route
    choose = choose_route if limits.nano_usd is None else choose_paid_route
    route, notes = choose(asked, available_routes(settings, samples=samples))
    is_paid = ROUTES[route].is_paid
    taken = model or (settings.model if is_paid else None)
    if is_paid and taken is not None and ":" not in taken:
        raise BadArguments(f"model: {taken[:80]!r} names no provider.", f"As {settings.model}, or leave it out.")
    if limits.nano_usd is not None or (settings.limits.nano_usd is not None and is_paid):
        refuse_unpriced(route, taken, settings)
    if is_paid and settings.limits_dollars_of_days:
        refuse_unpriced(route, taken, settings, "day.usd")
    if is_paid:
        notes = (*notes, *network_notes(settings.base_url, os.environ))
    return ModelChoice(asked, route, script, taken, notes)


def refuse_unpriced(route: str, model: str | None, settings: Settings, limit: str = "limits.usd") -> None:
    """Dollars can be kept within a limit only where each token has a price. Raises BadArguments."""
    bounds = f"{limit.partition('.')[0]}.total_tokens bounds what is used"
    if route in PAID_ROUTES and model is not None:
        if Tariff.from_settings(settings, model).highest_price() is not None:
            return
        raise BadArguments(
            f"{limit} can't be kept: the price of {model} is not known.",
            f"Set price_input and price_output, or leave usd out; {bounds}.",
        )
    raise BadArguments(f"{limit} can't be kept on the route {route}, which has no price.", f"Leave usd out; {bounds}.")


def available_routes(settings: Settings, *, samples: bool, of_run: LoadedSpec | None = None) -> tuple[RouteName, ...]:
    """Return the routes that a run could take here, best first; the caller's is always among them.

    `samples`: the client offers its model. `of_run`: a run that has begun, which keeps what its spec holds.
    """
    available = {name for name, route in ROUTES.items() if _is_available(route, settings, samples, of_run)}
    return order_routes(available, clients_first=settings.sampling == "prefer")


def _is_available(route: Route, settings: Settings, samples: bool, of_run: LoadedSpec | None) -> bool:
    match route:
        case Route(answered_by="client"):
            return samples
        case Route(kept=str(kept)) if of_run is not None:
            return getattr(of_run, kept) is not None
        case Route(setting=str(setting)):
            return getattr(settings, setting) is not None
        case _:
            return True


def may_use_sampling(settings: Settings, client: str, route: str) -> bool:
    """Whether a run may be sampled by a client that declares it: `auto` leaves out one that may never answer.

    `client`: its name and version. A request for which no answer comes can't be told from one that takes long.
    """
    asked = settings.route if route == AUTO else route
    return is_answered_by("client", asked) or not any(fnmatchcase(client, glob) for glob in settings.silent_clients)


def find_own_route(settings: Settings) -> RouteName | None:
    """Return the route on which this server completes by itself, without a client or a caller; None where none can."""
    available = available_routes(settings, samples=False)
    return next((name for name in available if is_answered_by("server", name)), None)


def narrow_limits(asked: Limits, settings: Settings, rounds: int | None = None) -> tuple[Limits, tuple[str, ...]]:
    """Return the requested limits within those of the configuration, and a note for each that was lowered. `rounds`:
    the limit on rounds where the request sets none, in place of the setting."""
    return _narrow(asked, settings.limits, settings.default_rounds if rounds is None else rounds)


@lru_cache(maxsize=64)  # most runs are started with the same
def _narrow(asked: Limits, most: Limits, rounds: int | None) -> tuple[Limits, tuple[str, ...]]:
    if asked.rounds is None:
        asked = asked._replace(rounds=rounds)
    cut = tuple(
        f"limits.{unit}: {wanted} asked, {allowed} allowed by the configuration."
        for unit, wanted, allowed in zip(UNITS, asked, most, strict=True)
        if wanted is not None and allowed is not None and wanted > allowed
    )
    return asked.within(most), cut


def load_text_prompts(settings: Settings, *, is_brief: bool = False) -> TextPrompts:
    """Read the prompts of the text dialect; those of a small model (`is_brief`) tell of the tools in fewer words."""
    tools = settings.read_prompt("text_tools-short" if is_brief else "text_tools").strip()
    final, schema, answer = (settings.read_prompt(f"text_{name}").strip() for name in ("final", "schema", "answer"))
    return TextPrompts(tools, final, schema, answer, is_brief)


def _script_text(settings: Settings) -> str | None:
    if settings.script is None:
        return None
    try:
        text = settings.script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArguments("The script can't be read.", f"Check KAIROS_SCRIPT: {error}.") from error
    Script.parse(text)
    return text
