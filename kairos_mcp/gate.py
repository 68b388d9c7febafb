"""May this call be made? One table of rules, outside every flow, so that a changed rule never bends a replay.

Deny rules are tried first and always win; then the first rule that matches; then the default: what only reads may
run, http_fetch and what nobody knows may not, the caller runs its own tools, everything else asks a person.

Two things no rule can give: a run never writes the server's own files (L0), and instructions to agents (L1) are
always asked about (SYSTEMS.md O13). And what can't be undone is allowed only by a rule that means it: one that names
its effect class, or the tool in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal

from kairos_mcp.configuration.settings import GateRule, Scope
from kairos_mcp.definitions.skill import READ_SKILL
from kairos_mcp.errors import BadArguments, ConfigError, KairosError
from kairos_mcp.messages import JsonObject, Risk, ToolSet, ToolSpec, canonical
from kairos_mcp.tools.paths import plain_path
from kairos_mcp.tools.patterns import glob

OFF = frozenset({"http_fetch"})  # denied until a rule says otherwise
SEVERAL = frozenset({"plan_edits", "apply_edit_plan", "apply_edits"})  # an edit of several files, whatever their number
RISKS: tuple[Risk, ...] = ("low", "medium", "high")

Word = Literal["allow", "ask", "deny"]
ScopeOf = Callable[[str], Scope]
Default = Callable[[JsonObject], Word]

_DOES = {"allow": "may be made", "ask": "ask a person", "deny": "are not made"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`because` names the rule, or the default, in words that a model may read."""

    decision: Word
    because: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that somebody wants to be made. `tool` None: nobody knows it.

    `agent` and `mandate` name for whom. `found` are paths that the call stands on beside those that it names, as a
    preview found them. `declared`: the risk that a model gave it, which can only raise ours.
    """

    tool: ToolSpec | None
    arguments: JsonObject
    agent: str | None = None
    mandate: str | None = None
    found: tuple[str, ...] = ()
    declared: Risk = "low"

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*paths_of(self.tool, self.arguments), *self.found)))


class Gate:
    """The table of a configuration. `scope_of` says of a plain path whose file it is (None: there are no files);
    `defaults` are functions of the arguments, for tools whose calls differ where no rule says anything."""

    def __init__(
        self, rules: Sequence[GateRule], scope_of: ScopeOf | None = None, defaults: Mapping[str, Default] | None = None
    ) -> None:
        """Raises ConfigError for a glob that can't be read."""
        self._rules = [_Row(rule) for rule in rules]
        self._scope_of = scope_of
        self._defaults = defaults or {}

    def verdict(self, wanted: Wanted) -> Verdict:
        seen = self._seen(wanted)
        if seen.effect != "read" and "L0" in seen.scopes:
            return Verdict("deny", "no run writes files of the server itself")
        for row in self._rules:
            if row.rule.verdict == "deny" and row.matches(seen):
                return Verdict("deny", row.told)
        for row in self._rules:
            if row.matches(seen):
                return _kept_asking(Verdict(row.rule.verdict, row.told), seen)
        if wanted.tool is not None and (default := self._defaults.get(wanted.tool.name)) is not None:
            decision = default(wanted.arguments)
            return Verdict(decision, f"calls of {wanted.tool.name} like this {_DOES[decision]}")
        return _default(wanted.tool)

    def leave_to_read(self, tool: ToolSpec) -> bool:
        """Whether every call of this tool may be made, whatever its arguments and for whom: it only reads, and no rule
        that could say otherwise looks further than its name."""
        if tool.effect != "read" or tool.name in OFF:
            return False
        about = [row for row in self._rules if row.is_about(tool)]
        return all(row.looks_no_further for row in about) and self.verdict(Wanted(tool, {})).decision == "allow"

    def shuts(self, wanted: Wanted) -> Callable[[str], bool] | None:
        """What a call that looks around in a folder must not show of it: whatever the same call would be denied, or a
        person be asked about, at that very path, if it may be made without a question here. None: no rule is about
        paths or scopes of this tool."""
        tool = wanted.tool
        if tool is None or tool.effect != "read" or tool.source == "caller":
            return None
        if not any(row.is_about(tool) and row.looks_at_paths for row in self._rules):
            return None
        free = self.verdict(wanted).decision == "allow"

        def shut(path: str) -> bool:
            found = self.verdict(replace(wanted, arguments={**wanted.arguments, "path": path})).decision
            return found == "deny" or (free and found == "ask")

        return shut

    def risk(self, wanted: Wanted) -> Risk:
        """What the call risks; see risk_of."""
        return self._seen(wanted).risk

    def _seen(self, wanted: Wanted) -> _Seen:
        tool, paths = wanted.tool, wanted.paths
        ours = () if tool is None or tool.source == "caller" else paths
        scopes = tuple(scope for path in ours if (scope := self._scope(path)) is not None)
        return _Seen(
            name=tool.name if tool is not None else "",
            effect=tool.effect if tool is not None else "irreversible",
            paths=paths,
            folded=tuple(path.casefold() for path in paths),
            scopes=scopes,
            risk=risk_of(tool, scopes, wanted.declared),
            agent=wanted.agent or "",
            mandate=wanted.mandate or "",
        )

    def _scope(self, path: str) -> Scope | None:
        """None for what is no path of the workspace: our tools refuse it, and no rule allows by it."""
        try:
            return None if self._scope_of is None else self._scope_of(plain_path(path))
        except KairosError:
            return None


def risk_of(tool: ToolSpec | None, scopes: Sequence[Scope], declared: Risk = "low") -> Risk:
    """The fixed table of RULINGS.md; `scopes` are those of the paths of the call. A model can only raise it."""
    return max(_fixed(tool, scopes), declared, key=RISKS.index)


def _fixed(tool: ToolSpec | None, scopes: Sequence[Scope]) -> Risk:
    match tool:
        case ToolSpec(effect="read"):
            return "low"
        case None | ToolSpec(effect="irreversible"):
            return "high"
        case _ if "L0" in scopes:
            return "high"
        case ToolSpec(effect="idempotent"):
            return "medium"
        case ToolSpec(name=name) if name in SEVERAL or "L1" in scopes or len(scopes) > 1:
            return "medium"
        case _:
            return "low" if scopes else "high"  # what it changes is not known


def paths_of(tool: ToolSpec | None, arguments: JsonObject) -> tuple[str, ...]:
    """The paths that a call names, plain where they are paths at all: `path`, and `edits[].path`. A tool that reads
    at a path and is given none reads the workspace itself; the paths of a skill are not the workspace's."""
    if tool is not None and (tool.name, tool.source) == (READ_SKILL, "builtin"):
        return ()
    named: list[Any] = [arguments.get("path")]
    reads = tool is not None and tool.effect == "read" and "path" in tool.input_schema.get("properties", {})
    if named == [None] and reads:
        named = ["."]
    match arguments.get("edits"):
        case list() as edits:
            named += [edit.get("path") for edit in edits if isinstance(edit, dict)]
        case _:
            pass
    return tuple(dict.fromkeys(_plain(path) for path in named if isinstance(path, str)))


def pin_of(tool: ToolSpec) -> str:
    """What an approval means by this tool: its name, description, schema, effect and where it comes from."""
    return sha256(ToolSet([tool]).digest + tool.source.encode()).hexdigest()


def digest_of_ask(
    tool: ToolSpec, arguments: JsonObject, workspace: str | None, preview: str, base: Mapping[str, str | None]
) -> str:
    """SHA-256 in hex over exactly what leave is asked for: the tool and its pin, the arguments, the workspace, what a
    person is shown, and the files that it stands on. Whatever differs in one of them is another ask."""
    asked = [tool.name, pin_of(tool), arguments, workspace, preview, dict(base)]
    return sha256(canonical(asked).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Seen:
    """A call as rules look at it. `folded`: its paths without regard to case, as some file systems read them."""

    name: str
    effect: str
    paths: tuple[str, ...]
    folded: tuple[str, ...]
    scopes: tuple[Scope, ...]
    risk: Risk
    agent: str
    mandate: str


@dataclass(frozen=True)
class _Row:
    """A rule with its globs compiled."""

    rule: GateRule
    exact: tuple[Callable[[str], bool], ...] = field(init=False)
    folded: tuple[Callable[[str], bool], ...] = field(init=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "exact", tuple(glob(text) for text in self.rule.paths))
            object.__setattr__(self, "folded", tuple(glob(text.casefold()) for text in self.rule.paths))
        except BadArguments as error:
            raise ConfigError(
                f"A rule of the gate has a glob that can't be read: {error.message}", error.hint
            ) from None

    @property
    def told(self) -> str:
        rule = self.rule
        narrowed = [f'"{", ".join(rule.paths)}"'] if rule.paths else []
        narrowed += [part for part in (rule.scope, rule.effect, rule.risk and f"{rule.risk} risk") if part]
        where = f" on {', '.join(narrowed)}" if narrowed else ""
        return f'the rule {rule.verdict} "{rule.tools}"{where}'

    def is_about(self, tool: ToolSpec) -> bool:
        return fnmatchcase(tool.name, self.rule.tools) and self.rule.effect in (None, tool.effect)

    @property
    def looks_at_paths(self) -> bool:
        return self.rule.verdict != "allow" and bool(self.rule.paths or self.rule.scope)

    @property
    def looks_no_further(self) -> bool:
        rule = self.rule
        return not rule.paths and (rule.scope, rule.risk, rule.agent, rule.mandate) == (None, None, None, None)

    def matches(self, seen: _Seen) -> bool:
        rule = self.rule
        return (
            fnmatchcase(seen.name, rule.tools)
            and rule.effect in (None, seen.effect)
            and rule.risk in (None, seen.risk)
            and (rule.agent is None or fnmatchcase(seen.agent, rule.agent))
            and (rule.mandate is None or fnmatchcase(seen.mandate, rule.mandate))
            and (self._allows(seen) if rule.verdict == "allow" else self._touches(seen))
        )

    def _allows(self, seen: _Seen) -> bool:
        """Whether all of the call lies within what the rule means: every path, and no effect that it doesn't name."""
        rule = self.rule
        if seen.effect == "irreversible" and rule.effect is None and rule.tools != seen.name:
            return False
        if rule.scope is not None and set(seen.scopes) != {rule.scope}:
            return False
        inside = bool(seen.paths) and all(any(fits(path) for fits in self.exact) for path in seen.paths)
        return inside or not rule.paths

    def _touches(self, seen: _Seen) -> bool:
        """Whether any of the call lies within it. A glob of what a folder holds is about the folder too."""
        rule = self.rule
        if rule.scope is not None and rule.scope not in seen.scopes:
            return False
        touched = any(fits(path) or fits(f"{path}/") for fits in self.folded for path in seen.folded)
        return touched or not rule.paths


def _kept_asking(verdict: Verdict, seen: _Seen) -> Verdict:
    if verdict.decision == "allow" and seen.effect != "read" and "L1" in seen.scopes:
        return Verdict("ask", "instructions to agents are always asked about")
    return verdict


def _default(tool: ToolSpec | None) -> Verdict:
    match tool:
        case None:
            return Verdict("deny", "nobody knows this tool")
        case ToolSpec(source="caller"):
            return Verdict("allow", "the caller executes its own tools")
        case ToolSpec(name=name) if name in OFF:
            return Verdict("deny", f"{name} is off until a rule of the gate allows it or asks")
        case ToolSpec(effect="read"):
            return Verdict("allow", "it only reads")
        case ToolSpec(effect=effect):
            return Verdict("ask", f"tools that are {effect} ask a person")


def _plain(path: str) -> str:
    try:
        return plain_path(path)
    except KairosError:
        return path  # the tool refuses it, and says why
