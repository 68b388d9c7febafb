"""The models that runs ask in this server: a run's script, and those of providers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kairos_mcp.core.model import Model, RemoteModel
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.routes import ROUTES
from kairos_mcp.core.steps import DialectName, Failure
from kairos_mcp.execution.executor import AgentModel, PaidModel
from kairos_mcp.models.model import ModelOptions, SpokenText, let_hear, redact_model, report_failures
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider import Provider
from kairos_mcp.models.route_models import MAKERS, ModelSources, PaidRemote
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.queries import RunRow
from kairos_mcp.telemetry.names import PROVIDER_ERRORS
from kairos_mcp.telemetry.tally import PROCESS_TALLY

if TYPE_CHECKING:
    from kairos_mcp.app.run_tracing import RunTracing

log = logging.getLogger(__name__)

_DIALECTS = {name: route.dialect for name, route in ROUTES.items() if route.dialect is not None}


class ModelsOfRun(NamedTuple):
    """The models of one run. `by_route` and `by_agent`: those that it asks here; `paid`: by route, what is paid for
    them; `dialects`: by route, where it depends on no client."""

    by_route: Mapping[str, Model]
    paid: Mapping[str, PaidModel]
    dialects: Mapping[str, DialectName]
    by_agent: Mapping[str, AgentModel]


class RunModels:
    """Makes the models of runs; a connection to a provider is shared by all that ask the same model.

    `read_key` reads the key that a setting refers to. `on_spoken` is called with what a model says while it says it,
    `on_failure` with each failure of a provider.
    """

    def __init__(
        self, settings: Settings, redactor: Redactor, read_key: Callable[[str], str], tracing: RunTracing | None
    ) -> None:
        self._settings = settings
        self._redactor = redactor
        self._read_key = read_key
        self._tracing = tracing
        self._providers: dict[str, Provider] = {}
        self.on_spoken: Callable[[SpokenText], None] | None = None
        self.on_failure: Callable[[str, Failure], None] | None = None

    def make(self, run: RunRow, loaded: LoadedSpec) -> ModelsOfRun:
        """Make the models that a run asks here."""
        by_route: dict[str, Model] = {}
        paid: dict[str, PaidModel] = {}
        dialects = dict(_DIALECTS)
        dialect = loaded.spec.dialect or self._settings.dialect
        options = ModelOptions(loaded.spec.temperature, dialect, loaded.text_prompts)
        configured = self._settings.model
        sources = ModelSources(options, loaded.script, loaded.spec.model, configured, self._provider)
        for route, make in MAKERS.items():
            made = make(sources)
            if isinstance(made, PaidRemote):
                by_route[route] = self._wrap_model(made.model, run)
                dialects[route] = dialect
                paid[route] = _paid_model(made.tariff)
            elif made is not None:
                by_route[route] = made
        by_agent = {} if loaded.team is None else self._agent_models(loaded.team.models, options, run)
        return ModelsOfRun(by_route, paid, dialects, by_agent)

    async def check_provider(self, model: str) -> None:
        """Raise ConfigError where this model can't be asked: its key, a package or a setting is missing."""
        await self._provider(model).check()

    async def close(self) -> None:
        """Close the connections to providers."""
        for provider in self._providers.values():
            await provider.close()

    def _wrap_model(self, model: RemoteModel, run: RunRow) -> Model:
        """Have what a model answers over a network redacted, traced, and heard by whoever wants to."""
        model = redact_model(model, self._redactor)
        if self._tracing is not None:
            model = self._tracing.trace_model(model, run)
        model = report_failures(model, self.on_failure or partial(_log_failure, run.id))
        return model if self.on_spoken is None else let_hear(model, run.id, self.on_spoken)

    def _agent_models(self, names: Mapping[str, str], options: ModelOptions, run: RunRow) -> Mapping[str, AgentModel]:
        """Return the models of agents that have one of their own; a name without a provider is a hint for other
        routes."""
        models: dict[str, AgentModel] = {}
        for agent, name in names.items():
            if self._settings.model is None or ":" not in name:
                models[agent] = AgentModel(name)
            else:
                provider = self._provider(name)
                models[agent] = AgentModel(
                    name, self._wrap_model(provider.make_model(options), run), _paid_model(provider.tariff)
                )
        return models

    def _provider(self, model: str) -> Provider:
        if model not in self._providers:
            reference = self._settings.model_key
            # The key goes to the configured provider, and nowhere else.
            is_configured = model.partition(":")[0] == (self._settings.model or "").partition(":")[0]
            key = None if reference is None or not is_configured else lambda: self._read_key(reference)
            self._providers[model] = Provider(Tariff.from_settings(self._settings, model), key=key)
        return self._providers[model]


def _log_failure(run_id: str, path: str, failure: Failure) -> None:
    """Log and count a failure of a provider, where no command shows it to a person."""
    PROCESS_TALLY.add(PROVIDER_ERRORS, failure.code)
    log.warning("the provider failed at %s of %s: %s (%s)", path, run_id, failure.message, failure.code)


def _paid_model(tariff: Tariff) -> PaidModel:
    return PaidModel(tariff.model, tariff.highest_price())
