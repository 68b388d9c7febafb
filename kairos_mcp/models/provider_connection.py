"""An open connection to a provider: its client, its key, and how a request is made.

Importing this file imports pydantic-ai and the provider's own library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import httpx2
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider
from pydantic_ai.settings import ModelSettings

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import Completion, JsonObject
from kairos_mcp.core.model import ModelInput
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Failure, RequestCompletion, call_path
from kairos_mcp.models import dialects
from kairos_mcp.models.model import ModelOptions
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_clients import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Close, make_extra_provider
from kairos_mcp.models.provider_errors import key_variable, request_failure
from kairos_mcp.models.provider_messages import (
    decode_completion,
    encode_messages,
    find_reasoning_details,
    make_parameters,
    to_wire_id,
    with_reported_usage,
)
from kairos_mcp.models.provider_network import client_options, describe_way
from kairos_mcp.models.replies.border import reply_hook, request_hook
from kairos_mcp.models.replies.exchange import Exchange, exchanging
from kairos_mcp.models.written_calls import take_written_call

NO_KEY = "none"  # for the user's own servers, which require a key and don't check it
_STREAMS = ("openai", "openai-chat", "openai-responses", "anthropic")  # whose events are put together as they come
_SCHEMA_BESIDE_TOOLS = ("openai", "openai-chat", "openai-responses", "anthropic")  # at their own address


@dataclass(frozen=True, slots=True)
class ProviderConnection:
    """A provider's client. `origin` identifies the provider: private parts go back only to where they came from."""

    tariff: Tariff
    model: Model[Any]
    origin: str
    environ: Mapping[str, str]
    close_functions: Sequence[Close]
    refused: set[str] = field(default_factory=set)  # the variations by which this server has to be asked

    @classmethod
    def open(cls, tariff: Tariff, environ: Mapping[str, str]) -> ProviderConnection:
        """Make the client. Raises ConfigError, and what the provider's library raises without a key or a package."""
        kind, _, name = tariff.model.partition(":")
        key = environ.get(key_variable(kind)) or None
        if key is not None and (not key.isascii() or not key.isprintable() or " " in key):
            raise ConfigError(
                f"{key_variable(kind)} holds a space, a line break or a character that no key has.",
                "Set it again, without quotes and without a line break at its end.",
            )
        http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
            headers={"Accept-Encoding": "identity"},  # so that a small reply can't unfold into a huge one
            event_hooks={
                "request": [request_hook(httpx2.AsyncByteStream)],
                "response": [reply_hook(httpx2.AsyncByteStream)],
            },
            **client_options(tariff.base_url, environ),
        )
        if kind == "openai" and tariff.base_url is not None:
            kind = "openai-chat"  # the protocol of every other server that claims to be compatible
        close_functions: list[Close] = [http.aclose]
        model = infer_model(
            f"{kind}:{name}", lambda name: _make_provider(name, tariff.base_url, key, http, close_functions)
        )
        origin = tariff.model if tariff.base_url is None else f"{tariff.model} at {tariff.base_url}"
        return cls(tariff, model, origin, environ, close_functions)

    async def complete(self, model_input: ModelInput, options: ModelOptions) -> Completion | Failure:
        """Make one attempt."""
        kind = self.tariff.model.partition(":")[0]
        use_cache = kind == "anthropic" and options.dialect == "native"
        tools_offered = options.dialect == "native" and len(model_input.step.tools) > 0
        schema = self._enforced_schema(model_input.step, options, tools_offered=tools_offered)
        messages = encode_messages(
            model_input, options, self.origin, use_cache=use_cache, describes_schema=schema is None
        )
        settings = ModelSettings(max_tokens=model_input.sent.max_tokens or model_input.step.max_tokens)
        if "max_retries" not in self.model.unsupported_settings:  # of others the retries are off in their client
            settings["max_retries"] = 0
        if model_input.headers is not None and "extra_headers" not in self.model.unsupported_settings:
            settings["extra_headers"] = dict(model_input.headers)
        if options.temperature is not None:
            settings["temperature"] = options.temperature
        if use_cache:
            settings["cache"] = {"messages": False}  # the newest turn has a mark of its own, before its tail
        parameters = make_parameters(model_input.step, tools_offered=tools_offered, schema=schema)
        exchange = self._exchange(model_input, options, messages)
        try:
            with exchanging(exchange):
                response = await model_request(
                    self.model, messages, model_settings=settings, model_request_parameters=parameters
                )
            return self._to_completion(response, model_input, options, exchange)
        except Exception as error:
            address = describe_way(self.tariff.base_url or self.model.base_url, self.environ)
            failure = request_failure(error, self.tariff, self.environ, address, exchange)
            return with_reported_usage(failure, exchange, self.tariff)

    def _exchange(self, model_input: ModelInput, options: ModelOptions, messages: Sequence[ModelMessage]) -> Exchange:
        """Make what the pass over the request and its reply has to know."""
        kind = self.tariff.model.partition(":")[0]
        return Exchange(
            make_id=lambda number: to_wire_id(call_path(model_input.path, number)),
            on_text=model_input.on_text if kind in _STREAMS and options.dialect == "native" else None,
            note=model_input.note,
            refused=self.refused,
            details=find_reasoning_details(messages),
            keeps_parts=kind == "mistral",
        )

    def _enforced_schema(
        self, step: RequestCompletion, options: ModelOptions, *, tools_offered: bool
    ) -> JsonObject | None:
        """Return the schema that the provider enforces, or None where it can't enforce one."""
        if "response_format" in self.refused or not self.model.profile.get("supports_json_schema_output"):
            return None
        if options.dialect == "text":
            return dialects.reply_schema(step, is_brief=options.prompts.is_brief)
        at_own_address = self.tariff.base_url is None and self.tariff.model.partition(":")[0] in _SCHEMA_BESIDE_TOOLS
        return step.output_schema if at_own_address or not tools_offered else None

    def _to_completion(
        self, response: ModelResponse, model_input: ModelInput, options: ModelOptions, exchange: Exchange
    ) -> Completion | Failure:
        answer = decode_completion(
            response, model_input.path, self.origin, self.tariff, self.model.context_window, exchange
        )
        if not isinstance(answer, Completion):
            return answer
        step, path = model_input.step, model_input.path
        if options.dialect == "native":
            return take_written_call(answer, step, path, model_input.note)
        decoded = dialects.decode_text_reply(answer, step, path)
        if not decoded.unreadable or answer.tool_calls:
            return decoded
        taken = take_written_call(answer, step, path, model_input.note)  # in a form that the dialect does not have
        return decoded if taken is answer else taken

    async def close(self) -> None:
        for close in self.close_functions:
            await close()


def _make_provider(
    kind: str, base_url: str | None, key: str | None, http: httpx2.AsyncClient, close_functions: list[Close]
) -> Provider[Any]:
    """Make pydantic-ai's provider, and add to `close_functions` what closes it."""
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
            provider, close = make_extra_provider(kind, base_url, key, http)
            close_functions.append(close)
            return provider
