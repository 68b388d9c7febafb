"""The changes of files in the result of a call: what our tools for files write into its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from kairos_mcp.core.messages import ToolResult

NO_NEWLINE = "\\ No newline at end of file"  # in a diff, after a last line that has no end
STAGED = "staged"  # in the data of a result: the files that only the run's stage has


class ChangedFile(NamedTuple):
    """A file that a call changed: its plain path, and the SHA-256 in hex of what it held before (None: there was none)
    and holds after. `foreign`: the step whose answer, a text of others, it was written from."""

    path: str
    before: str | None
    after: str
    foreign: str | None = None


def changed_files(result: ToolResult, key: Literal["files", "staged"] = "files") -> tuple[ChangedFile, ...]:
    """Return the files that a call changed by its result, or those of its run's stage (`staged`); none for a call that
    failed or only planned changes.

    Any tool may give such data. So what follows from it must do no harm where it is made up.
    """
    if result.is_error or not isinstance(result.data, dict) or not isinstance(result.data.get(key), list):
        return ()
    return tuple(
        ChangedFile(path, before, after, file.get("foreign"))
        for file in result.data[key]
        if isinstance(file, dict) and "bytes" in file  # a plan's files have none
        if isinstance(path := file.get("path"), str) and isinstance(after := file.get("after"), str)
        if isinstance(before := file.get("before"), str | None)
    )


def mark_foreign(result: ToolResult, sources: Mapping[str, str]) -> ToolResult:
    """Name beside each file in a result the step whose answer it was written from. `sources`: by path."""
    if not sources or not isinstance(result.data, dict) or "files" not in result.data:
        return result
    files = [
        {**file, "foreign": sources[file["path"]]} if file["path"] in sources else file for file in result.data["files"]
    ]
    return replace(result, data={**result.data, "files": files})
