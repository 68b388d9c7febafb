"""The tools for the files of one workspace, as a list."""

from __future__ import annotations

from kairos_mcp.core.tool import Tool
from kairos_mcp.tools.files.edit_tools import EditRules, writing_tools
from kairos_mcp.tools.files.listings import listing_tools
from kairos_mcp.tools.files.plans import plan_tools
from kairos_mcp.tools.files.read_tools import reading_tool
from kairos_mcp.tools.files.search_tool import file_search_tool


def file_tools(rules: EditRules) -> list[Tool]:
    """Make every tool that reads, searches or changes files, in listing order."""
    workspace = rules.workspace
    return [
        *listing_tools(workspace),
        reading_tool(workspace, rules.max_bytes, rules.redactor, rules.hash_content),
        file_search_tool(workspace, rules.redactor),
        *writing_tools(rules),
        *plan_tools(rules),
    ]
