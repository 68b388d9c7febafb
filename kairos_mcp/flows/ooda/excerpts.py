"""What decide has read: excerpts with line numbers and hash, counted, and the texts that an edit has to match.

And what it has found of tools that it was not shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult, ToolSet, ToolSpec, canonical_json
from kairos_mcp.core.steps import CallAnswer, CallTool, Failed, Flow, Refused, Unknown, gather_calls
from kairos_mcp.core.tool_discovery import SEARCH, discovered_tools
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.decision import Base, CreateFile, Decision, Edit, EditPlan, edits_of, target_paths
from kairos_mcp.flows.ooda.orient import Part
from kairos_mcp.flows.ooda.prompts import format_list
from kairos_mcp.flows.ooda.structured_answer import PhaseFailure, phase_failure
from kairos_mcp.flows.planner_input import render_prompt
from kairos_mcp.flows.tool_calls import AnsweredCall, number_calls

READS = 20  # those of orient's files included
AT_ONCE = 10
LINES = 400  # of a file for which orient named no lines
READ_FILE = "read_file"
_ENDS = re.compile(r"[\r\v\f\x1c-\x1e\x85\u2028\u2029](?!\Z)")  # those of str.splitlines beside \n
_LEFT_OUT = re.compile(r"\[[\d,]+ of [\d,]+ characters left out here; read_result\(ref=")


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file as it was read: its hash, and its whole text where all of it was shown as it is."""

    sha256: str | None
    full_text: str | None


@dataclass(slots=True)
class FileExcerpts:
    """It lives in the generator and is rebuilt with it. Steps: `NAME/read-N/call-M`."""

    context: CycleContext
    name: str
    files: dict[str, ReadFile] = field(default_factory=dict)
    reads_left: int = READS
    batch: int = 0
    known: ToolSet = field(init=False)

    def __post_init__(self) -> None:
        self.known = self.context.shown_reads

    @property
    def offered(self) -> ToolSet:
        return self.known if self.reads_left > 0 else ToolSet()

    def read_parts(self, parts: Sequence[Part]) -> Flow[str | PhaseFailure]:
        """Read what orient named; the excerpts as one text."""
        prefix = self._next_batch()
        calls = [
            ToolCall(
                f"{prefix}/call-{n}", READ_FILE, {"end_line": (part.start_line or 1) + LINES - 1, **part.as_json()}
            )
            for n, part in enumerate(parts, 1)
        ]
        answered = yield from self._execute_reads(calls)
        texts: list[str] = []
        for each, part in zip(answered, parts, strict=True):
            match each.answer:
                case Refused() | Unknown() as stop:
                    return phase_failure(stop)
                case ToolResult(is_error=True, content=content):
                    texts.append(f"### {part.path}\nIt was not read: {self.context.on_one_line(content)}")
                case ToolResult(content=content, remark=None):
                    texts.append(content)
                case ToolResult(content=content, remark=remark):
                    texts.append(f"{remark}\n{content}")
        return "\n\n".join(texts)

    def called(self, turn: Completion) -> Flow[tuple[AnsweredCall, ...]]:
        """Make the calls of a turn that only read, as far as they are left; nothing else is made here, whatever is
        asked: an effect comes from a decision alone."""
        calls = number_calls(turn, self._next_batch())
        reads: list[ToolCall] = []
        refused: dict[str, AnsweredCall] = {}
        for call in calls:
            spec = self.known.find(call.name)
            if spec is None or spec.effect != "read":
                refused[call.id] = _reject_call(call, "tool_not_offered", "only tools that read can be called here")
            elif call.unreadable is not None:
                refused[call.id] = _reject_call(call, "bad_arguments", call.unreadable)
            elif len(reads) == self.reads_left:
                refused[call.id] = _reject_call(call, "bad_arguments", f"a decision may read {READS} times; decide now")
            else:
                reads.append(call)
        answered = {each.call.id: each for each in (yield from self._execute_reads(reads))} | refused
        if not reads:  # a turn that gets nothing done counts, so that there is a last one
            self.reads_left -= 1
        return tuple(answered[call.id] for call in calls)

    def base_of(self, decision: Decision) -> Base:
        """The hashes of what the decision changes. Call it after `problems_of` found nothing."""
        read = {path: self.files[path].sha256 for path in target_paths(decision)}
        return {path: sha256 for path, sha256 in read.items() if sha256 is not None}

    def problems_of(self, decision: Decision) -> list[str]:
        """What can't be right of the edits by what was read: a file not read, a text that does not occur once."""
        found: list[str] = []
        for path in target_paths(decision) if edits_of(decision) else ():
            if path not in self.files:
                found.append(f"{path} was not read; read it first with {READ_FILE}, or choose another target")
            elif self.files[path].sha256 is None:
                found.append(f"{path} is too large to be edited")
        if isinstance(decision, CreateFile) and decision.target in self.files:
            found.append(f"{decision.target} is there already; create_file is for a file that is not")
        if found:
            return found
        also = " as the file is now, without the other edits" if isinstance(decision, EditPlan) else ""
        return [f"{why}{also}" for edit in edits_of(decision) if (why := self._mismatch(edit)) is not None]

    def _mismatch(self, edit: Edit) -> str | None:
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
        answers = yield from gather_calls([CallTool(call.id, call) for call in calls], AT_ONCE)
        self.reads_left -= len(calls)
        return [AnsweredCall(call, self._note_file(call, answers[call.id])) for call in calls]

    def _note_file(self, call: ToolCall, answer: CallAnswer | Failed) -> CallAnswer:
        """Take note of a file that was read; its lines are shown with their numbers, under its hash."""
        match answer:
            case Failed(reason=reason):
                return ToolResult(reason, is_error=True, code="cancelled")
            case ToolResult(is_error=False, data={"path": str(path), "sha256": sha256}) if call.name == READ_FILE:
                excerpt, file = _excerpt(self.context, path, sha256, answer)
                known = self.files.get(path)
                same = known is not None and known.sha256 == sha256
                self.files[path] = known if known is not None and same and known.full_text is not None else file
                return replace(answer, content=excerpt)
            case ToolResult(is_error=False) as result if call.name == SEARCH and self.context.search is not None:
                return self._add_found_tools(result)
            case result:
                return result

    def _add_found_tools(self, result: ToolResult) -> ToolResult:
        """What a search has found: what reads can be called from now on, the rest be named by run_tool."""
        found = discovered_tools(result)
        if not found:
            return result
        reads = [spec for spec in found if self.context.may_call(spec)]
        self.known = ToolSet((*self.known, *[spec for spec in reads if self.known.find(spec.name) is None]))
        runs = "run_tool" in self.context.mandate.allowed_actions
        named = [
            describe_tool(self.context, spec) for spec in found if runs and self.context.may.find(spec.name) is not None
        ]
        for_run_tool = f"\nrun_tool may name:\n{format_list(tuple(named))}" if named else ""
        callable_now = ", ".join(spec.name for spec in reads) or "none of them"
        return replace(result, content=f"Found {len(found)}. You can call from now on: {callable_now}.{for_run_tool}")


def describe_tool(context: CycleContext, spec: ToolSpec) -> str:
    """A tool that run_tool may name, as decide is told of it; its description may be somebody else's."""
    description, schema = context.on_one_line(spec.description), context.on_one_line(canonical_json(spec.input_schema))
    return f"{spec.name} ({spec.effect}): {description}\n  arguments: {schema}"


def _reject_call(call: ToolCall, code: str, why: str) -> AnsweredCall:
    return AnsweredCall(call, ToolResult(f"Not executed: {why}.", is_error=True, code=code))


def _excerpt(context: CycleContext, path: str, sha256: object, result: ToolResult) -> tuple[str, ReadFile]:
    """The lines as they are shown, and the file as it is now known."""
    read = _ReadLines.of(result)
    known = sha256 if isinstance(sha256, str) else None
    heading = render_prompt(
        context.phase_prompts.excerpt,
        path=path,
        lines=f"lines {read.first}-{read.last} of {read.lines}"
        if read.lines is not None
        else f"from line {read.first}",
        sha256=known or "not known, since the file is too large",
    )
    rows = _number_lines(read.body, read.first, barred=bool(context.prompts.quoted)) if read.body else "It is empty."
    shown = "\n".join((heading, rows, *(f"[{note}]" for note in read.notes)))
    full_text = (
        read.body if read.is_whole and "\r" not in read.body else None
    )  # a file with \r is checked by the edit tool alone
    return shown, ReadFile(known, full_text)


@dataclass(frozen=True, slots=True)
class _ReadLines:
    """What read_file gave: lines `first` to `last` of `lines`, None where that is not known; notes beside those of a
    range that was only clamped."""

    body: str
    first: int
    last: int | None
    lines: int | None
    notes: tuple[str, ...]
    kept: bool

    @classmethod
    def of(cls, result: ToolResult) -> _ReadLines:
        data: JsonObject = result.data
        all_notes: list[str] = data.get("notes", [])
        lines: int | None = data.get("lines")
        body = result.content.removesuffix("".join(f"\n[{note}]" for note in all_notes))
        notes = tuple(note for note in all_notes if note != data.get("clamped") or lines is None)
        return cls(body, data.get("start_line", 1), data.get("end_line"), lines, notes, result.kept is not None)

    @property
    def is_whole(self) -> bool:
        return (
            not self.kept and not self.notes and self.first <= 1 and self.last is not None and self.last == self.lines
        )


def _number_lines(body: str, first: int, *, barred: bool) -> str:
    """Each line with its number; after a cut nobody knows the numbers. `barred`: what else a reader may take for the
    end of a line is followed by a bar of its own."""
    rows: list[str] = []
    lost = False
    for number, line in enumerate(body.removesuffix("\n").split("\n"), max(first, 1)):
        lost = lost or _LEFT_OUT.match(line) is not None
        shown = _ENDS.sub(r"\g<0>     | ", line) if barred else line
        rows.append(f"     | {shown}" if lost else f"{number:5}| {shown}")
    return "\n".join(rows)
