"""Decides whether a call may be made: allow, ask a person, or deny, by one table of rules.

The table is outside every flow, so a changed rule never changes a replay. Deny rules are tried first and always win;
then the first rule that matches; then the default: reading is allowed, http_fetch and unknown tools are denied, the
caller runs its own tools, a loop may ask its limits for more rounds, everything else asks a person.

Two things no rule can allow: a run never writes the server's own files (scope L0), and writing instructions to agents
(scope L1) always asks a person. A call that can't be undone is allowed only by a rule that states its effect class, the
tool's full name, or a command.

What a person said to allow from then on (store/rules.py) comes after deny rules and what is always asked about, and
before the other rules: `GateRuling.may_remember` says where it counts.

tools/touched_paths.py finds the paths of a call, for every tool. If a path can't be resolved or lies outside the
workspace, nobody knows whose it is: a call that writes there asks a person, as for instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache

from kairos_mcp.core.builtin_tools import DENIED_BY_DEFAULT, NAME_LISTING_TOOLS, REQUEST_MORE_ROUNDS
from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.errors import Denied, KairosError, StaleFile
from kairos_mcp.core.messages import JsonObject, ToolSpec
from kairos_mcp.core.paths import PATH_CHARS, Risk, Scope, Scopes, fold_path, plain_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.gate_calls import (
    GatedCall,
    command_of,
    is_command,
    list_asked_paths,
    read_call,
    reads_at_paths,
    risk_of,
    shows_files,
)
from kairos_mcp.gate_rules import CallFacts, CompiledRule
from kairos_mcp.settings.table_values import FlowOfRule, GateRule, GateVerdict
from kairos_mcp.tools.commands.program_names import FindProgram
from kairos_mcp.tools.files.read_tools import READ_SPEC
from kairos_mcp.tools.touched_paths import TouchedPaths

ScopeOf = Callable[[str], Scope]
Default = Callable[[JsonObject], GateVerdict]

_STRICT: Callable[[GateVerdict], int] = ("allow", "ask", "deny").index
_DECISION_PHRASES = {"allow": "may be made", "ask": "ask a person", "deny": "are not made"}


@dataclass(frozen=True, slots=True)
class GateRuling:
    """What is decided; `reason` names the rule, or the default, in words that a model may read.

    `may_remember`: a person is asked, and may answer for further calls of this kind. `flow`: what the rule that allows
    the call says of what it takes along.
    """

    decision: GateVerdict
    reason: str
    may_remember: bool = False
    flow: FlowOfRule = "watched"


class Gate:
    """The rules of one configuration, applied to calls.

    `scope_of` tells whose file a plain path is (None: there are no files). `defaults` decide by the arguments, for
    tools whose calls differ in what the default should be. `paths` finds what calls touch, `find_program` what the
    program of a command is called.
    """

    def __init__(
        self,
        rules: Sequence[GateRule],
        scope_of: ScopeOf | None = None,
        defaults: Mapping[str, Default] | None = None,
        paths: TouchedPaths | None = None,
        find_program: FindProgram | None = None,
        *,
        read_only: bool = False,
        sees_flow: bool = True,
    ) -> None:
        """Compile the rules. `read_only`: only what reads, and is allowed unasked, may be done. `sees_flow`: what calls
        take along is looked at; else a rule that allows only what is clean asks. Raises ConfigError for a glob that
        can't be read."""
        self._is_read_only = read_only
        asks = [replace(rule, verdict="ask") if rule.flow == "clean" and not sees_flow else rule for rule in rules]
        self._rules = [CompiledRule.compile(rule) for rule in asks]
        self._scope_of = lru_cache(maxsize=1_024)(scope_of) if scope_of is not None else None  # a call is judged twice
        self._defaults = defaults or {}
        self._paths = paths or TouchedPaths(None, Scopes())
        self._find_program = find_program

    def judge(self, call: GatedCall) -> GateRuling:
        """Decide on a call; in this order: the server's own files, deny rules, first rule that matches, defaults."""
        ruling = self._apply_rules(call)
        if ruling.decision == "allow" and (stricter := self._judge_read_files(call)) is not None:
            ruling = stricter
        if self._is_read_only:
            ruling = _only_reading(call.tool, ruling)
        if ruling.decision != "ask":
            return ruling
        return replace(ruling, may_remember=self._may_remember(self._call_facts(call)))

    def _apply_rules(self, call: GatedCall) -> GateRuling:
        tool = call.tool
        if tool is None:
            # No rule can allow it: what it does is not known.
            return GateRuling("deny", "there is no tool of this name")
        facts = self._call_facts(call)
        if facts.effect != "read" and "L0" in facts.scopes:
            return GateRuling("deny", _own_file_reason(facts))
        for rule in self._rules:
            if rule.setting.verdict == "deny" and rule.matches(facts):
                return GateRuling("deny", rule.description)
        for path in list_asked_paths(call):
            if (ruling := self.judge(read_call(path, call.agent, call.mandate))).decision == "deny":
                return ruling
        for rule in self._rules:
            if rule.matches(facts):
                ruling = GateRuling(rule.setting.verdict, rule.description, flow=rule.setting.flow)
                return self._ask_if_needed(ruling, rule, facts)
        if not shows_files(tool) and _reads_env_file(tool, facts):
            return GateRuling(
                "ask", "files like .env hold secrets: reading one is asked about, unless a rule allows it"
            )
        if (default := self._defaults.get(tool.name)) is not None:
            decision = default(call.arguments)
            return GateRuling(decision, f"calls of {tool.name} like this {_DECISION_PHRASES[decision]}")
        return self._ask_if_needed(_default_verdict(tool), None, facts)

    def judge_contained(self, call: GatedCall) -> GateRuling:
        """Decide on a call that writes nothing but its run's stage: it may be made where only the default would ask, or
        what is always asked about, since that is asked when the stage is submitted.

        Asked is nevertheless where a person's rule says so, and about folders that programs don't see otherwise. (About
        files like `.env` a preview leads to a question.)
        """
        ruling = self.judge(call)
        if ruling.decision != "ask":
            return ruling
        facts = self._call_facts(call)
        leads_out = facts.touched.outside or facts.touched.unresolved
        if self.asks_by_rule(call) or facts.opens_more or leads_out:
            return ruling
        return GateRuling("allow", "it changes its run's stage alone")

    def asks_by_rule(self, call: GatedCall) -> bool:
        """Return whether the first rule that is about this very call says that a person is asked."""
        facts = self._call_facts(call)
        first = next((rule for rule in self._rules if rule.matches(facts)), None)
        return first is not None and first.setting.verdict == "ask"

    def may_read_unasked(self, path: str, *, agent: str | None = None, mandate: str | None = None) -> bool:
        """Return whether read_file may read this path of the workspace without a person being asked.

        Of any other file nothing that depends on its content is said before a person has decided.
        """
        return self.judge(read_call(path, agent, mandate)).decision == "allow"

    def reads_file_system(self, tool: ToolSpec) -> bool:
        """Return whether judging a call of this tool has to read the file system: for tools that are not built in, if
        it matters where their paths lead."""
        if tool.source == "builtin":
            return False
        has_rules = any(rule.applies_to(tool) and not rule.is_by_name_alone for rule in self._rules)
        return has_rules or not tool.is_caller_tool

    def with_touched_paths(self, call: GatedCall) -> GatedCall:
        """Return the call with the paths it touches now, and what its program is called. Reads the file system for a
        command, and where `reads_file_system` says so."""
        program = self._find_program(call.arguments) if self._find_program and is_command(call.tool) else None
        return replace(call, touched=self._paths.find(call.tool, call.arguments), program=program)

    def recheck(self, call: GatedCall, approved: Mapping[str, str | None] | None) -> None:
        """Check right before a call that it still touches the paths it was judged by. Raises Denied, StaleFile.

        `approved`: the paths that a person was shown (none: {}); the call must touch all of them and no others. None:
        nobody was asked, and the rules must allow the call with the paths that it touches now.
        """
        tool = call.tool
        if tool is None or not self.reads_file_system(tool):
            return
        call = self.with_touched_paths(call)
        verdict = self.judge(call)
        if verdict.decision == "deny":
            raise Denied(f"{tool.name} was not run: {verdict.reason}.", "Go on without it.")
        touched_paths = set(call.touched.names) if call.touched is not None else set()
        may_go_on = verdict.decision == "allow" if approved is None else touched_paths == set(approved)
        if may_go_on:
            return
        raise StaleFile(
            f"{tool.name} was not run: its paths lead elsewhere now than when it was judged.",
            "Call it again: it will be judged again.",
        )

    def allows_every_read(self, tool: ToolSpec) -> bool:
        """Return whether every call of this tool is allowed, whatever its arguments and for whomever: it only reads,
        and every rule for it depends on its name alone."""
        if tool.effect != "read" or tool.name in DENIED_BY_DEFAULT:
            return False
        if reads_at_paths(tool):
            return False  # a file like .env may be among them
        rules = [rule for rule in self._rules if rule.applies_to(tool)]
        return all(rule.is_by_name_alone for rule in rules) and self.judge(GatedCall(tool, {})).decision == "allow"

    def secret_file_test(self, tool: ToolSpec) -> Callable[[str], bool] | None:
        """Return the test for the files that alone keep a call of this tool from being allowed, and from showing all
        that it finds: those like `.env`. None: its calls have to be judged one by one.

        It is for a built-in tool that reads what its `path` names, where no rule is about it or about read_file.
        """
        is_alike = (
            tool.effect == "read"
            and reads_at_paths(tool)
            and tool.name not in self._defaults
            and tool.name not in DENIED_BY_DEFAULT
            and not any(rule.applies_to(tool) or rule.applies_to(READ_SPEC) for rule in self._rules)
        )
        return is_env_file if is_alike else None

    def hidden_path_test(self, call: GatedCall) -> Callable[[str], bool] | None:
        """Return a test for the paths that a call on a folder must not show; None if it may show all.

        Hidden is a path at which the same call would be denied; or would ask a person, if this call runs unasked.
        """
        tool = call.tool
        if is_command(tool):
            return self._covered_file_test(call)
        if tool is None or tool.effect != "read" or tool.source != "builtin":
            return None  # we can't keep a foreign tool from showing what it finds: it is judged by its folder
        is_unreadable = self._unreadable_by(call) if reads_at_paths(tool) else None
        if not any(rule.applies_to(tool) and rule.restricts_paths for rule in self._rules):
            return is_unreadable
        is_allowed = self.judge(call).decision == "allow"

        def is_hidden(path: str) -> bool:
            decision = self._apply_rules(replace(call, arguments={**call.arguments, "path": path})).decision
            if is_unreadable is not None and is_unreadable(path):
                decision = max(decision, self.judge(read_call(path, call.agent, call.mandate)).decision, key=_STRICT)
            return decision == "deny" or (is_allowed and decision == "ask")

        return is_hidden

    def _covered_file_test(self, call: GatedCall) -> Callable[[str], bool]:
        """Return the test for the files that a program must not read; a call opens those that it asks to read, which a
        person is asked about, and none that read_file is denied."""
        is_unreadable, asked = self.unreadable_file_test(call.agent, call.mandate), list_asked_paths(call)
        if not asked:
            return is_unreadable

        def is_covered(path: str) -> bool:
            if not is_unreadable(path):
                return False
            is_asked = any(path == each or path.startswith(f"{each}/") for each in asked)
            return not is_asked or self.judge(read_call(path, call.agent, call.mandate)).decision == "deny"

        return is_covered

    def unreadable_file_test(self, agent: str | None = None, mandate: str | None = None) -> Callable[[str], bool]:
        """Return the test for the files that programs and searches must not show: those that `may_read_unasked` denies.

        Where the rules let read_file show no file unasked, whatever its path, programs and searches are judged by rules
        of their own; then it is the files that rules name by their path, and those like `.env`.
        """
        if not any(rule.applies_to(READ_SPEC) for rule in self._rules):
            return is_env_file
        gate = self._gate_of_paths(agent, mandate)
        return lambda path: not gate.may_read_unasked(path, agent=agent, mandate=mandate)

    def _unreadable_by(self, call: GatedCall) -> Callable[[str], bool] | None:
        """Return the same test for a call of a built-in tool that reads. A rule that allows the call opens files like
        `.env` to it, and none that a rule keeps from read_file."""
        is_unreadable = self.unreadable_file_test(call.agent, call.mandate)
        if not self.allows_by_rule(call):
            return is_unreadable
        gate = self._gate_of_paths(call.agent, call.mandate)
        rules = [rule for rule in gate._rules if rule.setting.verdict != "allow" and rule.applies_to(READ_SPEC)]
        if not rules:
            return None

        def is_kept(path: str) -> bool:
            facts = self._call_facts(read_call(path, call.agent, call.mandate))
            return is_unreadable(path) and any(rule.matches(facts) for rule in rules)

        return is_kept

    def _gate_of_paths(self, agent: str | None, mandate: str | None) -> Gate:
        """Return this gate; one with the rules on paths alone, where read_file shows no file unasked."""
        gates = []
        for is_about_paths in (True, False):
            gate = copy(self)
            gate._rules = [rule for rule in self._rules if rule.is_about_paths == is_about_paths]
            gates.append(gate)
        by_paths, by_names = gates
        shows_some = by_names.may_read_unasked("file", agent=agent, mandate=mandate) or any(
            rule.setting.verdict == "allow" and rule.applies_to(READ_SPEC) for rule in by_paths._rules
        )
        return self if shows_some else by_paths

    def _judge_read_files(self, call: GatedCall) -> GateRuling | None:
        """Return what read_file's rules say of the files that another of our tools would read and show; None: nothing
        more. The workspace itself counts as none: what it holds is judged file by file."""
        tool = call.tool
        if tool is None or not shows_files(tool):
            return None
        if (is_unreadable := self._unreadable_by(call)) is None:
            return None
        paths = [path for path in self._call_facts(call).paths if path != "." and is_unreadable(path)]
        verdicts = {self.judge(read_call(path, call.agent, call.mandate)).decision for path in paths}
        reason = "read_file does not show what it names without asking a person"
        return GateRuling("deny" if "deny" in verdicts else "ask", reason) if paths else None

    def allows_by_rule(self, call: GatedCall) -> bool:
        """Return whether a rule allows this very call, so that the default does not matter."""
        allowing = [rule for rule in self._rules if rule.setting.verdict == "allow"]
        if not allowing:
            return False
        facts = self._call_facts(call)
        return any(rule.matches(facts) for rule in allowing)

    def may_remember(self, call: GatedCall) -> bool:
        """Return whether a person who is asked about a call may answer for further ones like it."""
        return self._may_remember(self._call_facts(call))

    def risk(self, call: GatedCall) -> Risk:
        """Return the risk of the call; see risk_of."""
        return self._call_facts(call).risk

    def _call_facts(self, call: GatedCall) -> CallFacts:
        tool = call.tool
        touched = call.touched or self._paths.find(tool, call.arguments)
        inside = tuple(dict.fromkeys((*touched.inside, *call.preview_paths)))
        scopes = self._scopes_of(tool, inside)
        # A program names only the folder that it is started in.
        writes_files = tool is not None and tool.effect != "read" and not tool.is_caller_tool and not is_command(tool)
        if writes_files and self._paths.writes_repository(inside):
            scopes = (*scopes, "L1")  # git starts there what its settings name, as for instructions
        has_instructions = "L1" in scopes
        if tool is not None and not tool.is_caller_tool:
            unknown_scopes: list[Scope] = ["L1"] * (len(touched.outside) + len(touched.unresolved))
            scopes = (*scopes, *unknown_scopes, "L0") if touched.has_own_files else (*scopes, *unknown_scopes)
        return CallFacts(
            name=tool.name if tool is not None else "",
            effect=tool.effect if tool is not None else "irreversible",
            category=tool.category if tool is not None else "",
            paths=inside,
            folded_paths=tuple(map(fold_path, inside)),
            scopes=scopes,
            risk=risk_of(tool, scopes, call.declared_risk),
            agent=call.agent or "",
            mandate=call.mandate or "",
            touched=touched,
            has_instructions=has_instructions,
            has_hidden_text=call.brings_hidden or touched.has_hidden_text,
            is_caller_tool=tool is not None and tool.is_caller_tool,
            command=command_of(call),
            opens_more=is_command(tool) and bool(call.arguments.get("reads")),
        )

    def _may_remember(self, facts: CallFacts) -> bool:
        """Return whether a person who is asked about this call may answer for further ones: not where they are always
        to be asked."""
        touched = facts.touched
        if {"L0", "L1"} & set(facts.scopes) or touched.unresolved or touched.outside:
            return False
        if facts.has_hidden_text or touched.has_instructions:
            return False
        return not any(
            rule.setting.verdict != "allow" and rule.concerns_folders(touched.folders, facts) for rule in self._rules
        )

    def _ask_if_needed(self, verdict: GateRuling, allowed_by: CompiledRule | None, facts: CallFacts) -> GateRuling:
        """Turn "allow" into "ask" for a call that no rule can allow, or only one that names its path (`allowed_by`)."""
        touched, names_paths = facts.touched, allowed_by is not None and bool(allowed_by.setting.paths)
        if verdict.decision != "allow" or facts.is_caller_tool:
            return verdict
        if facts.effect != "read":
            if touched.unresolved:
                return GateRuling("ask", "it names a path that can't be resolved")
            if not all(allowed_by is not None and allowed_by.allows_outside(path) for path in touched.outside):
                return GateRuling("ask", "it names a path outside the workspace")
            if facts.has_hidden_text:
                return GateRuling("ask", "it writes invisible characters, or ones that turn the direction of writing")
            if facts.has_instructions:
                return GateRuling("ask", "instructions to agents are always asked about")
            if facts.opens_more:
                return GateRuling("ask", "it reads folders that programs don't see otherwise")
            if touched.has_instructions and not names_paths:
                return GateRuling("ask", "it names a folder that may hold instructions to agents, and no rule its path")
        for rule in self._rules:
            if not names_paths and rule.setting.verdict != "allow" and rule.concerns_folders(touched.folders, facts):
                return GateRuling("ask", f"it names a folder that holds what {rule.description} is about")
        return verdict

    def _scopes_of(self, tool: ToolSpec | None, paths: Sequence[str]) -> tuple[Scope, ...]:
        """Return whose files the paths of a call are.

        For a foreign tool a folder counts like a file in it, and the workspace itself has no scope: what it holds
        was searched.
        """
        if tool is None or tool.is_caller_tool:
            return ()
        if tool.source == "builtin":
            return tuple(scope for path in paths if (scope := self._scope_of_path(path)) is not None)
        pairs = ((self._scope_of_path(path), self._scope_of_path(f"{path}/new")) for path in paths if path != ".")
        return tuple(min(scope for scope in pair if scope is not None) for pair in pairs if any(pair))  # L0 before L1

    def _scope_of_path(self, path: str) -> Scope | None:
        """Return the scope of a path; None for what is no path of the workspace, which our tools refuse anyway."""
        try:
            return None if self._scope_of is None else self._scope_of(plain_path(path))
        except KairosError:
            return None


def _own_file_reason(facts: CallFacts) -> str:
    """Say why a call is denied that writes the server's own files, or a path that can't be told from one."""
    for path in facts.paths:
        if odd := [character for character in path if not character.isprintable()]:
            return f"its path holds an invisible character (U+{ord(odd[0]):04X}): leave it out"
        if len(path) > PATH_CHARS:
            return f"its path is longer than {PATH_CHARS:,} characters"
    return "no run writes files of the server itself"


def _reads_env_file(tool: ToolSpec, facts: CallFacts) -> bool:
    if facts.effect != "read" or facts.is_caller_tool or (tool.source == "builtin" and tool.name in NAME_LISTING_TOOLS):
        return False
    touched = facts.touched
    return bool(touched.unresolved) or any(is_env_file(path) for path in (*facts.paths, *touched.outside))


def _only_reading(tool: ToolSpec | None, ruling: GateRuling) -> GateRuling:
    """Return what a read-only server decides: what does more than read is denied, and so is what a person would be
    asked about."""
    if ruling.decision == "ask":
        return GateRuling("deny", f"{ruling.reason}, and nothing is approved on a read-only server")
    if ruling.decision == "allow" and tool and tool.effect != "read" and not REQUEST_MORE_ROUNDS.is_tool(tool):
        return GateRuling("deny", "it does more than read, and this server is read-only")
    return ruling


def _default_verdict(tool: ToolSpec) -> GateRuling:
    match tool:
        case ToolSpec(is_caller_tool=True):
            return GateRuling("allow", "the caller executes its own tools")
        case ToolSpec(name=name) if name in DENIED_BY_DEFAULT:
            return GateRuling("deny", f"{name} is off until a rule of the gate allows it or asks")
        case ToolSpec(effect="read"):
            return GateRuling("allow", "it only reads")
        case _ if REQUEST_MORE_ROUNDS.is_tool(tool):
            return GateRuling("allow", "the run's own limits decide about it")
        case ToolSpec(effect=effect):
            return GateRuling("ask", f"tools that are {effect} ask a person")
