"""May this call run? One table of rules, outside every flow, so that a changed rule never bends a replay.

Deny rules are tried first and always win; then the first rule that matches; then the default of the effect class:
reads are allowed, all else is denied until a person can be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from kairos_mcp.messages import ToolSpec
from kairos_mcp.settings import GateRule


@dataclass(frozen=True, slots=True)
class Verdict:
    """`because` names the rule, or the default, in words that a model may read."""

    decision: Literal["allow", "deny"]
    because: str


def judge(rules: Sequence[GateRule], tool: ToolSpec) -> Verdict:
    """The verdict on a call of this tool."""
    matching = [rule for rule in rules if fnmatchcase(tool.name, rule.tools)]
    for rule in (*(rule for rule in matching if rule.verdict == "deny"), *matching):
        return Verdict(rule.verdict, f'the rule {rule.verdict} "{rule.tools}"')
    if tool.source == "caller":
        return Verdict("allow", "the caller executes its own tools")
    if tool.effect == "read":
        return Verdict("allow", "it only reads")
    return Verdict("deny", f"tools that are {tool.effect} need a rule that allows them")
