"""An open connection to a provider: its client, its key, and how a request is put to it.

Importing this file imports pydantic-ai and the provider's own library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider
from pydantic_ai.settings import ModelSettings

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import Completion, JsonObject
from kairos_mcp.core.steps import Failure, RequestCompletion
from kairos_mcp.models import dialects
from kairos_mcp.models.model import ModelInput, ModelManner
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_clients import CONNECT_S, SILENT_S, Close, extra_provider
from kairos_mcp.models.provider_errors import key_variable, request_failure
from kairos_mcp.models.provider_messages import completion_of, messages_of, parameters_of
from kairos_mcp.models.provider_reply_check import reply_check_hook

NO_KEY = "none"  # sent to servers of one's own, which want some key and look at none
_SCHEMA_BESIDE_TOOLS = ("openai", "openai-chat", "openai-responses", "anthropic")  # at their own address


@dataclass(frozen=True, slots=True)
class ProviderConnection:
    """How a provider is reached. `origin` identifies it: private parts are sent back only to where they came from."""

    tariff: Tariff
    model: Model[Any]
    origin: str
    environ: Mapping[str, str]
    closing: Sequence[Close]

    @classmethod
    def to(cls, tariff: Tariff, environ: Mapping[str, str]) -> ProviderConnection:
        """Raises ConfigError, and what the provider's library raises where a key or a package is missing."""
        kind, _, name = tariff.model.partition(":")
        key = environ.get(key_variable(kind)) or None
        if key is not None and (not key.isascii() or not key.isprintable() or " " in key):
            raise ConfigError(
                f"{key_variable(kind)} holds a space, a line break or a character that no key has.",
                "Set it again, without quotes and without a line break at its end.",
            )
        http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(SILENT_S, connect=CONNECT_S, pool=CONNECT_S),
            headers={"Accept-Encoding": "identity"},  # so that a small reply can't unfold into a huge one
            event_hooks={"response": [reply_check_hook(httpx2.AsyncByteStream)]},
        )
        if kind == "openai" and tariff.base_url is not None:
            kind = "openai-chat"  # what everybody else speaks
        closing: list[Close] = [http.aclose]
        model = infer_model(f"{kind}:{name}", lambda each: _provider(each, tariff.base_url, key, http, closing))
        origin = tariff.model if tariff.base_url is None else f"{tariff.model} at {tariff.base_url}"
        return cls(tariff, model, origin, environ, closing)

    async def complete(self, model_input: ModelInput, manner: ModelManner) -> Completion | Failure:
        """One attempt."""
        kind = self.tariff.model.partition(":")[0]
        use_cache = kind == "anthropic" and manner.dialect == "native"
        tools_offered = manner.dialect == "native" and len(model_input.step.tools) > 0
        schema = self._schema(model_input.step, manner, tools_offered=tools_offered)
        messages = messages_of(model_input, manner, self.origin, use_cache=use_cache, tells_schema=schema is None)
        settings = ModelSettings(max_tokens=model_input.sent.max_tokens or model_input.step.max_tokens)
        if "max_retries" not in self.model.unsupported_settings:  # those that don't know it have theirs off otherwise
            settings["max_retries"] = 0
        if manner.temperature is not None:
            settings["temperature"] = manner.temperature
        if use_cache:
            settings["cache"] = {"messages": False}  # the newest turn has a mark of its own, before its tail
        parameters = parameters_of(model_input.step, tools_offered=tools_offered, schema=schema)
        try:
            response = await model_request(
                self.model, messages, model_settings=settings, model_request_parameters=parameters
            )
        except Exception as error:
            return request_failure(error, self.tariff, self.environ)
        return self._to_completion(response, model_input, manner)

    def _schema(self, step: RequestCompletion, manner: ModelManner, *, tools_offered: bool) -> JsonObject | None:
        """What the provider is to hold its model to, where it can."""
        if not self.model.profile.get("supports_json_schema_output"):
            return None
        if manner.dialect == "text":
            return dialects.reply_schema(step)
        at_own_address = self.tariff.base_url is None and self.tariff.model.partition(":")[0] in _SCHEMA_BESIDE_TOOLS
        return step.output_schema if at_own_address or not tools_offered else None

    def _to_completion(
        self, response: ModelResponse, model_input: ModelInput, manner: ModelManner
    ) -> Completion | Failure:
        answer = completion_of(response, model_input.path, self.origin, self.tariff, self.model.context_window)
        if manner.dialect == "text" and isinstance(answer, Completion):
            return dialects.decode_text_reply(answer, model_input.step, model_input.path)
        return answer

    async def close(self) -> None:
        for close in self.closing:
            await close()


def _provider(
    kind: str, base_url: str | None, key: str | None, http: httpx2.AsyncClient, closing: list[Close]
) -> Provider[Any]:
    """`closing` is given what else has to be closed in the end."""
    match kind, base_url:
        case "openai-chat", str():
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider(kind, base_url=base_url, api_key=key or NO_KEY, http_client=http)
        case "openai" | "openai-chat" | "openai-responses", _:
            from pydantic_ai.providers.openai import OpenAIProvider

            return OpenAIProvider(base_url=base_url, api_key=key or (NO_KEY if base_url else None), http_client=http)
        case "anthropic", _:
            from pydantic_ai.providers.anthropic import AnthropicProvider

            return AnthropicProvider(base_url=base_url, api_key=key or (NO_KEY if base_url else None), http_client=http)
        case _:
            provider, close = extra_provider(kind, base_url, key, http)
            closing.append(close)
            return provider
