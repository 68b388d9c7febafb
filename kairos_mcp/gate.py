"""May this call be made? One table of rules, outside every flow, so that a changed rule never changes a replay.

Deny rules are tried first and always win; then the first rule that matches; then the default: reading is
allowed, http_fetch and unknown tools are denied, the caller runs its own tools, everything else asks a person.

Two things no rule can allow: a run never writes the server's own files (L0), and instructions to agents (L1) are
always asked about. And what can't be undone is allowed only by a rule that means it: one that names
its effect class, or the tool in full.

tools/touched_paths.py finds the paths of a call, for every tool. It is not known whose a path is that can't be resolved
or lies outside the workspace: a call that writes there is asked about, like one on instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Literal

from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import BadArguments, ConfigError, Denied, KairosError, StaleFile
from kairos_mcp.core.messages import JsonObject, Risk, ToolSet, ToolSpec, canonical_json
from kairos_mcp.core.paths import plain_path
from kairos_mcp.core.patterns import compile_glob
from kairos_mcp.core.scopes import PATH_CHARS, Scope, Scopes
from kairos_mcp.settings.settings import GateRule
from kairos_mcp.tools.skills import READ_SKILL
from kairos_mcp.tools.touched_paths import TouchedPaths, TouchedSet

NAMES_ALONE = frozenset({"list_files", "file_tree"})  # they show names and no text
DENIED_BY_DEFAULT = frozenset({"http_fetch"})  # denied until a rule says otherwise
MULTI_FILE_EDITS = frozenset(
    {"plan_edits", "apply_edit_plan", "apply_edits"}
)  # an edit of several files, whatever their number
RISKS: tuple[Risk, ...] = ("low", "medium", "high")

Decision = Literal["allow", "ask", "deny"]
ScopeOf = Callable[[str], Scope]
Default = Callable[[JsonObject], Decision]

_DOES = {"allow": "may be made", "ask": "ask a person", "deny": "are not made"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`because` names the rule, or the default, in words that a model may read."""

    decision: Decision
    reason: str


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A call to be judged. `tool` is None where no tool has this name.

    `agent` and `mandate` say for whom it is. `found` are further paths that the call depends on, as a preview found
    them; `brings_hidden`: the preview also found that the call writes invisible characters into a file. `declared`: the
    risk that the model gave, which can only raise ours. `touched`: what the file system showed already
    (`Gate.with_touched_paths`); None: it is read when the gate is asked.
    """

    tool: ToolSpec | None
    arguments: JsonObject
    agent: str | None = None
    mandate: str | None = None
    found: tuple[str, ...] = ()
    declared: Risk = "low"
    touched: TouchedSet | None = None
    brings_hidden: bool = False


def unused_rules(rules: Sequence[GateRule], known: Iterable[str], unmet: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each rule whose glob fits no tool: a deny rule with a typing error protects nothing.

    `known`: the names of tools; `unmet`: prefixes of tools that have not been listed yet, as those of a server.
    """
    names, beginnings = (*known, *DENIED_BY_DEFAULT, *MULTI_FILE_EDITS), tuple(unmet)
    found = []
    for rule in rules:
        fits = any(fnmatchcase(name, rule.tools) for name in names)
        if not fits and not any(_could_begin(rule.tools, beginning) for beginning in beginnings):
            description = _CompiledRule(rule).description
            near = get_close_matches(rule.tools, names, n=1, cutoff=0.7)
            meant = f"; {near[0]!r} may be meant" if near else ""
            found.append(f"{description[:1].upper()}{description[1:]} of the gate fits no tool known so far{meant}.")
    return tuple(found)


def _could_begin(glob: str, beginning: str) -> bool:
    """Whether the glob could fit a name that begins so, by what stands before its first wildcard."""
    fixed = re.split(r"[*?\[]", glob, maxsplit=1)[0]
    return fixed.startswith(beginning) or (beginning.startswith(fixed) and fixed != glob)


class Gate:
    """The table of a configuration. `scope_of` says of a plain path whose file it is (None: there are no files);
    `defaults` are functions of the arguments, for tools whose calls differ where no rule says anything; `paths` says
    what calls touch."""

    def __init__(
        self,
        rules: Sequence[GateRule],
        scope_of: ScopeOf | None = None,
        defaults: Mapping[str, Default] | None = None,
        paths: TouchedPaths | None = None,
    ) -> None:
        """Raises ConfigError for a glob that can't be read."""
        self._rules = [_CompiledRule(rule) for rule in rules]
        self._scope_of = scope_of
        self._defaults = defaults or {}
        self._paths = paths or TouchedPaths(None, Scopes())

    def verdict(self, call: ToolCallRequest) -> Verdict:
        tool = call.tool
        if tool is None:
            return Verdict("deny", "nobody knows this tool")  # and no rule means it: what it does is not known
        facts = self._call_facts(call)
        if facts.effect != "read" and "L0" in facts.scopes:
            return Verdict("deny", _own_file_reason(facts))
        for row in self._rules:
            if row.rule.verdict == "deny" and row.matches(facts):
                return Verdict("deny", row.description)
        for row in self._rules:
            if row.matches(facts):
                return self._ask_instead(Verdict(row.rule.verdict, row.description), row, facts)
        if _reads_env_file(tool, facts):
            return Verdict("ask", "files like .env hold secrets: reading one is asked about, unless a rule allows it")
        if (default := self._defaults.get(tool.name)) is not None:
            decision = default(call.arguments)
            return Verdict(decision, f"calls of {tool.name} like this {_DOES[decision]}")
        return self._ask_instead(_default(tool), None, facts)

    def reads_file_system(self, tool: ToolSpec) -> bool:
        """Whether the file system has to be looked at before a call of this tool can be judged: it is none of ours,
        and where its paths lead can make a difference."""
        if tool.source == "builtin":
            return False
        judged = any(row.is_about(tool) and not row.is_by_name_alone for row in self._rules)
        return judged or tool.source != "caller"

    def with_touched_paths(self, call: ToolCallRequest) -> ToolCallRequest:
        """Return the call with the paths it touches now. Reads the file system where `reads_file_system` says so."""
        return replace(call, touched=self._paths.of(call.tool, call.arguments))

    def recheck(self, call: ToolCallRequest, approved: Mapping[str, str | None] | None) -> None:
        """Check right before the call that it still touches the paths it was judged by. Raises Denied, StaleFile.

        `approved`: the paths that a person was shown; None: nobody was asked.
        """
        tool = call.tool
        if tool is None or not self.reads_file_system(tool):
            return
        call = self.with_touched_paths(call)
        verdict = self.verdict(call)
        if verdict.decision == "deny":
            raise Denied(f"{tool.name} was not run: {verdict.reason}.", "Go on without it.")
        now = set(call.touched.names) if call.touched is not None else set()
        if verdict.decision == "allow" if approved is None else now == set(approved):
            return
        raise StaleFile(
            f"{tool.name} was not run: its paths lead elsewhere now than when it was judged.",
            "Call it again: it is judged anew.",
        )

    def allows_every_read(self, tool: ToolSpec) -> bool:
        """Whether every call of this tool may be made, whatever its arguments and for whom: it only reads, and no rule
        that could say otherwise looks further than its name."""
        if tool.effect != "read" or tool.name in DENIED_BY_DEFAULT:
            return False
        if _reads_at_paths(tool):
            return False  # a file like .env may be among them
        about = [row for row in self._rules if row.is_about(tool)]
        return (
            all(row.is_by_name_alone for row in about) and self.verdict(ToolCallRequest(tool, {})).decision == "allow"
        )

    def hidden_paths(self, call: ToolCallRequest) -> Callable[[str], bool] | None:
        """What a call that looks around in a folder must not show of it: whatever the same call would be denied, or a
        person be asked about, at that very path, if it may be made without a question here. None: no rule is about
        paths or scopes of this tool."""
        tool = call.tool
        if tool is None or tool.effect != "read" or tool.source != "builtin":
            return None  # nobody can keep another's tool from showing what it finds: it is judged by its folder
        if not any(row.is_about(tool) and row.restricts_paths for row in self._rules):
            if not _reads_at_paths(tool) or self.allows_by_rule(call):
                return None
            return is_env_file
        free = self.verdict(call).decision == "allow"

        def is_hidden(path: str) -> bool:
            found = self.verdict(replace(call, arguments={**call.arguments, "path": path})).decision
            return found == "deny" or (free and found == "ask")

        return is_hidden

    def allows_by_rule(self, call: ToolCallRequest) -> bool:
        """Whether a rule allows this very call, so that the default is not asked."""
        facts = self._call_facts(call)
        return any(row.rule.verdict == "allow" and row.matches(facts) for row in self._rules)

    def risk(self, call: ToolCallRequest) -> Risk:
        """What the call risks; see risk_of."""
        return self._call_facts(call).risk

    def _call_facts(self, call: ToolCallRequest) -> _CallFacts:
        tool = call.tool
        touched = call.touched or self._paths.of(tool, call.arguments)
        inside = tuple(dict.fromkeys((*touched.inside, *call.found)))
        scopes = self._scopes(tool, inside)
        instructs = "L1" in scopes
        if tool is not None and tool.source != "caller":
            unknown: list[Scope] = ["L1"] * (len(touched.outside) + len(touched.unresolved))
            scopes = (*scopes, *unknown, "L0") if touched.own else (*scopes, *unknown)
        return _CallFacts(
            name=tool.name if tool is not None else "",
            effect=tool.effect if tool is not None else "irreversible",
            paths=inside,
            folded=tuple(path.casefold() for path in inside),
            scopes=scopes,
            risk=risk_of(tool, scopes, call.declared),
            agent=call.agent or "",
            mandate=call.mandate or "",
            touched=touched,
            instructs=instructs,
            hides=call.brings_hidden or touched.hides,
            is_callers=tool is not None and tool.source == "caller",
        )

    def _ask_instead(self, verdict: Verdict, by: _CompiledRule | None, facts: _CallFacts) -> Verdict:
        """A question instead of what is allowed, where no rule can allow it, or only one that names it (`by`)."""
        touched, named = facts.touched, by is not None and bool(by.rule.paths)
        if verdict.decision != "allow" or facts.is_callers:
            return verdict
        if facts.effect != "read":
            if touched.unresolved:
                return Verdict("ask", "it names a path that can't be resolved")
            if not all(by is not None and by.names_outside(path) for path in touched.outside):
                return Verdict("ask", "it names a path outside the workspace")
            if facts.hides:
                return Verdict("ask", "it brings characters that nobody sees, or that turn the direction of writing")
            if facts.instructs:
                return Verdict("ask", "instructions to agents are always asked about")
            if touched.instructs and not named:
                return Verdict("ask", "it names a folder that may hold instructions to agents, and no rule its path")
        for row in self._rules:
            if not named and row.rule.verdict != "allow" and row.is_inside_folders(touched.folders, facts):
                return Verdict("ask", f"it names a folder that holds what {row.description} is about")
        return verdict

    def _scopes(self, tool: ToolSpec | None, paths: Sequence[str]) -> tuple[Scope, ...]:
        """Whose files the paths of a call are. With another's tool a folder counts as what lies in it, and the
        workspace itself is nobody's: what it holds is looked at."""
        if tool is None or tool.source == "caller":
            return ()
        if tool.source == "builtin":
            return tuple(scope for path in paths if (scope := self._scope(path)) is not None)
        pairs = ((self._scope(path), self._scope(f"{path}/new")) for path in paths if path != ".")
        return tuple(min(scope for scope in pair if scope is not None) for pair in pairs if any(pair))  # L0 before L1

    def _scope(self, path: str) -> Scope | None:
        """None for what is no path of the workspace: our tools refuse it, and no rule allows by it."""
        try:
            return None if self._scope_of is None else self._scope_of(plain_path(path))
        except KairosError:
            return None


def _own_file_reason(facts: _CallFacts) -> str:
    """Say why a call is denied that would write the server's own files, or what can't be told from them."""
    for path in facts.paths:
        if odd := [character for character in path if not character.isprintable()]:
            return f"its path holds a character that nobody sees (U+{ord(odd[0]):04X}): leave it out"
        if len(path) > PATH_CHARS:
            return f"its path is longer than {PATH_CHARS:,} characters"
    return "no run writes files of the server itself"


def risk_of(tool: ToolSpec | None, scopes: Sequence[Scope], declared: Risk = "low") -> Risk:
    """Return the risk by a fixed table; `scopes` are those of the call's paths. A model can only raise it."""
    return max(_table_risk(tool, scopes), declared, key=RISKS.index)


def _table_risk(tool: ToolSpec | None, scopes: Sequence[Scope]) -> Risk:
    match tool:
        case ToolSpec(effect="read"):
            return "low"
        case None | ToolSpec(effect="irreversible"):
            return "high"
        case _ if "L0" in scopes:
            return "high"
        case ToolSpec(effect="idempotent"):
            return "medium"
        case ToolSpec(name=name) if name in MULTI_FILE_EDITS or "L1" in scopes or len(scopes) > 1:
            return "medium"
        case _:
            return "low" if scopes else "high"  # what it changes is not known


def tool_pin(tool: ToolSpec) -> str:
    """Return what binds an approval to this tool: a hash of its name, description, schema, effect and source."""
    return sha256(ToolSet([tool]).digest + tool.source.encode()).hexdigest()


def approval_digest(
    tool: ToolSpec, arguments: JsonObject, workspace: str | None, preview: str, base: Mapping[str, str | None]
) -> str:
    """Return the SHA-256 in hex of exactly what approval is asked for: another value is another request.

    It covers the tool and its pin, the arguments, the workspace, the preview, and the files that the call depends on.
    """
    asked = [tool.name, tool_pin(tool), arguments, workspace, preview, dict(base)]
    return sha256(canonical_json(asked).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _CallFacts:
    """A call as rules look at it. `folded`: its paths without regard to case, as some file systems read them."""

    name: str
    effect: str
    paths: tuple[str, ...]
    folded: tuple[str, ...]
    scopes: tuple[Scope, ...]
    risk: Risk
    agent: str
    mandate: str
    touched: TouchedSet
    instructs: bool
    hides: bool
    is_callers: bool


@dataclass(frozen=True)
class _CompiledRule:
    """A rule with its globs compiled."""

    rule: GateRule
    exact: tuple[Callable[[str], bool], ...] = field(init=False)
    folded: tuple[Callable[[str], bool], ...] = field(init=False)
    absolute: tuple[Callable[[str], bool], ...] = field(init=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "exact", tuple(compile_glob(text) for text in self.rule.paths))
            object.__setattr__(self, "folded", tuple(compile_glob(text.casefold()) for text in self.rule.paths))
            absolute = tuple(compile_glob(text) for text in self.rule.paths if text.startswith("/"))
            object.__setattr__(self, "absolute", absolute)
        except BadArguments as error:
            raise ConfigError(
                f"A rule of the gate has a glob that can't be read: {error.message}", error.hint
            ) from None

    @property
    def description(self) -> str:
        rule = self.rule
        narrowed = [f'"{", ".join(rule.paths)}"'] if rule.paths else []
        narrowed += [part for part in (rule.scope, rule.effect, rule.risk and f"{rule.risk} risk") if part]
        where = f" on {', '.join(narrowed)}" if narrowed else ""
        return f'the rule {rule.verdict} "{rule.tools}"{where}'

    def is_about(self, tool: ToolSpec) -> bool:
        return fnmatchcase(tool.name, self.rule.tools) and self.rule.effect in (None, tool.effect)

    @property
    def restricts_paths(self) -> bool:
        return self.rule.verdict != "allow" and bool(self.rule.paths or self.rule.scope)

    @property
    def is_by_name_alone(self) -> bool:
        rule = self.rule
        return not rule.paths and (rule.scope, rule.risk, rule.agent, rule.mandate) == (None, None, None, None)

    def matches(self, facts: _CallFacts) -> bool:
        return self.fits_call(facts) and (self._allows(facts) if self.rule.verdict == "allow" else self._touches(facts))

    def fits_call(self, facts: _CallFacts) -> bool:
        """Whether the rule is about this call, whatever its paths."""
        rule = self.rule
        return (
            fnmatchcase(facts.name, rule.tools)
            and rule.effect in (None, facts.effect)
            and rule.risk in (None, facts.risk)
            and (rule.agent is None or fnmatchcase(facts.agent, rule.agent))
            and (rule.mandate is None or fnmatchcase(facts.mandate, rule.mandate))
        )

    def _allows(self, facts: _CallFacts) -> bool:
        """Whether all of the call lies within what the rule means: every path, and no effect that it doesn't name."""
        rule = self.rule
        if facts.effect == "irreversible" and rule.effect is None and rule.tools != facts.name:
            return False
        if rule.scope is not None and set(facts.scopes) != {rule.scope}:
            return False
        if not rule.paths:
            return True
        touched = facts.touched
        inside = all(any(fits(path) for fits in self.exact) for path in facts.paths)
        outside = all(self.names_outside(path) for path in touched.outside)
        return inside and outside and not touched.unresolved and bool(facts.paths or touched.outside)

    def names_outside(self, path: str) -> bool:
        """Whether a glob of this rule that begins with a slash means this path outside the workspace."""
        return any(fits(path.lstrip("/")) for fits in self.absolute)

    def is_inside_folders(self, folders: Sequence[str], facts: _CallFacts) -> bool:
        """Whether one of these folders holds what this rule is about, by the names before its first wildcard."""
        rule = self.rule
        if not folders or not rule.paths or not self.fits_call(facts):
            return False
        fixed = [re.split(r"[*?\[{]", text.removeprefix("./"), maxsplit=1)[0].casefold() for text in rule.paths]
        below = tuple("" if folder == "." else f"{folder.casefold()}/" for folder in folders)
        return any("/" in text and text.startswith(below) for text in fixed if not text.startswith("/"))

    def _touches(self, facts: _CallFacts) -> bool:
        """Whether any of the call lies within it, or might. A glob of what a folder holds is about the folder too, and
        one without a slash about names anywhere, outside the workspace as well."""
        rule = self.rule
        if rule.scope is not None and rule.scope not in facts.scopes:
            return False
        if not rule.paths or facts.touched.unresolved:
            return True
        outside = [path.lstrip("/").casefold() for path in facts.touched.outside]
        return any(fits(path) or fits(f"{path}/") for fits in self.folded for path in (*facts.folded, *outside))


def _reads_at_paths(tool: ToolSpec) -> bool:
    """Whether a tool of ours reads files that its arguments name."""
    if tool.source != "builtin" or tool.name in NAMES_ALONE or tool.name == READ_SKILL:
        return False
    properties = tool.input_schema.get("properties", {})
    return "path" in properties or "edits" in properties


def _reads_env_file(tool: ToolSpec, facts: _CallFacts) -> bool:
    if facts.effect != "read" or facts.is_callers or (tool.source == "builtin" and tool.name in NAMES_ALONE):
        return False
    touched = facts.touched
    return bool(touched.unresolved) or any(is_env_file(path) for path in (*facts.paths, *touched.outside))


def _default(tool: ToolSpec) -> Verdict:
    match tool:
        case ToolSpec(source="caller"):
            return Verdict("allow", "the caller executes its own tools")
        case ToolSpec(name=name) if name in DENIED_BY_DEFAULT:
            return Verdict("deny", f"{name} is off until a rule of the gate allows it or asks")
        case ToolSpec(effect="read"):
            return Verdict("allow", "it only reads")
        case ToolSpec(effect=effect):
            return Verdict("ask", f"tools that are {effect} ask a person")
