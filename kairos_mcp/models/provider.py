"""A configured provider as a Model: one request is one attempt, and every failure is a value.

The libraries behind it are heavy and are imported, in a thread, when the first completion is requested. Their own
retries are off: every attempt is recorded and reserved beforehand.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.model import ModelInput, RemoteModel
from kairos_mcp.core.steps import Failure
from kairos_mcp.models.model import ModelOptions
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_errors import connection_failure, key_variable

if TYPE_CHECKING:
    from kairos_mcp.models.provider_connection import ProviderConnection

TAKE_MODEL_KEY = ("openai", "anthropic")  # the setting model_key is for these; others read their own variables alone


class Provider:
    """One model at one provider; all runs of a server share its connections.

    The key is in `environ`, unless `key` returns it; `key` is called when the first completion is requested.
    """

    def __init__(
        self, tariff: Tariff, environ: Mapping[str, str] = os.environ, key: Callable[[], str] | None = None
    ) -> None:
        self.tariff = tariff
        self._environ = environ
        self._key = key
        self._connecting: asyncio.Task[ProviderConnection] | None = None

    def make_model(self, options: ModelOptions) -> RemoteModel:
        """Make the Model of a run with these options."""

        async def complete(model_input: ModelInput) -> Completion | Failure:
            return await self._complete(model_input, options)

        return complete

    async def check(self) -> None:
        """Raise ConfigError where no request could be made: a key, a package or a setting is missing. Sends nothing."""
        match await self._open():
            case Failure(message=message):
                raise ConfigError(message)
            case _:
                pass

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None and await asyncio.wait([connecting]) and connecting.exception() is None:
            await connecting.result().close()

    async def _complete(self, model_input: ModelInput, options: ModelOptions) -> Completion | Failure:
        match await self._open():
            case Failure() as failure:
                return failure
            case connection:
                return await connection.complete(model_input, options)

    async def _open(self) -> ProviderConnection | Failure:
        """Return the connection, which is made once; or why there can't be one."""
        if self._connecting is None or (self._connecting.done() and self._connecting.exception() is not None):
            self._connecting = asyncio.create_task(asyncio.to_thread(self._connect))
        try:
            # Shielded: when this request is cancelled, the next one still finds the connection.
            return await asyncio.shield(self._connecting)
        except Exception as error:
            return connection_failure(error, self.tariff.model, self._environ)

    def _connect(self) -> ProviderConnection:
        from kairos_mcp.models.provider_connection import ProviderConnection

        if self._key is None:
            return ProviderConnection.open(self.tariff, self._environ)
        kind = self.tariff.model.partition(":")[0]
        if kind.partition("-")[0] not in TAKE_MODEL_KEY:
            raise ConfigError(f"model_key does not go with {kind}.", f"Set {key_variable(kind)} in its place.")
        return ProviderConnection.open(self.tariff, {**self._environ, key_variable(kind): self._key()})
