"""Collects the built-in tools; each is defined in its own file. An installed tool imports `tool` from here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.files.content_hash import HashContent, plain_hash
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.file_tools import file_tools
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.results import PAGE_CHARS, read_result_tool
from kairos_mcp.tools.selection import more_rounds_tool
from kairos_mcp.tools.skills import SkillFolders, skill_tool
from kairos_mcp.tools.tool import tool

if TYPE_CHECKING:
    from kairos_mcp.settings.http_definition import HttpDefinition
    from kairos_mcp.tools.http.client import HttpClient
    from kairos_mcp.tools.http.http_tool import ResolveSecret

__all__ = [
    "CommandSettings",
    "SkillFolders",
    "ToolContext",
    "Workspace",
    "builtin_tools",
    "network_tools",
    "tool",
]


def builtin_tools(
    workspace: Workspace | Path | None,
    *,
    read_bytes: int,
    page_chars: int = PAGE_CHARS,
    scopes: Scopes | None = None,
    commands: CommandSettings | None = None,
    skill_folders: SkillFolders | None = None,
    redactor: Redactor | None = None,
    hash_content: HashContent = plain_hash,
) -> list[Tool]:
    """Return every built-in tool, in listing order; without a workspace, only those that need none.

    A Workspace is closed by whoever opened it; a folder given as a Path is closed with the tools. `scopes` says which
    files no run may write; by default our own package and what lies under .git. `commands`: which programs may be run
    and how; by default in a sandbox. `skill_folders`: the skills that may be read; without them there is no read_skill.
    `redactor` hides secrets from readers of files; by default what has the name or the form of a secret.
    `hash_content` names the contents of files; without a store, which has a key for it, by a plain hash.
    """
    workspace = Workspace(workspace) if isinstance(workspace, Path) else workspace
    redactor = redactor or Redactor()
    on_demand = [
        read_result_tool(page_chars),
        *([skill_tool(skill_folders, read_bytes, redactor, hash_content)] if skill_folders is not None else []),
        more_rounds_tool(),
    ]
    if workspace is None:
        return on_demand
    workspace_scopes = scopes or build_scopes(workspace.path)
    rules = EditRules(workspace, workspace_scopes, read_bytes, redactor, hash_content)
    programs = command_tools(workspace, commands or CommandSettings(), workspace_scopes)
    return [*file_tools(rules), *programs, *on_demand]


def network_tools(
    client: HttpClient,
    definitions: Iterable[HttpDefinition],
    resolve_secret: ResolveSecret,
    *,
    with_fetch: bool = False,
) -> list[Tool]:
    """Return the tools that use the network: http_fetch if it is switched on, and HTTP tools that a person defined."""
    from kairos_mcp.tools.http.fetch import fetch_tool
    from kairos_mcp.tools.http.http_tool import http_tool

    fetch = [fetch_tool(client)] if with_fetch else []
    return [*fetch, *(http_tool(definition, client, resolve_secret) for definition in definitions)]
