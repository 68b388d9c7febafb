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
from dataclasses import field, replace
from threading import Lock
from typing import Any, NamedTuple

from kairos_mcp.core import flow_text
from kairos_mcp.core.builtin_tools import (
    DELETE_FILE,
    EDIT_TOOLS,
    HTTP_FETCH,
    MOVE_FILE,
    NAME_LISTING_TOOLS,
    READ_FILE,
    READ_RESULT,
    RUN_COMMAND,
    SEARCH_FILES,
)
from kairos_mcp.core.effects import Reach
from kairos_mcp.core.errors import BadArguments, KairosError, PathDenied
from kairos_mcp.core.flow import VERSION, Call, Finding, PrivateWords, Row, covers, judge
from kairos_mcp.core.foreign_text import Written, find_sources, repeats_others
from kairos_mcp.core.messages import (
    SEARCH,
    Completion,
    JsonObject,
    ToolCall,
    ToolResult,
    ToolSpec,
    discovered_tools,
)
from kairos_mcp.core.paths import plain_path, plain_path_or_none
from kairos_mcp.core.patterns import compile_glob
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import TakenOver
from kairos_mcp.core.steps import call_path, turn_of
from kairos_mcp.core.text import truncate
from kairos_mcp.core.urls import HostRule
from kairos_mcp.settings.http_definition import READ_METHODS
from kairos_mcp.store.foreign_files import ForeignFile
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.rows import decode_answer, encode, unreadable

_WRITING = EDIT_TOOLS | {DELETE_FILE.name, MOVE_FILE.name}
_SHOWING_FOLDERS = NAME_LISTING_TOOLS | {SEARCH_FILES.name}
_SHOWING_TEXTS = {READ_FILE.name, SEARCH_FILES.name, READ_RESULT.name}
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
        texts=spec.texts or (),
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a call was judged, as it is stored: what was found, and all that was known beside the run's rows, so that it
    can be computed again from them.

    `version`: of the rules. `reaches`, `wish`: as they were stated. `paths`: files that it names. `hosts`: those of its
    hosts that the settings trust. `foreign`: paths of steps that read files of others. `approved`: paths of calls
    whose approvals counted.
    """

    found: tuple[Finding, ...]
    version: int
    reaches: Reach
    wish: bool
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()


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
    `read_files`: the files of the workspace that are known to be of others. `foreign`: the steps that read such files,
    where that is known beforehand; None: it follows from the files.
    """

    policy: FlowPolicy
    find_spec: FindSpec
    read_opening: Callable[[], Sequence[Row]]
    read_steps: Callable[[int, Collection[int]], Sequence[StepRow]]
    read_approved: Callable[[], Mapping[str, Sequence[Finding]]] = dict
    read_files: Callable[[], Iterable[ForeignFile]] = tuple
    foreign: frozenset[str] | None = None
    _opening: tuple[Row, ...] | None = None
    _seen: list[_Seen] = field(default_factory=list)
    _requests: dict[str, _CompletionRequest] = field(default_factory=dict)
    _calls: dict[str, ToolCall] = field(default_factory=dict)
    _found: dict[str, ToolSpec] = field(default_factory=dict)
    _files: dict[str, list[ForeignFile]] = field(default_factory=dict)
    _own_files: set[str] = field(default_factory=set)
    _ran_after_others: bool = False  # a program, which may have written down what they said
    _of_foreign_files: set[str] = field(default_factory=set)
    _judgements: dict[str, Judgement] = field(default_factory=dict)
    _private_words: PrivateWords = field(default_factory=PrivateWords)
    _unanswered: set[int] = field(default_factory=set)
    _last: int = 0
    _lock: Lock = field(default_factory=Lock)

    def judge(
        self, path: str, spec: ToolSpec, arguments: JsonObject, paths: Sequence[str], *, wish: bool = False
    ) -> tuple[Finding, ...]:
        """Return what a person has to be asked about before this call, and keep how it was judged. `wish`: a change has
        to be wished for, whatever the settings say. Blocks while rows are read."""
        try:
            call = make_call(spec, arguments, paths, self.policy)
            found, judgement = self._judge(path, call, wish=wish or self.policy.wish)
        except (KairosError, ValueError, RecursionError):  # a row that can't be read
            return (Finding("leaves", "", "what can't be told: its rows can't be read"),)
        self._judgements[path] = judgement
        return found

    def take_judgement(self, path: str) -> str | None:
        """Return how the call at this path was judged, to be stored with it; None: it was not."""
        judgement = self._judgements.pop(path, None)
        return None if judgement is None else encode(judgement)

    def judge_again(self, path: str, judgement: Judgement) -> tuple[Finding, ...]:
        """Judge a recorded call by what was known when it was judged. Raises Unreadable."""
        with self._lock:
            self._read()
        call = self._calls.get(path)
        if call is None or (spec := self._spec_of(call.name)) is None:
            raise unreadable("call that was judged")
        again = replace(make_call(spec, call.arguments, judgement.paths), trusts_host=judgement.hosts.__contains__)
        return self._judge(path, again, wish=judgement.wish)[0]

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

    def label_results(self, paths: Iterable[str | None]) -> list[TakenOver]:
        """Say whose the results of these calls are, for a run that takes them over. None: the words of a model or of a
        prompt, which nobody is to trust, and which are private and of others as far as anything in view is."""
        try:
            with self._lock:
                self._read()
        except (KairosError, ValueError, RecursionError):
            return [TakenOver("the run before") for _ in paths]
        rows = [*(self._opening or ()), *(seen.row for seen in self._seen if not seen.row.is_said)]
        known = {row.path: row for row in rows}
        is_private = any(row.is_private and not row.is_said for row in rows)
        words = TakenOver("the run before", False, is_private, not any(row.is_of_others for row in rows))
        return [
            TakenOver(row.source, row.is_trusted, row.is_private, row.is_printed)
            if (row := known.get(path or "")) is not None
            else words
            for path in paths
        ]

    def find_sources(self, path: str, written: Written) -> Mapping[str, str]:
        """Return which of the files that the call at this path writes get texts of others: by file, the path of the
        step that brought them. Blocks while rows are read."""
        try:
            with self._lock:
                rows = self.rows_before(path)
                return find_sources(written, rows, lambda name: self._is_foreign_file(name, self._now()))
        except (KairosError, ValueError, RecursionError):
            return dict.fromkeys(written, path)

    def _judge(self, path: str, call: Call, *, wish: bool) -> tuple[tuple[Finding, ...], Judgement]:
        with self._lock:
            rows = self.rows_before(path)
            approved = dict(self._list_approved_words(rows))
        covered = frozenset[str]().union(*approved.values())
        found = judge(call, rows, covered, self._private_words, wish=wish)
        hosts = tuple(host for host in flow_text.hosts_in(call.arguments) if call.trusts_host(host))
        foreign = tuple(row.path for row in rows if row.path in self._of_foreign_files)
        return found, Judgement(found, VERSION, call.reaches, wish, call.paths, hosts, foreign, tuple(approved))

    def rows_before(self, path: str) -> list[Row]:
        """Return the rows in view of the call at this path, in the order in which they came."""
        self._read()
        return list(self._rows_before(path))

    def _rows_before(self, path: str) -> Iterator[Row]:
        yield from self._opening or ()
        turn = self._requests.get(turn_of(path)[0]) or max(self._requests.values(), default=None)
        if turn is not None:
            yield from (seen.row for seen in self._seen if seen.id < turn.id and seen.at <= turn.at)

    def _now(self) -> int:
        return max((seen.at for seen in self._seen), default=0)

    def _list_approved_words(self, rows: Iterable[Row]) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield what the approvals of calls in view cover, by the call's path."""
        approved = self.read_approved()
        for row in rows:
            if (found := approved.get(row.path)) is None or (call := self._calls.get(row.path)) is None:
                continue
            if (spec := self._spec_of(call.name)) is not None:
                yield row.path, covers(make_call(spec, call.arguments), found)

    def _read(self) -> None:
        if self._opening is None:
            self._opening = tuple(self.read_opening())
        answered = []
        for step in self.read_steps(self._last, self._unanswered):
            self._last = max(self._last, step.id)
            if step.kind != "call":
                self._requests[step.path] = _CompletionRequest(step.id, step.at)
            elif (call := step.call) is not None:
                self._calls[step.path] = call
            if step.body is None or step.answered_at is None:
                self._unanswered.add(step.id)
                continue
            self._unanswered.discard(step.id)
            answered.append((step.answered_at, step.id, step.path, decode_answer(step.body)))
        if answered:  # after them, since a file is labelled together with the answer of the call that wrote it
            self._files.clear()
            for file in self.read_files():
                self._files.setdefault(file.path, []).append(file)
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
        row = self._label(path, at, call, spec, result)
        self._seen.append(_Seen(step_id, at, row))
        if result.remark:
            said = Row(path, "you", "", result.remark, is_trusted=True, is_private=False, is_said=True)
            self._seen.append(_Seen(step_id, at, said))

    def _label(self, path: str, at: int, call: ToolCall, spec: ToolSpec, result: ToolResult) -> Row:
        """Return the answer of a call as a row."""
        is_ours, data = spec.source == "builtin", result.data
        if is_ours or (isinstance(data, dict) and set(data) == {"result"}):
            # A text in a wrapper has no structure: a page that is one address would be "a value of its own".
            data = None
        named = [*_paths_in([call.arguments, result.data])] if is_ours else []
        is_foreign = any(self._is_foreign_file(each, at) for each in named) or self._shows_foreign(spec, result, at)
        if is_ours and spec.name in _WRITING and (is_foreign or self._hears_others(path)):
            # The model's words may be those of others, and so may be what it wrote, or moved.
            is_foreign = True
            if spec.effect != "read":
                self._own_files.update(named)
        if RUN_COMMAND.is_tool(spec):
            self._ran_after_others = self._ran_after_others or self._hears_others(path)
        elif is_ours and not is_foreign and self._ran_after_others and spec.name in _SHOWING_TEXTS:
            is_foreign = repeats_others(result.content, list(self._rows_before(path)))
        if self.foreign is None and is_foreign:
            self._of_foreign_files.add(path)
        is_of_foreign_file = path in (self._of_foreign_files if self.foreign is None else self.foreign)
        trusted, private = spec.trusted and not is_of_foreign_file, spec.private
        if READ_RESULT.is_tool(spec):
            kept = next((seen.row for seen in self._seen if seen.row.path == call.arguments.get("ref")), None)
            is_kept_trusted, private = (kept.is_trusted, kept.is_private) if kept is not None else (False, True)
            trusted = is_kept_trusted and not is_of_foreign_file
        is_printed = RUN_COMMAND.is_tool(spec) and not is_of_foreign_file and not _names_address(call.arguments)
        found_by = json.dumps(call.arguments)
        return Row(
            *(path, _source_of(call, spec), server_of(spec), result.content, data, trusted, private, found_by),
            is_printed=is_printed,
        )

    def _hears_others(self, path: str) -> bool:
        """Whether others had their say in what is in view of the call at this path."""
        return any(row.is_of_others for row in self._rows_before(path))

    def _is_foreign_file(self, path: str, at: int) -> bool:
        """Whether a file was of others at a time: by the settings, by this run, or since any run wrote it."""
        return (
            path in self._own_files
            or any(is_foreign(path) for is_foreign in self.policy.foreign)
            or any(file.counts_at(at) for file in self._files.get(path, ()))
        )

    def _shows_foreign(self, spec: ToolSpec, result: ToolResult, at: int) -> bool:
        """Whether a search, or a list of names, shows something of files that others wrote."""
        if spec.source != "builtin" or spec.name not in _SHOWING_FOLDERS:
            return False
        folder = next(_paths_in(result.data), ".")
        known = (path for path in {*self._own_files, *self._files} if folder == "." or path.startswith(f"{folder}/"))
        if any(self._is_foreign_file(path, at) for path in known):
            return True
        hits = (_HIT.match(line) for line in result.content.splitlines())
        return any(self._is_foreign_file(hit[1], at) for hit in hits if hit is not None)

    def _spec_of(self, name: str) -> ToolSpec | None:
        return self._found.get(name) or self.find_spec(name)


def _source_of(call: ToolCall, spec: ToolSpec) -> str:
    """Say whose words an answer holds, as a person knows them."""
    for name, what in (("url", "the page "), ("path", "")):
        if isinstance(value := call.arguments.get(name), str) and (name == "url" or spec.source == "builtin"):
            return f"{what}{value}"
    return spec.name or "a tool"


def _names_address(arguments: JsonObject) -> bool:
    """Whether a command names an address: then it may print what others wrote."""
    texts = [flow_text.plain(text) for _, text in flow_text.texts_of(arguments)]
    return any("://" in token or "@" in token[1:] for text in texts for token in flow_text.tokens(text))


def _paths_in(value: Any) -> Iterator[str]:
    """Yield the plain paths of files in arguments and results of our own tools, and the words of a command."""
    match value:
        case Mapping():
            for key, each in value.items():
                if key in ("path", "to", "cwd") and isinstance(each, str):
                    with suppress(BadArguments, PathDenied):  # which no tool has opened
                        yield plain_path(each)
                elif key == "argv" and isinstance(each, list):
                    yield from (plain_path_or_none(word) or word for word in " ".join(map(str, each)).split())
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
