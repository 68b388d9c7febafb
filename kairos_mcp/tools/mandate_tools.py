"""Tools that only our own flows call, and no model is offered: they read a mandate's current goal, and check a file.

Both only read.
"""

from __future__ import annotations

import json
import time

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import KairosError, NotFound, StoreCorrupt, Timeout, UnknownMandate
from kairos_mcp.core.mandate import parse_mandate
from kairos_mcp.core.masked_file import WINDOW_BYTES
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.store import mandates
from kairos_mcp.store.database import Store
from kairos_mcp.tools.files.listings import stop_time
from kairos_mcp.tools.files.read_tools import read_masked
from kairos_mcp.tools.files.workspace import OpenedFile, Workspace

MANDATE_SPEC = BUILTIN["read_mandate"].spec(
    "Read the goal of a saved mandate, as a hash.",
    {
        "type": "object",
        "properties": {"id": {"type": "string", "maxLength": 64}},
        "required": ["id"],
        "additionalProperties": False,
    },
    category="mandates",
)

FILE_SPEC = BUILTIN["check_file"].spec(
    "Check whether a file exists, and whether it contains a text.",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    category="mandates",
)


def read_mandate_tool(store: Store) -> Tool:
    """Make read_mandate. Its data is {id, goal_hash}, for a mandate of the run's principal."""

    def read_mandate(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        mandate_id: str = arguments["id"]
        with store.read_session() as session:
            body = mandates.read_mandate_text(session, ctx.run_id, mandate_id)
        if body is None:
            raise UnknownMandate(f"There is no mandate {mandate_id!r} any more.", "mandate_save creates it again.")
        try:
            found = parse_mandate(json.loads(body))
        except (ValueError, KairosError) as error:
            raise StoreCorrupt(f"The mandate {mandate_id!r} can't be read.", "Save it again.") from error
        return ToolResult(f"The goal of {mandate_id}.", data={"id": mandate_id, "goal_hash": found.goal_hash})

    return Tool(MANDATE_SPEC, read_mandate, internal=True)


def check_file_tool(workspace: Workspace, redactor: Redactor) -> Tool:
    """Make check_file. Its data is {exists, contains}; `contains` is false if no text was asked for.

    The whole file is searched, byte by byte, also if it is no text; but for its secrets, which nobody finds out so.
    """

    def check_file(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        text: str | None = arguments.get("text")
        try:
            with workspace.open_file(arguments["path"], is_hidden=ctx.is_hidden) as opened:
                holds = text is not None and _contains_text(opened, text.encode(), stop_time(ctx), redactor)
        except NotFound:
            return ToolResult("There is no such file.", data={"exists": False, "contains": False})
        content = "It is there." if text is None else f"It {'contains' if holds else 'does not contain'} the text."
        return ToolResult(content, data={"exists": True, "contains": holds})

    return Tool(FILE_SPEC, check_file, internal=True)


def _contains_text(opened: OpenedFile, text: bytes, deadline: float, redactor: Redactor) -> bool:
    """Return whether the file contains the text. Raises Timeout if it is too large to be searched in time."""
    tail = b""
    for offset in range(0, opened.size, WINDOW_BYTES):
        chunk = read_masked(opened, offset, min(offset + WINDOW_BYTES, opened.size), redactor)
        if text in tail + chunk:
            return True
        tail = (tail + chunk)[-(len(text) - 1) :] if len(text) > 1 else b""
        if time.monotonic() >= deadline:
            raise Timeout(f"{shorten_path(opened.path)} was not looked through in time.", "Check a smaller file.")
    return not text
