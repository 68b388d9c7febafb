"""Make the clients of providers whose libraries are extras: each with its own key, at its own address or another.

Every attempt is recorded beforehand, so the automatic retries of the clients are switched off.
Importing this file imports pydantic-ai; a provider's own library is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic_ai.providers import Provider, infer_provider

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.models.provider_errors import key_variable
from kairos_mcp.models.replies.border import reply_hook, request_hook

Close = Callable[[], Awaitable[None]]
READ_TIMEOUT_S = 600.0  # the run's own time for a completion is shorter; this one only frees the socket in the end
CONNECT_TIMEOUT_S = 10.0


def make_extra_provider(
    kind: str, base_url: str | None, key: str | None, http: httpx2.AsyncClient
) -> tuple[Provider[Any], Close]:
    """Return the provider, and the function that closes its client; `http` is used where the library takes one.

    Raises ConfigError for a base URL that this provider can't have, ImportError without its package, and what the
    library raises without a key.
    """
    match kind:
        case "google":
            from pydantic_ai.providers.google import GoogleProvider

            return GoogleProvider(api_key=key, base_url=base_url, http_client=http), _no_close
        case "mistral":
            from pydantic_ai.providers.mistral import MistralProvider

            return MistralProvider(api_key=key, base_url=base_url, http_client=http), _no_close
        case "groq":
            from pydantic_ai.providers.groq import GroqProvider

            http_client = _make_http_client()
            return GroqProvider(api_key=key, base_url=base_url, http_client=http_client), http_client.aclose
        case "cohere":
            return _make_cohere(base_url, key, _make_http_client())
        case "huggingface":
            from pydantic_ai.providers.huggingface import HuggingFaceProvider

            provider = HuggingFaceProvider(api_key=key, **({"base_url": base_url} if base_url is not None else {}))
            return provider, provider.client.close
        case "bedrock":
            return _make_bedrock(base_url, key)
        case "xai":
            return _make_xai(base_url, key)
        case _ if base_url is None:
            return infer_provider(kind), _no_close
        case _:
            raise ConfigError(
                f"KAIROS_BASE_URL does not go with {kind}.", 'Set KAIROS_MODEL="openai:NAME", or unset it.'
            )


def _make_http_client() -> Any:
    """Return an httpx client with the same limits as our own httpx2 client."""
    import httpx

    return httpx.AsyncClient(
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
        headers={"Accept-Encoding": "identity"},  # so that a small reply can't unfold into a huge one
        event_hooks={
            "request": [request_hook(httpx.AsyncByteStream)],
            "response": [reply_hook(httpx.AsyncByteStream)],
        },
    )


def _make_cohere(base_url: str | None, key: str | None, http_client: Any) -> tuple[Provider[Any], Close]:
    from pydantic_ai.providers.cohere import CohereProvider

    if base_url is None:
        return CohereProvider(api_key=key, http_client=http_client), http_client.aclose
    from cohere import AsyncClientV2

    client = AsyncClientV2(api_key=key or "none", base_url=base_url, httpx_client=http_client)
    return CohereProvider(cohere_client=client), http_client.aclose


def _make_bedrock(base_url: str | None, key: str | None) -> tuple[Provider[Any], Close]:
    """Make a Bedrock client with a bearer token, or with the credentials that its own library finds."""
    import boto3
    from botocore.config import Config
    from botocore.session import Session
    from botocore.tokens import FrozenAuthToken
    from pydantic_ai.providers.bedrock import BedrockProvider

    class BearerSession(Session):  # type: ignore[misc]  # botocore has no types
        def get_auth_token(self, **_: Any) -> FrozenAuthToken:
            return FrozenAuthToken(key)

    config = Config(
        read_timeout=READ_TIMEOUT_S,
        connect_timeout=CONNECT_TIMEOUT_S,
        retries={"total_max_attempts": 1},
        signature_version="bearer" if key is not None else None,
    )
    session = boto3.Session(botocore_session=BearerSession() if key is not None else None)
    if key is None and session.get_credentials() is None:
        raise ConfigError(
            "bedrock: there are no credentials.",
            f"Set {key_variable('bedrock')}, or what AWS's own programs take: keys, or a profile.",
        )
    client = session.client("bedrock-runtime", config=config, endpoint_url=base_url)

    async def close() -> None:
        client.close()

    return BedrockProvider(bedrock_client=client), close


def _make_xai(base_url: str | None, key: str | None) -> tuple[Provider[Any], Close]:
    """Make an xAI client. Its gRPC channel belongs to one event loop, so it is made with the first request."""
    from pydantic_ai.providers.xai import XaiProvider
    from xai_sdk import AsyncClient

    host = urlsplit(base_url).netloc if base_url is not None else None
    address = {"api_host": host} if host is not None else {}
    clients: list[AsyncClient] = []

    class LazyXaiProvider(XaiProvider):
        @property
        def client(self) -> AsyncClient:
            if not clients:
                options = [("grpc.enable_retries", 0)]  # else the channel itself tries five times
                clients.append(AsyncClient(api_key=self.api_key, channel_options=options, **address))
            return clients[0]

    async def close() -> None:
        for client in clients:
            await client.close()

    return LazyXaiProvider(api_key=key, api_host=host), close


async def _no_close() -> None:
    """Do nothing: the client is ours, or closes by itself."""
