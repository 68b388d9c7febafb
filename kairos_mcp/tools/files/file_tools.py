"""The tools for the files of one workspace, as a list."""

from __future__ import annotations

from importlib import import_module

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.tool import Tool
from kairos_mcp.tools.files.edit_tools import EditRules

_MODULES = dict.fromkeys(row.made_in for row in BUILTIN.values() if row.made_in is not None)


def file_tools(rules: EditRules) -> list[Tool]:
    """Make every tool that reads, searches or changes files, in the order of their rows."""
    return [tool for module in _MODULES for tool in import_module(f"kairos_mcp.tools.files.{module}").make_tools(rules)]
