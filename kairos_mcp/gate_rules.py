"""Rules of the gate with their globs compiled: whether one applies to a call, and which apply to nothing.

A rule that allows has to cover all of a call; one that asks or denies needs to match any part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from kairos_mcp.core.builtin_tools import DENIED_BY_DEFAULT, RUN_COMMAND, STAGE_TOOLS, WORKSPACE_TOOLS
from kairos_mcp.core.command_patterns import ProgramNames, fits_pattern, format_pattern
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.paths import Risk, Scope, fold_path
from kairos_mcp.core.patterns import compile_glob, may_match_prefix
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.touched_paths import TouchedSet

PathTest = Callable[[str], bool]

EVERY_FILE = ("*", "**", "**/*")  # globs


@dataclass(frozen=True, slots=True)
class Command:
    """The program of a call, by its names, and its arguments."""

    names: ProgramNames
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallFacts:
    """A call as rules see it.

    `folded_paths`: its paths by `fold_path`. `opens_more`: a command that asks to read
    what no program sees.
    """

    name: str
    effect: str
    category: str
    paths: tuple[str, ...]
    folded_paths: tuple[str, ...]
    scopes: tuple[Scope, ...]
    risk: Risk
    agent: str
    mandate: str
    touched: TouchedSet
    has_instructions: bool
    has_hidden_text: bool
    is_caller_tool: bool
    command: Command | None
    opens_more: bool = False


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule with its globs compiled."""

    setting: GateRule
    globs: tuple[PathTest, ...]
    folded_globs: tuple[PathTest, ...]
    absolute_globs: tuple[PathTest, ...]

    @staticmethod
    def compile(setting: GateRule) -> CompiledRule:
        """Compile the globs of a configured rule. Raises ConfigError for one that can't be read."""
        try:
            return CompiledRule(
                setting,
                tuple(compile_glob(text) for text in setting.paths),
                tuple(compile_glob(fold_path(text)) for text in setting.paths),
                tuple(compile_glob(text) for text in setting.paths if text.startswith("/")),
            )
        except BadArguments as error:
            raise ConfigError(
                f"A rule of the gate has a glob that can't be read: {error.message}", error.hint
            ) from None

    @property
    def description(self) -> str:
        rule = self.setting
        narrowed = [f'"{", ".join(rule.paths)}"'] if rule.paths else []
        narrowed += [f'"{format_pattern(rule.argv)}"'] if rule.argv else []
        narrowed += [f"category {rule.category}"] if rule.category else []
        narrowed += [f"agent {rule.agent}"] if rule.agent else []
        narrowed += [f"mandate {rule.mandate}"] if rule.mandate else []
        narrowed += [part for part in (rule.scope, rule.effect, rule.risk and f"{rule.risk} risk") if part]
        where = f" on {', '.join(narrowed)}" if narrowed else ""
        verdict = "clean" if rule.flow == "clean" else rule.verdict
        return f'the rule {verdict} "{rule.tools}"{where}'

    def applies_to(self, tool: ToolSpec) -> bool:
        rule = self.setting
        return (
            fnmatchcase(tool.name, rule.tools)
            and rule.effect in (None, tool.effect)
            and (rule.category is None or fnmatchcase(tool.category, rule.category))
        )

    @property
    def restricts_paths(self) -> bool:
        return self.setting.verdict != "allow" and bool(self.setting.paths or self.setting.scope)

    @property
    def is_about_paths(self) -> bool:
        """Whether the rule names some files and not others."""
        return self.setting.scope is not None or any(glob not in EVERY_FILE for glob in self.setting.paths)

    @property
    def is_by_name_alone(self) -> bool:
        rule = self.setting
        narrowing = (rule.scope, rule.risk, rule.agent, rule.mandate)
        return not rule.paths and not rule.argv and narrowing == (None, None, None, None)

    def matches(self, facts: CallFacts) -> bool:
        if not self.fits_call(facts) or not self._fits_command(facts.command):
            return False
        return self._allows_all(facts) if self.setting.verdict == "allow" else self._touches_any(facts)

    def _fits_command(self, command: Command | None) -> bool:
        rule = self.setting
        if not rule.argv:
            return True
        if command is None:
            return False
        names = command.names.safe if rule.verdict == "allow" else command.names.all
        return fits_pattern(rule.argv, names, command.arguments)

    def fits_call(self, facts: CallFacts) -> bool:
        """Return whether the rule applies to this call, whatever its paths."""
        rule = self.setting
        return (
            fnmatchcase(facts.name, rule.tools)
            and rule.effect in (None, facts.effect)
            and (rule.category is None or fnmatchcase(facts.category, rule.category))
            and rule.risk in (None, facts.risk)
            and (rule.agent is None or fnmatchcase(facts.agent, rule.agent))
            and (rule.mandate is None or fnmatchcase(facts.mandate, rule.mandate))
        )

    def _allows_all(self, facts: CallFacts) -> bool:
        """Return whether an allow rule covers the whole call: every path, and an irreversible effect only if named."""
        rule = self.setting
        if facts.effect == "irreversible" and rule.effect is None and rule.tools != facts.name and not rule.argv:
            return False
        if rule.scope is not None and set(facts.scopes) != {rule.scope}:
            return False
        if not rule.paths:
            return True
        touched = facts.touched
        inside = all(any(fits(path) for fits in self.globs) for path in facts.paths)
        outside = all(self.allows_outside(path) for path in touched.outside)
        return inside and outside and not touched.unresolved and bool(facts.paths or touched.outside)

    def allows_outside(self, path: str) -> bool:
        """Return whether a glob of this rule that begins with a slash matches this path outside the workspace."""
        return any(fits(path.lstrip("/")) for fits in self.absolute_globs)

    def concerns_folders(self, folders: Sequence[str], facts: CallFacts) -> bool:
        """Return whether this rule is about something in one of these folders: by the text before its wildcard."""
        rule = self.setting
        if not folders or not rule.paths or not self.fits_call(facts):
            return False
        prefixes = [fold_path(re.split(r"[*?\[{]", text.removeprefix("./"), maxsplit=1)[0]) for text in rule.paths]
        folder_prefixes = tuple("" if folder == "." else f"{fold_path(folder)}/" for folder in folders)
        return any("/" in text and text.startswith(folder_prefixes) for text in prefixes if not text.startswith("/"))

    def _touches_any(self, facts: CallFacts) -> bool:
        """Return whether a deny or ask rule matches any part of the call, or might.

        A glob for what a folder holds matches the folder too; one without a slash matches names anywhere, also outside
        the workspace.
        """
        rule = self.setting
        if rule.scope is not None and rule.scope not in facts.scopes:
            return False
        if not rule.paths or facts.touched.unresolved:
            return True
        outside = [fold_path(path.lstrip("/")) for path in facts.touched.outside]
        return any(
            fits(path) or fits(f"{path}/") for fits in self.folded_globs for path in (*facts.folded_paths, *outside)
        )


def unused_rules(
    rules: Sequence[GateRule],
    known: Iterable[str],
    unlisted_prefixes: Iterable[str],
    *,
    categories: Iterable[str] | None = None,
    agents: Iterable[str] | None = None,
    mandates: Iterable[str] | None = None,
) -> tuple[str, ...]:
    """Return a sentence for each rule that fits nothing: a deny rule with a typing error protects nothing.

    `known`: the names of tools; the built-in ones for a workspace count also where there is none, since rules are kept
    for all folders. `unlisted_prefixes`: how the names begin of tools that are not listed yet, such as
    those of a server that was never started. `categories`, `agents`, `mandates`: the names that there are; None: they
    are not judged.
    """
    all_names = (*known, *DENIED_BY_DEFAULT, *WORKSPACE_TOOLS, *STAGE_TOOLS)
    prefixes = tuple(unlisted_prefixes)
    notes = []
    for rule in rules:
        names = (RUN_COMMAND.name,) if rule.argv else all_names
        is_coming = not rule.argv and any(may_match_prefix(rule.tools, prefix) for prefix in prefixes)
        coming = [f"mcp:{prefix.removesuffix('__')}" for prefix in prefixes]
        lacks = [
            (glob, tuple(there), what)
            for glob, there, what in (
                (rule.tools, None if is_coming else names, "tool"),
                (rule.category, None if categories is None else (*categories, *coming), "category"),
                (rule.agent, agents, "agent"),
                (rule.mandate, mandates, "mandate"),
            )
            if glob is not None and there is not None
        ]
        for glob, there, what in lacks:
            if any(fnmatchcase(name, glob) for name in there):
                continue
            description = CompiledRule.compile(rule).description
            close = get_close_matches(glob, there, n=1, cutoff=0.7)
            suggestion = f"; {close[0]!r} may be meant" if close else ""
            notes.append(
                f"{description[:1].upper()}{description[1:]} of the gate fits no {what} known so far{suggestion}."
            )
    return tuple(notes)
