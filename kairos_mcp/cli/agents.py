"""`agents`: who can work on a task, with which tools, and what is wrong with those that can't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AsJson
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import settings_for_list
from kairos_mcp.cli.terminal import Line, Prose, emit
from kairos_mcp.core.text import count_of

if TYPE_CHECKING:
    from kairos_mcp.app.agents import AgentList
    from kairos_mcp.app.app import App

_MARGIN = 20


def agents(*, as_json: AsJson = False, flags: AllFlags) -> int:
    """List the agents: what each is for, its tools, model and rounds, and how its tasks went."""

    async def read_agents(app: App) -> AgentList:
        return await app.agents.list_all(PERSON)

    found = with_app(settings_for_list(flags), read_agents)
    emit(found.as_json(), _lines(found), as_json=as_json)
    return COMPLETED


def _lines(found: AgentList) -> Iterator[Line]:
    for each in found.agents:
        facts = (count_of(each.agent.max_rounds, "round"), each.agent.origin, each.agent.model)
        yield _entry(each.agent.name, each.agent.description)
        yield _entry("", " · ".join(fact for fact in facts if fact is not None))
        yield _entry("", f"tools: {', '.join(each.tools) or 'none'}")
        if each.record is not None:
            yield _entry("", each.record.line)
        if each.agent.left_out:
            yield _entry("", f"left out of its file: {', '.join(each.agent.left_out)}")
    for wrong in found.disabled:
        yield _entry(wrong.name, f"disabled: {wrong.problem} {wrong.hint} ({wrong.file})")


def _entry(name: str, text: str) -> Prose:
    return Prose(f"{name:<{_MARGIN - 1}} {text}", _MARGIN)
