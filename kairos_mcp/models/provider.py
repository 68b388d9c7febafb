"""A configured provider as a Model: one request, one attempt. Whatever it does, the answer is a value.

The libraries behind it are heavy and are imported, in a thread, when the first completion is asked for. Their own
retries are off: every attempt is one that was recorded and reserved beforehand.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.steps import Failure
from kairos_mcp.models.model import Model, ModelInput, ModelManner
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_errors import key_variable

if TYPE_CHECKING:
    from kairos_mcp.models.provider_connection import ProviderConnection

GIVEN_A_KEY = ("openai", "anthropic")  # the others take theirs from their own variables alone


class Provider:
    """One model at one provider; all runs of a server share its connections. `environ` holds the provider's key, unless
    `key` reads it from elsewhere, when the first completion is asked for."""

    def __init__(
        self, tariff: Tariff, environ: Mapping[str, str] = os.environ, key: Callable[[], str] | None = None
    ) -> None:
        self.tariff = tariff
        self._environ = environ
        self._key = key
        self._opening: asyncio.Task[ProviderConnection] | None = None

    def model(self, manner: ModelManner) -> Model:
        """The Model of a run."""

        async def complete(model_input: ModelInput) -> Completion | Failure:
            return await self._complete(model_input, manner)

        return complete

    async def close(self) -> None:
        """Close its connections; a later request opens new ones."""
        opening, self._opening = self._opening, None
        if opening is not None and await asyncio.wait([opening]) and opening.exception() is None:
            await opening.result().close()

    async def _complete(self, model_input: ModelInput, manner: ModelManner) -> Completion | Failure:
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(asyncio.to_thread(self._open))
        try:
            connection = await asyncio.shield(self._opening)  # a request that is given up leaves it to the next
        except Exception as error:
            from kairos_mcp.models.provider_errors import connection_failure

            return connection_failure(error, self.tariff.model)
        return await connection.complete(model_input, manner)

    def _open(self) -> ProviderConnection:
        from kairos_mcp.models.provider_connection import ProviderConnection

        if self._key is None:
            return ProviderConnection.to(self.tariff, self._environ)
        kind = self.tariff.model.partition(":")[0]
        if kind.partition("-")[0] not in GIVEN_A_KEY:
            raise ConfigError(f"model_key does not go with {kind}.", f"Set {key_variable(kind)} in its place.")
        return ProviderConnection.to(self.tariff, {**self._environ, key_variable(kind): self._key()})
