"""Resolves how to reach a downstream server from its settings: the program to start and its environment, or a URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.models.provider_network import check_way
from kairos_mcp.settings.secret_refs import EMBEDDED_REFERENCE, is_reference
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.tools.commands.toolchains import home_folder
from kairos_mcp.tools.mcp_servers.child import ChildStart
from kairos_mcp.tools.mcp_servers.connection import HttpAddress
from kairos_mcp.tools.mcp_servers.network_variables import pass_network_variables
from kairos_mcp.tools.mcp_servers.resources import ServerResources
from kairos_mcp.tools.mcp_servers.server_processes import ServerProcesses
from kairos_mcp.tools.mcp_servers.server_sandbox import UV_CACHE, build_server_sandbox

_WORKSPACE = "${workspace}"
# What a child gets of our environment, with the variables of its network.
_PASSED_VARIABLES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")


def resolve_address(
    setting: ServerSetting,
    workspace: Path | None,
    resources: ServerResources,
    cache_name: str,
    processes: ServerProcesses | None = None,
) -> ChildStart | HttpAddress:
    """Return what is to be started or connected to. Called at each start; resolves secrets and looks at the workspace.

    `cache_name` names the folder of the server's caches; `processes` are given of one that is paused between its calls.
    The secrets live on only in the child and in its connection. Raises ConfigError if a secret or the workspace is
    missing, or a sandbox can't be made.
    """

    def text(value: str) -> str:
        return resolve_references(_fill_workspace(setting.name, value, workspace), resources.resolve_secret)

    if setting.url is not None:
        headers = {name: _check_header(setting.name, name, text(value)) for name, value in setting.headers}
        return HttpAddress(setting.url, headers, check_way(setting.url, resources.environ))
    passed = {name: resources.environ[name] for name in _PASSED_VARIABLES if name in resources.environ}
    # A relative folder would be one of the workspace, or of the folder in which a host started us.
    folders = [part for part in passed.pop("PATH", "").split(os.pathsep) if os.path.isabs(part)]
    passed |= {"PATH": os.pathsep.join(folders)} if folders else {}
    env = passed | pass_network_variables(resources.environ) | {name: text(value) for name, value in setting.env}
    argv = tuple(_fill_workspace(setting.name, part, workspace) for part in setting.command)
    cwd = _fill_workspace(setting.name, setting.cwd, workspace) if setting.cwd is not None else str(workspace or "/")
    if not setting.sandbox:
        return ChildStart(argv, env, cwd)
    limits = resources.limits(workspace)
    # uvx writes into its folder of tools, and a person's is read-only inside.
    env = {"UV_TOOL_DIR": str(home_folder(env) / UV_CACHE / "tools")} | env
    sandbox = build_server_sandbox(setting.name, cache_name, argv, env, Path(cwd), workspace, limits)
    return ChildStart(argv, env, "/", sandbox, processes)


def resolve_references(value: str, resolve_secret: Callable[[str], str]) -> str:
    """Replace each reference to a secret: a value that is `env:NAME` or `file:PATH`, or `${env:NAME}` inside one."""
    if is_reference(value):
        return resolve_secret(value)
    return EMBEDDED_REFERENCE.sub(lambda found: resolve_secret(found[1]), value)


def _fill_workspace(server: str, text: str, workspace: Path | None) -> str:
    if _WORKSPACE not in text:
        return text
    if workspace is None:
        raise ConfigError(f"The server {server} needs a workspace.", "Name one with --workspace.")
    return text.replace(_WORKSPACE, str(workspace))


def _check_header(server: str, name: str, value: str) -> str:
    """Return a header's value. Raises ConfigError for a control character: a line break would begin another header."""
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ConfigError(f"The header {name} of the server {server} holds a control character.", "Repair the secret.")
    return value
