"""What decide has read: excerpts with line numbers and hash, and the texts that an edit has to match.

It counts the reads, and adds the tools that the model finds by its search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field, replace

from kairos_mcp.core.builtin_tools import READ_FILE
from kairos_mcp.core.messages import (
    SEARCH,
    Completion,
    JsonObject,
    ToolCall,
    ToolResult,
    ToolSet,
    ToolSpec,
    canonical_json,
    discovered_tools,
)
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallAnswer, CallTool, Failed, Flow, Refused, call_path, gather_calls
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.decision import Base, CreateFile, Decision, Edit, EditPlan, edits_of, target_paths
from kairos_mcp.flows.ooda.orient import FilePart
from kairos_mcp.flows.ooda.prompts import format_list
from kairos_mcp.flows.planner_input import render_prompt
from kairos_mcp.flows.structured_answer import PhaseFailure, phase_failure
from kairos_mcp.flows.tool_calls import AnsweredCall, number_calls

MAX_READS = 20  # those of orient's files included
MAX_PARALLEL_READS = 10
DEFAULT_LINES = 400  # of a file for which orient named no lines
_LINE_ENDS = re.compile(r"[\r\v\f\x1c-\x1e\x85\u2028\u2029](?!\Z)")  # those of str.splitlines beside \n
_LEFT_OUT = re.compile(r"\[[\d,]+ of [\d,]+ characters left out here; read_result\(ref=")


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file as it was read: its hash, and its text where all of it was shown unchanged."""

    sha256: str | None
    full_text: str | None


@dataclass(slots=True)
class FileExcerpts:
    """The files that a decision has read, and the tools that it may read with. Steps: `NAME/read-N/call-M`.

    It lives in the flow's generator and is rebuilt with it by each replay.
    """

    context: CycleContext
    name: str
    files: dict[str, ReadFile] = field(default_factory=dict)
    reads_left: int = MAX_READS
    batch: int = 0
    known_tools: ToolSet = field(init=False)

    def __post_init__(self) -> None:
        self.known_tools = self.context.shown_reads

    @property
    def callable_tools(self) -> ToolSet:
        """The tools that the next turn may call: none once the reads are used up."""
        return self.known_tools if self.reads_left > 0 else ToolSet()

    def read_parts(self, parts: Sequence[FilePart]) -> Flow[str | PhaseFailure]:
        """Read the files that orient named, and return the excerpts as one text."""
        prefix = self._next_batch()
        calls: list[ToolCall] = []
        for n, part in enumerate(parts, 1):
            default_end = (part.start_line or 1) + DEFAULT_LINES - 1
            calls.append(ToolCall(call_path(prefix, n), READ_FILE.name, {"end_line": default_end, **part.as_json()}))
        answered = yield from self._execute_reads(calls)
        texts: list[str] = []
        for item, part in zip(answered, parts, strict=True):
            match item.answer:
                case Refused() as stop:
                    return phase_failure(stop)
                case ToolResult(is_error=True, content=content):
                    texts.append(f"### {part.path}\nIt was not read: {self.context.as_one_line(content)}")
                case ToolResult(content=content, remark=None):
                    texts.append(content)
                case ToolResult(content=content, remark=remark):
                    texts.append(f"{remark}\n{content}")
        return "\n\n".join(texts)

    def execute_calls(self, turn: Completion) -> Flow[tuple[AnsweredCall, ...]]:
        """Execute the calls of a turn that only read, while reads are left, and reject all others.

        Nothing but a decision has an effect, so a call that does more than read is never made here.
        """
        calls = number_calls(turn, self._next_batch())
        reads: list[ToolCall] = []
        refused: dict[str, AnsweredCall] = {}
        for call in calls:
            spec = self.known_tools.find(call.name)
            if spec is None or spec.effect != "read":
                refused[call.id] = _reject_call(call, "tool_not_offered", "only tools that read can be called here")
            elif call.unreadable is not None:
                refused[call.id] = _reject_call(call, "bad_arguments", call.unreadable)
            elif len(reads) == self.reads_left:
                reason = f"a decision may read {MAX_READS} times; decide now"
                refused[call.id] = _reject_call(call, "bad_arguments", reason)
            else:
                reads.append(call)
        answered = {item.call.id: item for item in (yield from self._execute_reads(reads))} | refused
        if not reads:  # a turn without a read counts too, so that there is a last one
            self.reads_left -= 1
        return tuple(answered[call.id] for call in calls)

    def base_for(self, decision: Decision) -> Base:
        """Return the hashes of the files that the decision changes. Call it after `find_problems` found none."""
        hashes = {path: self.files[path].sha256 for path in target_paths(decision)}
        return {path: sha256 for path, sha256 in hashes.items() if sha256 is not None}

    def find_problems(self, decision: Decision) -> list[str]:
        """Return why the edits can't apply to what was read: a file not read, a text that does not occur once."""
        problems: list[str] = []
        for path in target_paths(decision) if edits_of(decision) else ():
            if path not in self.files:
                problems.append(f"{path} was not read; read it first with {READ_FILE.name}, or choose another target")
            elif self.files[path].sha256 is None:
                problems.append(f"{path} is too large to be edited")
        if isinstance(decision, CreateFile) and decision.target in self.files:
            problems.append(f"{decision.target} is there already; create_file is for a file that is not")
        if problems:
            return problems
        addition = " as the file is now, without the other edits" if isinstance(decision, EditPlan) else ""
        mismatches = [self._find_mismatch(edit) for edit in edits_of(decision)]
        return [f"{mismatch}{addition}" for mismatch in mismatches if mismatch is not None]

    def _find_mismatch(self, edit: Edit) -> str | None:
        full_text = self.files[edit.path].full_text
        if full_text is None:  # only a part was read: the edit tool checks the whole file
            return None
        times = full_text.count(edit.old_string)
        if times == 0:
            return f"old_string does not occur in {edit.path}"
        if times > 1 and not edit.replace_all:
            return f"old_string occurs {times} times in {edit.path}; make it longer, or set replace_all"
        return None

    def _next_batch(self) -> str:
        self.batch += 1
        return f"{self.name}/read-{self.batch}"

    def _execute_reads(self, calls: Sequence[ToolCall]) -> Flow[list[AnsweredCall]]:
        answers = yield from gather_calls([CallTool(call.id, call) for call in calls], MAX_PARALLEL_READS)
        self.reads_left -= len(calls)
        return [AnsweredCall(call, self._note_file(call, answers[call.id])) for call in calls]

    def _note_file(self, call: ToolCall, answer: CallAnswer | Failed) -> CallAnswer:
        """Remember a file that was read; its lines are shown with their numbers, under its hash."""
        match answer:
            case Failed(reason=reason):
                return ToolResult(reason, is_error=True, code="cancelled")
            case ToolResult(is_error=False, data={"path": str(path), "sha256": sha256}) if call.name == READ_FILE.name:
                excerpt, file = _make_excerpt(self.context, path, sha256, answer)
                known = self.files.get(path)
                if known is None or known.sha256 != sha256 or known.full_text is None:
                    self.files[path] = file  # a part of the same file must not replace its full text
                return replace(answer, content=excerpt)
            case ToolResult(is_error=False) as result if call.name == SEARCH and self.context.search is not None:
                return self._add_found_tools(result)
            case result:
                return result

    def _add_found_tools(self, result: ToolResult) -> ToolResult:
        """Add the tools that a search has found: those that read can be called from now on, others by `run_tool`."""
        found = discovered_tools(result)
        if not found:
            return result
        reads = [spec for spec in found if self.context.can_call(spec)]
        new = [spec for spec in reads if self.known_tools.find(spec.name) is None]
        self.known_tools = ToolSet((*self.known_tools, *new))
        can_run_tools = "run_tool" in self.context.mandate.allowed_actions
        runnable = [spec for spec in found if can_run_tools and self.context.runnable.find(spec.name) is not None]
        described = format_list(tuple(describe_tool(self.context, spec) for spec in runnable))
        for_run_tool = f"\nrun_tool may name:\n{described}" if described else ""
        callable_now = ", ".join(spec.name for spec in reads) or "none of them"
        return replace(result, content=f"Found {len(found)}. You can call from now on: {callable_now}.{for_run_tool}")


def describe_tool(context: CycleContext, spec: ToolSpec) -> str:
    """Describe a tool that `run_tool` may name. Its description may come from outside, so each part is one line."""
    description, schema = context.as_one_line(spec.description), context.as_one_line(canonical_json(spec.input_schema))
    return f"{spec.name} ({spec.effect}): {description}\n  arguments: {schema}"


def _reject_call(call: ToolCall, code: str, reason: str) -> AnsweredCall:
    return AnsweredCall(call, ToolResult(f"Not executed: {reason}.", is_error=True, code=code))


def _make_excerpt(context: CycleContext, path: str, sha256: object, result: ToolResult) -> tuple[str, ReadFile]:
    """Return the lines as the model is shown them, and the file as it was read."""
    read = _ReadLines.from_result(result)
    known_hash = sha256 if isinstance(sha256, str) else None
    lines = f"from line {read.first}"
    if read.total_lines is not None:
        lines = f"lines {read.first}-{read.last} of {read.total_lines}"
    heading = render_prompt(
        context.phase_prompts.excerpt,
        path=path,
        lines=lines,
        sha256=known_hash or "not known, since the file is too large",
    )
    rows = _number_lines(read.body, read.first, barred=bool(context.prompts.quoted)) if read.body else "It is empty."
    excerpt = "\n".join((heading, rows, *(f"[{note}]" for note in read.notes)))
    # A file with \r is checked by the edit tool alone.
    full_text = read.body if read.is_complete and "\r" not in read.body else None
    return excerpt, ReadFile(known_hash, full_text)


@dataclass(frozen=True, slots=True)
class _ReadLines:
    """The result of `read_file`: lines `first` to `last` of `total_lines`, None where that is not known.

    `notes` lacks the note that the range of lines was clamped to the file.
    """

    body: str
    first: int
    last: int | None
    total_lines: int | None
    notes: tuple[str, ...]
    was_shortened: bool

    @classmethod
    def from_result(cls, result: ToolResult) -> _ReadLines:
        data: JsonObject = result.data
        all_notes: list[str] = data.get("notes", [])
        lines: int | None = data.get("lines")
        body = result.content.removesuffix("".join(f"\n[{note}]" for note in all_notes))
        notes = tuple(note for note in all_notes if note != data.get("clamped") or lines is None)
        return cls(body, data.get("start_line", 1), data.get("end_line"), lines, notes, result.kept is not None)

    @property
    def is_complete(self) -> bool:
        """Whether this is all of the file, unchanged."""
        all_lines = self.first <= 1 and self.last is not None and self.last == self.total_lines
        return all_lines and not self.was_shortened and not self.notes


def _number_lines(body: str, first: int, *, barred: bool) -> str:
    """Put its number before each line, until the first cut: after it the numbers are not known.

    `barred`: a bar also follows each other character that a reader may take for the end of a line.
    """
    rows: list[str] = []
    after_cut = False
    for number, line in enumerate(body.removesuffix("\n").split("\n"), max(first, 1)):
        after_cut = after_cut or _LEFT_OUT.match(line) is not None
        shown = _LINE_ENDS.sub(r"\g<0>     | ", line) if barred else line
        rows.append(f"     | {shown}" if after_cut else f"{number:5}| {shown}")
    return "\n".join(rows)
