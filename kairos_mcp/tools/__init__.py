"""The tools that come with the house, put together; a tool's law is in its own file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.scopes import Scopes
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.files.edit_tools import writing_tools
from kairos_mcp.tools.files.listings import listing_tools
from kairos_mcp.tools.files.plans import plan_tools
from kairos_mcp.tools.files.read_tools import reading_tool
from kairos_mcp.tools.files.scopes import scopes_of
from kairos_mcp.tools.files.search_tool import search_tool
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.results import PAGE_CHARS, kept_tool
from kairos_mcp.tools.skills import SkillFolders, skill_tool
from kairos_mcp.tools.tool import Tool, tool

if TYPE_CHECKING:
    from kairos_mcp.settings.http_tool import HttpDefinition
    from kairos_mcp.tools.http.client import HttpClient
    from kairos_mcp.tools.http.http_tool import Secret

__all__ = ["CommandSettings", "SkillFolders", "Workspace", "builtin_tools", "network_tools", "reading_tools", "tool"]


def builtin_tools(
    workspace: Workspace | Path | None,
    *,
    read_bytes: int,
    page_chars: int = PAGE_CHARS,
    scopes: Scopes | None = None,
    commands: CommandSettings | None = None,
    shelves: SkillFolders | None = None,
    mask: Redactor | None = None,
) -> list[Tool]:
    """Every tool of the house, in the order of its listings; without a workspace those that need none.

    An Opener is closed by whoever opened it; a folder given as a Path is let go with the tools. `scopes` says which
    files no run writes; without it, our own package and what lies under .git. `commands`: which programs may be run
    and how; without it, in a sandbox. `shelves`: the skills that may be read; without them there is no read_skill.
    `mask`: what readers of files are not shown; without it, what has the name or the shape of a secret.
    """
    opener = Workspace(workspace) if isinstance(workspace, Path) else workspace
    on_demand = [kept_tool(page_chars), *([skill_tool(shelves, read_bytes)] if shelves is not None else [])]
    if opener is None:
        return on_demand
    known = scopes or scopes_of(opener.workspace)
    changing = changing_tools(opener, known, read_bytes, mask or Redactor())
    running = command_tools(opener, commands or CommandSettings(), known)
    return [*reading_tools(opener, read_bytes=read_bytes), *changing, *running, *on_demand]


def changing_tools(opener: Workspace, scopes: Scopes, most: int, mask: Redactor) -> list[Tool]:
    """The tools that change a workspace: edit_file, write_file, plan_edits, apply_edit_plan, apply_edits."""
    return [*writing_tools(opener, scopes, most, mask), *plan_tools(opener, scopes, most, mask)]


def reading_tools(opener: Workspace, *, read_bytes: int) -> list[Tool]:
    """The tools that look into a workspace: list_files, file_tree, read_file, search_files."""
    return [*listing_tools(opener), reading_tool(opener, read_bytes), search_tool(opener)]


def network_tools(
    egress: HttpClient, definitions: Iterable[HttpDefinition], secret: Secret, *, fetch: bool = False
) -> list[Tool]:
    """The tools that leave this machine: http_fetch where it is switched on, and those that a person defined."""
    from kairos_mcp.tools.http.fetch import fetching_tool
    from kairos_mcp.tools.http.http_tool import http_tool

    own = [fetching_tool(egress)] if fetch else []
    return [*own, *(http_tool(each, egress, secret) for each in definitions)]
