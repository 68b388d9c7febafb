"""The four hints of a listed tool: the most that it may do, by its effect class and the settings.

A tool that moves a run may do whatever that run may do without an approval. That is what the gate's rules allow; with
`approvals = "host"` also what the gate asks about, since the caller itself then approves. The settings alone decide: so
the hints don't change while a server runs, and no downstream server is started to find them. A rule that matches some
calls and not others counts as matching.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

import mcp_types as wire

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.effects import EFFECTS, Effect
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import GateRule

MOVES_RUNS = frozenset(
    (
        *("planner_run", "team_run", "ooda_run", "run_continue", "run_control"),
        *(phase.tool for phase in PHASES.values() if phase.calls is not None),
    )
)
"""Tools that move a run. registry_call, and a phase that may call any tool, always state the maximum."""

TOOLS_OF_PHASES: Mapping[str, Collection[str]] = {
    phase.tool: phase.calls for phase in PHASES.values() if phase.calls is not None
}
"""What a phase that changes no file calls besides tools that only read."""


def hints(effect: Effect, *, open_world: bool = False) -> wire.ToolAnnotations:
    """Return the four hints of the protocol for an effect class."""
    return wire.ToolAnnotations(
        read_only_hint=effect == "read",
        destructive_hint=effect in ("keyed", "checked", "irreversible"),
        idempotent_hint=effect in ("read", "idempotent"),
        open_world_hint=open_world or effect == "irreversible",
    )


def annotate_tool(tool: wire.Tool, settings: Settings) -> wire.Tool:
    """Return the tool with the hints that hold with these settings."""
    if tool.name not in MOVES_RUNS:
        return tool
    possible, is_open_world = possible_effect(settings, TOOLS_OF_PHASES.get(tool.name))
    effect: Effect = max("idempotent", possible, key=EFFECTS.index)
    return tool.model_copy(update={"annotations": hints(effect, open_world=is_open_world)})


def possible_effect(settings: Settings, called: Collection[str] | None = None) -> tuple[Effect, bool]:
    """Return the most that a run may do without an approval, and whether it reaches beyond this machine.

    `called`: of the tools that do more than read it calls only these; None: any.
    """
    effects: list[Effect] = ["read"]
    for name, effect in _changing_tools(settings):
        if called is not None and name not in called:
            continue
        verdict = _most_lenient_verdict(settings.gate, name, effect)
        if verdict == "allow" or (verdict == "ask" and settings.approvals == "host"):
            effects.append(effect)
    is_open_world = bool(settings.servers or settings.http_tools or (settings.http_fetch and settings.http_hosts))
    return max(effects, key=EFFECTS.index), is_open_world


def _changing_tools(settings: Settings) -> Iterator[tuple[str, Effect]]:
    """Yield name and effect of each tool that does more than read.

    For a downstream server, `SERVER__*` and each effect that one of its tools may have: the names of its tools are not
    known before it was started.
    """
    if settings.read_only:
        return
    has_workspace = bool(settings.workspaces)
    exists = {
        "workspace": has_workspace,
        "commands": has_workspace and settings.commands != "off",
        "web": settings.http_fetch,
    }  # request_more_rounds is left out: it changes its own run alone, within limits that hold whoever asks
    yield from (
        (tool.name, tool.effect) for tool in BUILTIN.values() if tool.effect != "read" and exists.get(tool.needs, False)
    )
    yield from ((tool.name, tool.effect) for tool in settings.http_tools if tool.effect != "read")
    for server in settings.servers:
        stated: set[Effect] = {effect for _, effect in server.effects}
        unstated: set[Effect] = {"irreversible"}
        covers_all = any(glob == "*" for glob, _ in server.effects)
        for effect in stated if covers_all else stated | unstated:  # what is not stated is irreversible
            if effect != "read":
                yield f"{server.name}__*", effect


def _most_lenient_verdict(rules: tuple[GateRule, ...], name: str, effect: Effect) -> str:
    """Return the most lenient verdict that a call of this tool may get. A rule that looks beyond its name may match."""
    matching = [rule for rule in rules if rule.effect in (None, effect) and _may_match(rule.tools, name)]
    if any(rule.verdict == "deny" and _covers_every_call(rule, name) for rule in matching):
        return "deny"
    for rule in matching:
        if rule.verdict == "allow" and (effect != "irreversible" or rule.effect or _is_full_name(rule.tools, name)):
            return "allow"
        if rule.verdict == "ask" and _covers_every_call(rule, name):
            return "ask"
    return "ask"


def _may_match(glob: str, name: str) -> bool:
    """Whether the glob may match a tool of this name; of `SERVER__*`, any tool of that server."""
    if not name.endswith("*"):
        return fnmatchcase(name, glob)
    prefix = name[:-1]
    literal = glob[: min((glob.index(sign) for sign in "*?[" if sign in glob), default=len(glob))]
    return literal.startswith(prefix) or prefix.startswith(literal)


def _is_full_name(glob: str, name: str) -> bool:
    """Whether the glob is the full name of the tool, or of one tool of the server."""
    return glob == name or (name.endswith("*") and not any(sign in glob for sign in "*?["))


def _covers_every_call(rule: GateRule, name: str) -> bool:
    """Whether the rule matches every call of the tool, or of all tools of the server."""
    if rule.paths or (rule.scope, rule.risk, rule.agent, rule.mandate) != (None, None, None, None):
        return False
    return fnmatchcase(name, rule.tools) and (not name.endswith("*") or rule.tools in ("*", name))
