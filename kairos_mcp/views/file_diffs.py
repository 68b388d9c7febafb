"""What a run changed in files, as one text: the diff of each call that changed some, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kairos_mcp.core.file_changes import ChangedFile, changed_files
from kairos_mcp.core.messages import ToolCall, ToolResult
from kairos_mcp.store.queries import StepRow
from kairos_mcp.tools.files.diff import hash_of, unified_diff
from kairos_mcp.views.transcript import answers_by_path, calls_by_path

NOTHING_CHANGED = "No tool for files changed anything in this run."
BY_PROGRAMS = "# What a program changed (run_command) is not in here: nobody compares the folder before and after."


def format_file_diffs(record: Sequence[StepRow], text_of: Callable[[str], str | None]) -> str:
    """Return the changes of a run. `text_of`: the full text of the result at a path."""
    answers = answers_by_path(record)
    calls = calls_by_path(answers)
    parts: list[str] = []
    for path in (row.path for row in record):
        answer = answers.get(path)
        if isinstance(answer, ToolResult) and (changed := changed_files(answer)):
            parts.append("\n".join(_call_lines(path, calls.get(path), changed, text_of(path) or answer.content)))
    ran_programs = any(call.name == "run_command" for call in calls.values())
    return "\n\n".join([*(parts or [NOTHING_CHANGED]), *([BY_PROGRAMS] if ran_programs else [])]) + "\n"


def _call_lines(path: str, call: ToolCall | None, changed: Sequence[ChangedFile], text: str) -> Iterator[str]:
    yield f"# {path}{'' if call is None else f' {call.name}'}"
    yield text
    for file in changed:
        if file.before is None:  # the result has no diff of a file that is new: its text stands in the call
            yield _new_file(file, None if call is None else call.arguments.get("content"))


def _new_file(file: ChangedFile, content: object) -> str:
    if isinstance(content, str) and hash_of(content.encode()) == file.after:
        return unified_diff(file.path, None, content.encode()).rstrip("\n")
    return f"create {file.path}\nafter sha256:{file.after}"
