"""The way to a downstream server, from its configuration: what is started with which environment, or which address."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.secret_refs import is_reference
from kairos_mcp.settings.settings import ServerSetting
from kairos_mcp.tools.commands.protected_paths import ProtectionRules
from kairos_mcp.tools.mcp_servers.child import ChildStart
from kairos_mcp.tools.mcp_servers.connection import HttpAddress
from kairos_mcp.tools.mcp_servers.enclosure import enclosed
from kairos_mcp.tools.mcp_servers.resources import BASICS, ServerResources

_REFERENCE = re.compile(r"\$\{((?:env|file|keyring):[^{}]+)\}")
_WORKSPACE = "${workspace}"


def way_of(setting: ServerSetting, workspace: Path | None, shared: ServerResources) -> ChildStart | HttpAddress:
    """Secrets are resolved here, at each start, and live on in the child and in this connection alone.

    Raises ConfigError for a secret that is not there, a workspace that is missing, a sandbox that can't be had.
    """

    def text(value: str) -> str:
        return resolved(_placed(setting.name, value, workspace), shared.secret)

    if setting.url is not None:
        return HttpAddress(
            setting.url, {name: _one_line(setting.name, name, text(value)) for name, value in setting.headers}
        )
    basics = {name: shared.environ[name] for name in BASICS if name in shared.environ}
    env = basics | {name: text(value) for name, value in setting.env}
    argv = tuple(_placed(setting.name, part, workspace) for part in setting.command)
    cwd = _placed(setting.name, setting.cwd, workspace) if setting.cwd is not None else str(workspace or "/")
    if not setting.sandbox:
        return ChildStart(argv, env, cwd)
    rules = shared.rules(workspace) if workspace is not None else ProtectionRules()
    return ChildStart(argv, env, "/", enclosed(setting.name, argv, env, Path(cwd), workspace, shared.hidden, rules))


def resolved(value: str, secret: Callable[[str], str]) -> str:
    """The value with each reference to a secret replaced: `env:NAME` or `file:PATH` alone, `${env:NAME}` within."""
    if is_reference(value):
        return secret(value)
    return _REFERENCE.sub(lambda found: secret(found[1]), value)


def _placed(server: str, text: str, workspace: Path | None) -> str:
    if _WORKSPACE not in text:
        return text
    if workspace is None:
        raise ConfigError(f"The server {server} needs a workspace.", "Name one with --workspace.")
    return text.replace(_WORKSPACE, str(workspace))


def _one_line(server: str, name: str, value: str) -> str:
    """A header's value; a line break in a secret would make a second header of the rest."""
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ConfigError(f"The header {name} of the server {server} holds a control character.", "Repair the secret.")
    return value
