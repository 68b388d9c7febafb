"""Make the models that this server asks by itself: a run's script, and those of providers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kairos_mcp.core.messages import Completion
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import DialectName, Failure
from kairos_mcp.execution.executor import AgentModel, PaidModel
from kairos_mcp.models.model import Model, ModelInput, ModelOptions, SpokenText, let_hear, redact_model
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider import Provider
from kairos_mcp.models.scripted import Script, ScriptedAnswer
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.queries import RunRow

if TYPE_CHECKING:
    from kairos_mcp.app.run_tracing import RunTracing

_DIALECTS: Mapping[str, DialectName] = {"caller": "native"}  # of the routes whose dialect is always the same


class ModelsOfRun(NamedTuple):
    """The models of one run. `by_route` and `by_agent`: those that it asks here; `paid`: by route, what is paid for
    them; `dialects`: by route, where it depends on no client."""

    by_route: Mapping[str, Model]
    paid: Mapping[str, PaidModel]
    dialects: Mapping[str, DialectName]
    by_agent: Mapping[str, AgentModel]


class RunModels:
    """Makes the models of runs; a connection to a provider is shared by all that ask the same model.

    `read_key` reads the key that a setting refers to. `on_spoken` is called with what a model says while it says it.
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

    def make(self, run: RunRow, loaded: LoadedSpec) -> ModelsOfRun:
        """Make the models that a run asks here."""
        by_route: dict[str, Model] = {}
        paid: dict[str, PaidModel] = {}
        dialects = _DIALECTS
        if loaded.script:
            by_route["scripted"] = scripted_model(replace(loaded.script, requests=[]))
        dialect = loaded.spec.dialect or self._settings.dialect
        options = ModelOptions(loaded.spec.temperature, dialect, loaded.text_prompts)
        if self._settings.model is not None:
            model = loaded.spec.model or ""  # a name without a provider is a hint for other routes
            provider = self._provider(model if ":" in model else self._settings.model)
            dialects = {**_DIALECTS, "provider": dialect}
            by_route["provider"] = self._make_model(provider, options, run)
            paid["provider"] = _paid_model(provider)
        by_agent = {} if loaded.team is None else self._agent_models(loaded.team.models, options, run)
        return ModelsOfRun(by_route, paid, dialects, by_agent)

    async def check_provider(self, model: str) -> None:
        """Raise ConfigError where this model can't be asked: its key, a package or a setting is missing."""
        await self._provider(model).check()

    async def close(self) -> None:
        """Close the connections to providers."""
        for provider in self._providers.values():
            await provider.close()

    def _make_model(self, provider: Provider, options: ModelOptions, run: RunRow) -> Model:
        model = redact_model(provider.make_model(options), self._redactor)
        if self._tracing is not None:
            model = self._tracing.trace_model(model, run)
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
                models[agent] = AgentModel(name, self._make_model(provider, options, run), _paid_model(provider))
        return models

    def _provider(self, model: str) -> Provider:
        if model not in self._providers:
            reference = self._settings.model_key
            key = None if reference is None or not self._is_configured(model) else lambda: self._read_key(reference)
            self._providers[model] = Provider(Tariff.from_settings(self._settings, model), key=key)
        return self._providers[model]

    def _is_configured(self, model: str) -> bool:
        """Whether a model is of the configured provider: the key goes nowhere else."""
        return model.partition(":")[0] == (self._settings.model or "").partition(":")[0]


def _paid_model(provider: Provider) -> PaidModel:
    return PaidModel(provider.tariff.model, provider.tariff.highest_price())


def scripted_model(script: Script) -> Model:
    """Make a model of a script: each completion takes the line that was reserved for its step."""

    async def answer_late(line: ScriptedAnswer) -> Completion | Failure:
        await asyncio.sleep(line.delay_s)
        return line.answer

    def complete(model_input: ModelInput) -> Completion | Failure | Awaitable[Completion | Failure]:
        number = -1 if model_input.sent.line is None else model_input.sent.line
        line = script.answer_for(model_input.path, number, model_input.step)
        return answer_late(line) if line.delay_s else line.answer

    return complete
