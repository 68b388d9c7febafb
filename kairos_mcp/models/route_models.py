"""Makers of the models that this server asks by itself, by the name of the route on which it asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from kairos_mcp.core.model import Model, RemoteModel
from kairos_mcp.core.routes import PROVIDER, SCRIPTED
from kairos_mcp.models.answers import Script, scripted_model
from kairos_mcp.models.model import ModelOptions
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider import Provider


class ModelSources(NamedTuple):
    """What the model of a run may be made of."""

    options: ModelOptions
    script: Script | None
    model: str | None
    """The run's own model; a name without a provider is a hint for other routes."""
    configured_model: str | None
    find_provider: Callable[[str], Provider]


class PaidRemote(NamedTuple):
    """A model that is asked over a network, and what this server pays for it."""

    model: RemoteModel
    tariff: Tariff


def _make_scripted(sources: ModelSources) -> Model | None:
    return None if sources.script is None else scripted_model(replace(sources.script, requests=[]))


def _make_provider(sources: ModelSources) -> PaidRemote | None:
    if sources.configured_model is None:
        return None
    own = sources.model or ""
    provider = sources.find_provider(own if ":" in own else sources.configured_model)
    return PaidRemote(provider.make_model(sources.options), provider.tariff)


MAKERS: Mapping[str, Callable[[ModelSources], Model | PaidRemote | None]] = {
    SCRIPTED.name: _make_scripted,
    PROVIDER.name: _make_provider,
}
"""A maker returns None where the run, or this server, lacks what its model is made of. An answer of a `PaidRemote` is
redacted and traced by whoever makes the models of runs."""
