"""The four hints of a listed tool: what it may do at most, from its effect class and this configuration.

A tool that moves runs may do what a run may do without an approval of ours: what the gate's rules let through, and
under `approvals = "host"` all that the gate asks about, since whoever calls gives that leave. Settings alone decide, so
the list is the same at each look, and nothing is started for it. Where a rule may or may not match, it counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import mcp_types as wire

from kairos_mcp.core.messages import Effect
from kairos_mcp.settings.settings import GateRule, Settings

MOVES_RUNS = frozenset(
    (
        *("planner_run", "ooda_run", "run_continue", "run_control"),
        *("ooda_observe", "ooda_orient", "ooda_decide", "ooda_reflect"),
    )
)
"""Tools that go on with a run. ooda_act and registry_call always state the most there is."""

PHASES_THAT_READ = frozenset(("ooda_observe", "ooda_orient", "ooda_decide", "ooda_reflect"))

BUILT_IN: tuple[tuple[str, Effect], ...] = (
    *(("edit_file", "checked"), ("write_file", "checked"), ("apply_edit_plan", "checked"), ("apply_edits", "checked")),
    ("run_command", "irreversible"),
)
"""The tools of a workspace that do more than read; a test holds this to the tools themselves."""

EFFECTS: tuple[Effect, ...] = ("read", "idempotent", "checked", "irreversible")


@dataclass(frozen=True, slots=True)
class PossibleEffect:
    """The most that may happen without an approval of ours: an effect class, and whether it leaves this machine."""

    effect: Effect = "read"
    open_world: bool = False


def hints(effect: Effect, *, open_world: bool = False) -> wire.ToolAnnotations:
    """All four hints of the protocol."""
    return wire.ToolAnnotations(
        read_only_hint=effect == "read",
        destructive_hint=effect in ("checked", "irreversible"),
        idempotent_hint=effect in ("read", "idempotent"),
        open_world_hint=open_world or effect == "irreversible",
    )


def annotate_tool(tool: wire.Tool, settings: Settings) -> wire.Tool:
    """The tool with the hints that hold under these settings."""
    if tool.name not in MOVES_RUNS:
        return tool
    most = possible_effect(settings)
    own: Effect = "idempotent" if tool.name in PHASES_THAT_READ else max("idempotent", most.effect, key=EFFECTS.index)
    return tool.model_copy(update={"annotations": hints(own, open_world=most.open_world)})


def possible_effect(settings: Settings) -> PossibleEffect:
    """The most that a run may do under these settings without an approval of ours."""
    effects: list[Effect] = ["read"]
    for name, effect in _changing_tools(settings):
        word = _most_lenient_verdict(settings.gate, name, effect)
        if word == "allow" or (word == "ask" and settings.approvals == "host"):
            effects.append(effect)
    leaves = bool(settings.servers or settings.http_tools or (settings.http_fetch and settings.http_hosts))
    return PossibleEffect(max(effects, key=EFFECTS.index), leaves)


def _changing_tools(settings: Settings) -> Iterator[tuple[str, Effect]]:
    """The tools that do more than read: by name; those of a server, whose names are known once it was started, as
    `SERVER__*`, with every effect that they may have."""
    if settings.workspaces:
        yield from (each for each in BUILT_IN if each[0] != "run_command" or settings.commands != "off")
    if settings.http_fetch:
        yield "http_fetch", "irreversible"
    yield from ((each.name, each.effect) for each in settings.http_tools if each.effect != "read")
    for server in settings.servers:
        stated: set[Effect] = {effect for _, effect in server.effects}
        unstated: set[Effect] = {"irreversible"}
        everything = any(glob == "*" for glob, _ in server.effects)
        for effect in stated if everything else stated | unstated:  # what nobody states is irreversible
            if effect != "read":
                yield f"{server.name}__*", effect


def _most_lenient_verdict(rules: tuple[GateRule, ...], name: str, effect: Effect) -> str:
    """What the gate says at most of a call of this tool: rules that look further than its name may let it through."""
    about = [rule for rule in rules if rule.effect in (None, effect) and _may_fit(rule.tools, name)]
    if any(rule.verdict == "deny" and _is_for_all(rule, name) for rule in about):
        return "deny"
    for rule in about:
        if rule.verdict == "allow" and (effect != "irreversible" or rule.effect or _names(rule.tools, name)):
            return "allow"
        if rule.verdict == "ask" and _is_for_all(rule, name):
            return "ask"
    return "ask"


def _may_fit(glob: str, name: str) -> bool:
    """Whether the rule may be about a tool of this name; of `SERVER__*`, about any that begins so."""
    if not name.endswith("*"):
        return fnmatchcase(name, glob)
    start = name[:-1]
    literal = glob[: min((glob.index(sign) for sign in "*?[" if sign in glob), default=len(glob))]
    return literal.startswith(start) or start.startswith(literal)


def _names(glob: str, name: str) -> bool:
    """Whether the rule names the tool in full, or one tool of the server."""
    return glob == name or (name.endswith("*") and not any(sign in glob for sign in "*?["))


def _is_for_all(rule: GateRule, name: str) -> bool:
    """Whether the rule is about every call of all these tools."""
    if rule.paths or (rule.scope, rule.risk, rule.agent, rule.mandate) != (None, None, None, None):
        return False
    return fnmatchcase(name, rule.tools) and (not name.endswith("*") or rule.tools in ("*", name))
