"""The tools that come with the house, put together; a tool's law is in its own file."""

from __future__ import annotations

from pathlib import Path

from kairos_mcp.tools.files import reading_tool
from kairos_mcp.tools.kept import PAGE_CHARS, kept_tool
from kairos_mcp.tools.listings import listing_tools
from kairos_mcp.tools.opener import Opener
from kairos_mcp.tools.registry import Tool
from kairos_mcp.tools.search import search_tool

__all__ = ["Opener", "builtin_tools", "reading_tools"]


def builtin_tools(workspace: Opener | Path | None, *, read_bytes: int, page_chars: int = PAGE_CHARS) -> list[Tool]:
    """Every tool of the house, in the order of its listings; without a workspace those that need none.

    An Opener is closed by whoever opened it; a folder given as a Path is let go with the tools.
    """
    opener = Opener(workspace) if isinstance(workspace, Path) else workspace
    tools = reading_tools(opener, read_bytes=read_bytes) if opener is not None else []
    return [*tools, kept_tool(page_chars)]


def reading_tools(opener: Opener, *, read_bytes: int) -> list[Tool]:
    """The tools that look into a workspace: list_files, file_tree, read_file, search_files."""
    return [*listing_tools(opener), reading_tool(opener, read_bytes), search_tool(opener)]
