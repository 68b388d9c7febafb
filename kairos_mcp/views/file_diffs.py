"""What a run changed in files: the diff of each call that changed some, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kairos_mcp.core.builtin_tools import RUN_COMMAND
from kairos_mcp.core.file_changes import ChangedFile, changed_files
from kairos_mcp.core.messages import JsonObject, ToolCall, ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.store.queries import StepRow
from kairos_mcp.tools.files.diff import unified_diff
from kairos_mcp.views.transcript import answers_by_path, calls_by_path

NOTHING_CHANGED = "No tool for files changed anything in this run."
BY_PROGRAMS = "# What a program changed (run_command) is not in here: nobody compares the folder before and after."


@dataclass(frozen=True, slots=True)
class CallDiff:
    """What the call at `path` changed: in which files, and the lines."""

    path: str
    tool: str | None
    files: tuple[str, ...]
    diff: str

    def as_json(self) -> JsonObject:
        return {"ref": self.path, "name": self.tool, "files": list(self.files), "diff": self.diff}


def list_call_diffs(record: Sequence[StepRow], text_of: Callable[[str], str | None]) -> Iterator[CallDiff]:
    """Yield the changes of a run. `text_of`: the full text of the result at a path."""
    answers = answers_by_path(record)
    calls = calls_by_path(record, answers)
    for path in (row.path for row in record):
        answer = answers.get(path)
        if isinstance(answer, ToolResult) and (changed := changed_files(answer)):
            call = calls.get(path)
            lines = "\n".join(_changed_lines(call, changed, text_of(path) or answer.content))
            yield CallDiff(path, call.name if call is not None else None, tuple(file.path for file in changed), lines)


def format_file_diffs(record: Sequence[StepRow], text_of: Callable[[str], str | None]) -> str:
    """Return the changes of a run as one text. `text_of`: the full text of the result at a path."""
    parts = [
        f"# {each.path}{f' {each.tool}' if each.tool else ''}\n{each.diff}" for each in list_call_diffs(record, text_of)
    ]
    calls = calls_by_path(record, answers_by_path(record))
    ran_programs = any(call.name == RUN_COMMAND.name for call in calls.values())
    return "\n\n".join([*(parts or [NOTHING_CHANGED]), *([BY_PROGRAMS] if ran_programs else [])]) + "\n"


def _changed_lines(call: ToolCall | None, changed: Sequence[ChangedFile], text: str) -> Iterator[str]:
    yield text
    for file in changed:
        if file.before is None:  # the result has no diff of a file that is new: its text stands in the call
            content = None if call is None else call.arguments.get("content")
            if isinstance(content, str) and MASK not in content:  # else the file holds what the record does not
                masked = Redactor().mask_file(file.path, content.encode())
                yield unified_diff(file.path, None, masked, (None, file.after)).rstrip("\n")
            else:
                yield f"create {file.path}\nafter sha256:{file.after}"
