"""OpenTelemetry: names of spans and metrics, which trace a run belongs to, and how both are sent. Off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kairos_mcp.core.errors import ConfigError

if TYPE_CHECKING:
    from kairos_mcp.telemetry.providers import Providers


def start_telemetry(*, with_content: bool) -> Providers:
    """Return the OpenTelemetry providers of this process, made at the first call.

    Raises ConfigError where the extra is not installed, or a variable names an exporter that it does not have.
    """
    try:
        from kairos_mcp.telemetry.providers import process_providers  # imports the SDK: only where telemetry is on
    except ImportError as error:
        raise needs_extra("The setting telemetry") from error
    return process_providers(with_content=with_content)


def needs_extra(what: str) -> ConfigError:
    """Return the error that this needs packages which are not here."""
    return ConfigError(f"{what} needs packages that are not installed.", 'Install "kairos-loop[telemetry]".')
