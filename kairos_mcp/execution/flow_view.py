"""What a run had in view when a call was asked for, told from its rows.

The record decides, not the conversation: a result stays in view after a compaction, and a replay finds the same. In
view is what was answered by the time at which the turn was asked that made the call. What a tool gives is labelled by
its spec as the run was offered it; what the run itself wrote into a file while texts of others were in view is theirs
from then on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, NamedTuple

from kairos_mcp.core.builtin_tools import (
    DELETE_FILE,
    EDIT_TOOLS,
    HTTP_FETCH,
    MOVE_FILE,
    NAME_LISTING_TOOLS,
    READ_RESULT,
    RUN_COMMAND,
    SEARCH_FILES,
)
from kairos_mcp.core.errors import BadArguments, KairosError, PathDenied
from kairos_mcp.core.flow import Call, Finding, Row, covers, judge
from kairos_mcp.core.messages import (
    SEARCH,
    Completion,
    JsonObject,
    ToolCall,
    ToolResult,
    ToolSpec,
    discovered_tools,
)
from kairos_mcp.core.paths import plain_path
from kairos_mcp.core.patterns import compile_glob
from kairos_mcp.core.steps import call_path, turn_of
from kairos_mcp.core.text import truncate
from kairos_mcp.core.urls import HostRule
from kairos_mcp.settings.http_definition import READ_METHODS
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import decode_answer

_WRITING = EDIT_TOOLS | {DELETE_FILE.name, MOVE_FILE.name}
_SHOWING_FOLDERS = NAME_LISTING_TOOLS | {SEARCH_FILES.name}
_HIT = re.compile(r"(.+?):\d+: ")  # a line that a search found, with its file

SHOWN_WORDS = 80  # characters of what a finding is about
FindSpec = Callable[[str], ToolSpec | None]


@dataclass(frozen=True, slots=True)
class FlowPolicy:
    """The settings about flow, as they are applied. `foreign`: tests for files that others wrote."""

    mode: str = "off"
    wish: bool = True
    hosts: tuple[HostRule, ...] = ()
    foreign: tuple[Callable[[str], bool], ...] = ()

    @staticmethod
    def from_settings(mode: str, wish: bool, hosts: Iterable[HostRule], foreign: Iterable[str]) -> FlowPolicy:
        return FlowPolicy(mode, wish, tuple(hosts), tuple(compile_glob(each) for each in foreign))

    def judges(self, spec: ToolSpec) -> bool:
        """Whether calls of this tool are judged: what stays inside costs nothing."""
        return self.mode != "off" and make_call(spec, {}).is_judged

    def trusts_host(self, host: str) -> bool:
        """Whether the settings trust a host, given with its port or without."""
        name = host.partition(":")[0]
        return any(name.endswith(f".{rule.host}") if rule.below else name == rule.host for rule in self.hosts)


def make_call(
    spec: ToolSpec, arguments: JsonObject, paths: Sequence[str] = (), policy: FlowPolicy | None = None
) -> Call:
    """Return a call in the form that is judged. `paths`: the files that it names."""
    is_command, reaches = RUN_COMMAND.is_tool(spec), spec.reaches or "outside"
    reads = HTTP_FETCH.is_tool(spec) and arguments.get("method", "GET") in READ_METHODS
    return Call(
        spec.name,
        server_of(spec),
        "read" if reads else spec.effect,
        reaches,
        arguments,
        is_stated=spec.reaches is not None or not spec.is_caller_tool,
        paths=() if is_command else tuple(paths),
        is_opaque=is_command and reaches == "outside",
        trusts_host=policy.trusts_host if policy is not None else _trust_none,
    )


def server_of(spec: ToolSpec) -> str:
    """Return who answers calls of a tool: the same for all tools of a downstream server; empty for our own."""
    if spec.source == "builtin":
        return ""
    return spec.source.partition("#")[0] if spec.source.startswith("mcp:") else f"{spec.source} {spec.name}"


def _trust_none(_host: str) -> bool:
    return False


class JudgedCall(NamedTuple):
    """A recorded call that may take something along: its path, its tool, and what was found of it."""

    path: str
    tool: str
    found: tuple[Finding, ...]

    def as_json(self) -> JsonObject:
        """Return it as people and programs are shown it."""
        findings = [
            {"rule": each.rule, "words": each.words, "row": each.row, "says": describe_finding(each, self.tool)}
            for each in self.found
        ]
        return {"path": self.path, "tool": self.tool, "findings": findings}


class _CompletionRequest(NamedTuple):
    """When a completion was asked for: the id of its step, and milliseconds since 1970."""

    id: int
    at: int


class _Seen(NamedTuple):
    """A row, the id of its step, when it was answered, and what a person's approval of that call covers."""

    id: int
    at: int
    row: Row


@dataclass(slots=True)
class FlowView:
    """The rows of one run, read as they are needed.

    `read_opening`: what it begins with. `read_steps`: the steps after an id, and those of these ids. `read_approved`:
    of each call that a person approved, what was found. `find_spec`: a tool as it was offered at the start.
    """

    policy: FlowPolicy
    find_spec: FindSpec
    read_opening: Callable[[], Sequence[Row]]
    read_steps: Callable[[int, Collection[int]], Sequence[StepRow]]
    read_approved: Callable[[], Mapping[str, Sequence[Finding]]] = dict
    _opening: tuple[Row, ...] | None = None
    _seen: list[_Seen] = field(default_factory=list)
    _asked: dict[str, _CompletionRequest] = field(default_factory=dict)
    _calls: dict[str, ToolCall] = field(default_factory=dict)
    _found: dict[str, ToolSpec] = field(default_factory=dict)
    _foreign_files: set[str] = field(default_factory=set)
    _unanswered: set[int] = field(default_factory=set)
    _last: int = 0
    _lock: Lock = field(default_factory=Lock)

    def judge(self, path: str, spec: ToolSpec, arguments: JsonObject, paths: Sequence[str]) -> tuple[Finding, ...]:
        """Return what a person has to be asked about before this call. Blocks while rows are read."""
        call = make_call(spec, arguments, paths, self.policy)
        try:
            with self._lock:
                rows = self.rows_before(path)
                approved = frozenset[str]().union(*self._list_approved_words(rows))
        except (KairosError, ValueError, RecursionError):  # a row that can't be read
            return (Finding("leaves", "", "what can't be told: its rows can't be read"),)
        return judge(call, rows, approved, wish=self.policy.wish)

    def judge_record(self) -> list[JudgedCall]:
        """Judge each recorded call that may take something along, by its arguments. Raises Unreadable."""
        with self._lock:
            self._read()
            calls = [(path, call, self._spec_of(call.name)) for path, call in self._calls.items()]
        return [
            JudgedCall(path, call.name, self.judge(path, spec, call.arguments, ()))
            for path, call, spec in calls
            if spec is not None and call.unreadable is None and make_call(spec, call.arguments).is_judged
        ]

    def rows_before(self, path: str) -> list[Row]:
        """Return the rows in view of the call at this path, in the order in which they came."""
        self._read()
        return list(self._rows_before(path))

    def _rows_before(self, path: str) -> Iterator[Row]:
        yield from self._opening or ()
        turn = self._asked.get(turn_of(path)[0]) or max(self._asked.values(), default=None)
        if turn is not None:
            yield from (seen.row for seen in self._seen if seen.id < turn.id and seen.at <= turn.at)

    def _list_approved_words(self, rows: Iterable[Row]) -> Iterator[frozenset[str]]:
        """Yield what the approvals of calls in view cover."""
        approved = self.read_approved()
        for row in rows:
            if (found := approved.get(row.path)) is None or (call := self._calls.get(row.path)) is None:
                continue
            if (spec := self._spec_of(call.name)) is not None:
                yield covers(make_call(spec, call.arguments), found)

    def _read(self) -> None:
        if self._opening is None:
            self._opening = tuple(self.read_opening())
        answered = []
        for step in self.read_steps(self._last, self._unanswered):
            self._last = max(self._last, step.id)
            if step.kind != "call":
                self._asked[step.path] = _CompletionRequest(step.id, step.at)
            elif (asked := step.asked) is not None:
                self._calls[step.path] = asked
            if step.body is None or step.answered_at is None:
                self._unanswered.add(step.id)
                continue
            self._unanswered.discard(step.id)
            answered.append((step.answered_at, step.id, step.path, decode_answer(step.body)))
        for at, step_id, path, answer in sorted(answered, key=lambda each: each[:2]):
            match answer:
                case Completion(tool_calls=of_turn):
                    self._calls |= {call_path(path, n): call for n, call in enumerate(of_turn, 1)}
                case ToolResult():
                    self._add(step_id, at, path, answer)
                case _:
                    pass

    def _add(self, step_id: int, at: int, path: str, result: ToolResult) -> None:
        call = self._calls.get(path) or ToolCall(path, "")
        spec = self._spec_of(call.name) or ToolSpec(call.name, "", {}, source="unknown")
        if call.name == SEARCH and spec.source == "builtin":
            self._found |= {each.name: each for each in discovered_tools(result)}
        row = self._label(path, call, spec, result)
        self._seen.append(_Seen(step_id, at, row))
        if result.remark:
            said = Row(path, "you", "", result.remark, is_trusted=True, is_private=False, is_said=True)
            self._seen.append(_Seen(step_id, at, said))

    def _label(self, path: str, call: ToolCall, spec: ToolSpec, result: ToolResult) -> Row:
        """Return the answer of a call as a row."""
        is_ours, data = spec.source == "builtin", result.data
        if is_ours or (isinstance(data, dict) and set(data) == {"result"}):
            data = (
                None  # a text in a wrapper has no structure: a page that is one address would be "a value of its own"
            )
        source = _source_of(call, spec)
        row = Row(
            path, source, server_of(spec), result.content, data, spec.trusted, spec.private, json.dumps(call.arguments)
        )
        if not is_ours:
            return row
        if READ_RESULT.is_tool(spec):
            kept = next((seen.row for seen in self._seen if seen.row.path == call.arguments.get("ref")), None)
            trusted, private = (kept.is_trusted, kept.is_private) if kept is not None else (False, True)
            return replace(row, is_trusted=trusted, is_private=private)
        named = [*_paths_in([call.arguments, result.data])]
        is_foreign = any(map(self._is_foreign_file, named)) or self._shows_foreign(call, spec, result)
        if spec.name in _WRITING and (is_foreign or any(seen.is_foreign for seen in self._rows_before(path))):
            # The model's words may be those of others, and so may be what it wrote, or moved.
            is_foreign = True
            if spec.effect != "read":
                self._foreign_files.update(named)
        return replace(row, is_trusted=False) if is_foreign else row

    def _is_foreign_file(self, path: str) -> bool:
        return path in self._foreign_files or any(is_foreign(path) for is_foreign in self.policy.foreign)

    def _shows_foreign(self, call: ToolCall, spec: ToolSpec, result: ToolResult) -> bool:
        """Whether a search, or a list of names, shows something of files that others wrote."""
        if spec.name not in _SHOWING_FOLDERS:
            return False
        folder = next(_paths_in(result.data), ".")
        if any(folder == "." or path.startswith(f"{folder}/") for path in self._foreign_files):
            return True
        hits = (_HIT.match(line) for line in result.content.splitlines())
        return any(self._is_foreign_file(hit[1]) for hit in hits if hit is not None)

    def _spec_of(self, name: str) -> ToolSpec | None:
        return self._found.get(name) or self.find_spec(name)


def _source_of(call: ToolCall, spec: ToolSpec) -> str:
    """Say whose words an answer holds, as a person knows them."""
    for name, what in (("url", "the page "), ("path", "")):
        if isinstance(value := call.arguments.get(name), str) and (name == "url" or spec.source == "builtin"):
            return f"{what}{value}"
    return spec.name or "a tool"


def _paths_in(value: Any) -> Iterator[str]:
    """Yield the plain paths of files in arguments and results of our own tools."""
    match value:
        case Mapping():
            for key, each in value.items():
                if key in ("path", "to") and isinstance(each, str):
                    with suppress(BadArguments, PathDenied):  # which no tool has opened
                        yield plain_path(each)
                else:
                    yield from _paths_in(each)
        case list() | tuple():
            for each in value:
                yield from _paths_in(each)


def describe_finding(finding: Finding, tool: str) -> str:
    """Describe a finding to a person, in one line that goes on after "the call"."""
    words = json.dumps(truncate(finding.words, SHOWN_WORDS), ensure_ascii=False)
    whose = (
        f"from {finding.source} ({finding.row}), not from you" if finding.row else "which stands in nothing you said"
    )
    match finding.rule:
        case "wish":
            return f"{tool}: nothing in this call was said by you"
        case "where":
            return f"goes to {words}: {whose}"
        case "points":
            return f"points others to {words}: {whose}"
        case _ if finding.row is not None:
            return f"takes along {words} of {finding.source} ({finding.row})"
        case _ if finding.argument:
            return f"puts together {words} after texts of others and private ones were read: what it tells is not known"
        case _:
            return f"takes along {finding.words}"
