"""Rebuild texts of a spec: prompts of the package and the configuration, scopes, and specs of tools.

A text that was damaged in the state file can be restored if what it was made of has not changed since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kairos_mcp.core.messages import ToolSet
from kairos_mcp.core.scopes import Scopes
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from kairos_mcp.flows.planner_input import Prompts
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import load_text_prompts
from kairos_mcp.store.codec import encode
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import offer_tools

_NAMED = re.compile(r'"name":"([^"]{1,64})"')


def rebuilt_texts(settings: Settings, registry: ToolRegistry, workspace: str | None, rest: bytes) -> Iterator[str]:
    """Yield each such text as it would be built now. `rest`: what is left of the damaged one; it may name tools."""
    yield settings.read_prompt("planner").strip()
    yield settings.read_prompt("planner-short").strip()
    yield encode(Prompts.load(settings.read_prompt))
    yield encode(PhasePrompts.load(settings.read_prompt))
    yield encode(load_text_prompts(settings))
    yield encode(load_text_prompts(settings, is_brief=True))
    yield encode(build_scopes(Path(workspace), settings) if workspace is not None else Scopes())
    yield from _tool_texts(registry, rest)
    if settings.script is not None:
        with suppress(OSError, UnicodeDecodeError):
            yield settings.script.read_text(encoding="utf-8")
    from kairos_mcp.settings.agents import load_agents  # only when needed, which is seldom

    yield from (agent.prompt for agent in load_agents(settings).agents.values())


def _tool_texts(registry: ToolRegistry, rest: bytes) -> Iterator[str]:
    """Lists of specs: those that are offered where nobody names any, each alone, and those that `rest` names."""
    for several in (registry.select(None), ToolSet(registry.specs)):
        offer = offer_tools(several)
        yield encode(tuple(offer.shown))
        yield encode(tuple(offer.searchable))
    for spec in registry.specs:
        yield encode((spec,))
    named = [registry.find(name) for name in _NAMED.findall(rest.decode("utf-8", "replace"))]
    yield encode(tuple(tool.spec for tool in named if tool is not None))
