"""Which agents can be used here: the settings' ones held against the registry, and those of `.claude/agents`.

A workspace keeps the latter for Claude Code. They are content from outside, written for other tools: they are read
through the workspace's opener, their tools are translated, and what has no counterpart here is left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kairos_mcp.core.agent import Agent
from kairos_mcp.core.builtin_tools import HOST_TOOLS, HTTP_FETCH, READ_FILE, READ_RESULT, RUN_COMMAND
from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError, UnknownTool
from kairos_mcp.core.messages import ToolSet
from kairos_mcp.core.paths import printable_name
from kairos_mcp.core.text import truncate
from kairos_mcp.settings.agents import (
    AGENT_BYTES,
    DESCRIPTION_CHARS,
    MAX_AGENTS,
    MAX_LEFT_OUT,
    AgentFiles,
    DisabledAgent,
    parse_plain_lines,
    read_front_matter,
    split_agent_file,
    split_names,
    unread_agent,
)
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.registry import ToolRegistry

CLAUDE_FOLDER = ".claude/agents"
CLAUDE_PREFIX = "claude:"
_HOST_NAMES = {
    *HOST_TOOLS,
    *("WebSearch", "Task", "Agent", "Skill", "TodoWrite", "TodoRead", "NotebookEdit", "NotebookRead"),
    *("BashOutput", "KillShell", "ExitPlanMode", "AskUserQuestion", "SlashCommand", "ToolSearch"),
}
"""The names that hosts give their tools; those that HOST_TOOLS lacks have no counterpart here."""

_HINTS = {
    RUN_COMMAND.name: 'It is there unless commands = "off".',
    HTTP_FETCH.name: "It is there with http_fetch = true.",
}
_KEYS = ("name", "description", "tools", "disallowedTools", "model")  # the others of that format are left out
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MODEL = re.compile(r"\S{1,200}")
_CURE = "Repair the file, or set claude_agents = false."


def check_tools(files: AgentFiles, registry: ToolRegistry) -> AgentFiles:
    """Return the files with those agents disabled that name a tool which is not there.

    A tool of a server that was never asked for its tools may be there. A host's name of a tool stands for ours; one
    that has no counterpart is left out and named.
    """
    agents: dict[str, Agent] = {}
    disabled = list(files.disabled)
    for each in files.agents.values():
        agent = _translate_host_names(each, registry)
        if missing := registry.find_unmatched(agent.tools or ()):
            error = registry.unknown_tool(missing[0])
            hint = _HINTS.get(missing[0], f"Correct `tools` in its file. {error.hint}")
            hint = hint if registry.find(READ_FILE.name) is not None else "Without a workspace there are no file tools."
            disabled.append(DisabledAgent(agent.name, agent.origin, error.message, hint))
        else:
            agents[agent.name] = agent
    return AgentFiles(MappingProxyType(agents), tuple(disabled))


def _translate_host_names(agent: Agent, registry: ToolRegistry) -> Agent:
    """Return the agent with our names for the tools of hosts that its file names; as it is if it would have none."""
    tools: list[str] = []
    missing: list[str] = []
    for name in agent.tools or ():
        if name.partition("(")[0] not in _HOST_NAMES or registry.find(name) is not None:
            tools.append(name)
            continue
        ours = [spec.name for spec in registry.select_available(HOST_TOOLS.get(name, ()))]
        tools += ours
        missing += [] if ours else [name]
    if not tools:
        return agent
    left_out = (*agent.left_out, *(f"the tool {printable_name(truncate(name, 80))}" for name in missing))
    return replace(agent, tools=tuple(dict.fromkeys(tools)), left_out=left_out[:MAX_LEFT_OUT])


def select_agent_tools(agent: Agent, registry: ToolRegistry, narrowed: tuple[str, ...] | None = None) -> ToolSet:
    """Return the tools of an agent, `narrowed` to those that match these globs.

    Raises ConfigError for a tool of its file that is not there, BadArguments for a glob that matches none of its tools.
    """
    try:
        own = registry.select(registry.without_left_out(agent.tools))
    except UnknownTool as error:
        raise ConfigError(f"The agent {agent.name} can't be used: {error.message}", error.hint) from error
    if own and own.find(READ_RESULT.name) is None:  # long results are cut, so every agent with tools reads them
        own = ToolSet((*own, *registry.select_available((READ_RESULT.name,))))
    if narrowed is None:
        return own
    for glob in narrowed:
        if not any(spec.name in {found.name for found in registry.select_available((glob,))} for spec in own):
            names = ", ".join(spec.name for spec in own) or "none"
            raise BadArguments(
                f"tools: {truncate(glob, 80)!r} is no tool of the agent {agent.name}.", f"It has: {names}."
            )
    kept = {spec.name for spec in registry.select_available(narrowed)}
    return ToolSet([spec for spec in own if spec.name in kept])


def read_claude_agents(workspace: Workspace, registry: ToolRegistry, may_read: Callable[[str], bool]) -> AgentFiles:
    """Read the agents that a workspace keeps in `.claude/agents`, each as `claude:NAME`; links are not followed.

    `may_read`: whether the rules of the gate allow a file to be read. A name that stands in two files is that of the
    first one.
    """
    agents: dict[str, Agent] = {}
    disabled: list[DisabledAgent] = []
    paths, is_cut = _list_claude_files(workspace)
    for path in paths:
        name = CLAUDE_PREFIX + printable_name(path.rpartition("/")[2].removesuffix(".md"))[:64]
        try:
            if not may_read(path):
                raise BadArguments("A rule of the gate keeps it from being read.", "Change the rule, or leave it.")
            values, prompt = _parse_claude_file(workspace.read_start(path, AGENT_BYTES + 1)[0])
            own_name = _text_of(values, "name")
            if not _NAME.fullmatch(own_name):
                raise BadArguments("Its name has to be one word of up to 64 letters, digits, - and _.", _CURE)
            name = CLAUDE_PREFIX + own_name
            agent = _make_claude_agent(name, values, prompt, path, registry)
            if name in agents:
                raise BadArguments(f"{agents[name].origin} has the same name.", "Rename one of them.")
        except KairosError as error:
            disabled.append(DisabledAgent(name, printable_name(path), error.message, error.hint))
            continue
        agents[name] = agent
    disabled += [unread_agent(f"{CLAUDE_PREFIX}*", CLAUDE_FOLDER)] if is_cut else []
    return AgentFiles(MappingProxyType(agents), tuple(disabled))


def _list_claude_files(workspace: Workspace) -> tuple[list[str], bool]:
    try:
        entries, is_cut = workspace.entries(CLAUDE_FOLDER, MAX_AGENTS)
    except KairosError:  # there are none, or the folder is a link
        return [], False
    return [f"{CLAUDE_FOLDER}/{entry.name}" for entry in entries if entry.name.endswith(".md")], is_cut


def _parse_claude_file(content: bytes) -> tuple[Mapping[str, Any], str]:
    """Return the front matter of such a file, and its prompt. Raises BadArguments."""
    head, prompt = split_agent_file(content)
    try:
        return read_front_matter(head), prompt
    except BadArguments:
        return parse_plain_lines(head), prompt  # most descriptions there have a colon in them, which YAML forbids


def _make_claude_agent(name: str, values: Mapping[str, Any], prompt: str, path: str, registry: ToolRegistry) -> Agent:
    """Return the agent of such a file. Raises BadArguments."""
    description = truncate(_text_of(values, "description"), DESCRIPTION_CHARS)
    tools, missing = _translate_tools(values, registry)
    left_out = [f"the key {key}" for key in values if key not in _KEYS] + [f"the tool {tool}" for tool in missing]
    model = values.get("model")
    has_model = isinstance(model, str) and model != "inherit" and _MODEL.fullmatch(model)
    return Agent(
        name,
        description,
        tools,
        prompt,
        model if has_model else None,
        origin=printable_name(path),
        left_out=tuple(printable_name(truncate(each, 80)) for each in left_out[:MAX_LEFT_OUT]),
    )


def _text_of(values: Mapping[str, Any], key: str) -> str:
    """Return a required text on one line. Raises BadArguments."""
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadArguments(f"It has no {key}.", _CURE)
    return " ".join(value.split())


def _translate_tools(
    values: Mapping[str, Any], registry: ToolRegistry
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return our tools for those that a file allows, without those that it forbids, and the names of those that it
    allows and that have no counterpart here. Raises BadArguments where nothing is left."""
    allowed, forbidden = _names_of(values, "tools"), _names_of(values, "disallowedTools") or ()
    if allowed is None and not forbidden:
        return None, ()
    denied = {tool for name in forbidden for tool in HOST_TOOLS.get(name.partition("(")[0], (name,))}
    if allowed is None:
        found, missing = [spec.name for spec in registry.select_available(None)], []
    else:
        ours = {name: registry.select_available(HOST_TOOLS.get(name, ())) for name in allowed}
        found = [spec.name for tools in ours.values() for spec in tools]
        missing = [name for name, tools in ours.items() if not tools]
    kept = tuple(dict.fromkeys(name for name in found if name not in denied))
    if not kept:
        raise BadArguments("None of its tools is there.", f"Known are: {', '.join(HOST_TOOLS)}.")
    return kept, tuple(missing)


def _names_of(values: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Return the names in a list, or in a text with commas between them; None where there are none. Raises
    BadArguments."""
    given = values.get(key)
    match given:
        case None | "":
            return None
        case str():
            return split_names(given.strip("[]"))  # as a line that is no YAML has it
        case list() if all(isinstance(name, str) for name in given):
            return split_names(given)
        case _:
            raise BadArguments(f"{key}: it is not a list of names.", _CURE)
