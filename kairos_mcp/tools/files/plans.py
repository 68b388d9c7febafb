"""Several edits as one: plan_edits checks and shows them, apply_edit_plan applies all or none; apply_edits does both.

A plan is kept in the run's memory under its own hash, made of the edits and of what their files held. So whoever names
a plan, exactly the plan that was shown is applied, and no model can make one up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.errors import NotFound, StaleFile, TooLarge
from kairos_mcp.core.messages import JsonObject, ToolResult, canonical_json
from kairos_mcp.core.paths import shorten_path
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.store.tool_intents import plan_name
from kairos_mcp.tools.files.edit import TextEdit
from kairos_mcp.tools.files.edit_tools import (
    BASE,
    EDIT_PROPERTIES,
    EditRules,
    edit_tool,
)
from kairos_mcp.tools.files.transaction import FileChange, ReadContent

MAX_EDITS = 100
PLAN_BYTES = 16 << 20  # of all files of a plan: its intent holds all their content
NO_PLAN = "plan_edits makes one and gives its plan_id; a plan of registry_call is applied by registry_call."
ID_CHARS = 32  # 128 bits of its hash

_EDITS: JsonObject = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_EDITS,
    "items": {
        "type": "object",
        "properties": EDIT_PROPERTIES,
        "required": ["path", "old_string", "new_string"],
        "additionalProperties": False,
    },
}

PLAN_SPEC = BUILTIN["plan_edits"].spec(
    "Check edits of one or more files and return their diffs, without changing anything.\n"
    "Each edit works as in edit_file and matches the file as it is now, not the result of another edit. If one does "
    "not fit, the whole plan is refused. Returns a plan_id for apply_edit_plan.",
    {
        "type": "object",
        "properties": {"edits": _EDITS},
        "required": ["edits"],
        "additionalProperties": False,
    },
    category="file_ops",
)

APPLY_SPEC = BUILTIN["apply_edit_plan"].spec(
    "Apply all edits of a plan made by plan_edits, or none if a file has changed since.\n"
    "The plan must come from the same run; one made with registry_call is applied with registry_call. Returns a diff.",
    {
        "type": "object",
        "properties": {
            "plan_id": {"type": "string", "maxLength": ID_CHARS, "description": "The plan_id that plan_edits returned"},
        },
        "required": ["plan_id"],
        "additionalProperties": False,
    },
    category="file_ops",
)

BOTH_SPEC = BUILTIN["apply_edits"].spec(
    "Edit one or more files in one step: all edits are applied, or none.\n"
    "Each edit works as in edit_file and matches the file as it is now, not the result of another edit. "
    "Returns a diff.",
    {
        "type": "object",
        "properties": {"edits": _EDITS, "base": BASE},
        "required": ["edits"],
        "additionalProperties": False,
    },
    category="file_ops",
)


def make_tools(rules: EditRules) -> list[Tool]:
    """Make the plan tools."""

    def plan_edits(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        edits: list[JsonObject] = arguments["edits"]
        changes = _plan_changes(edits, rules.read_content, rules)
        text = canonical_json({"edits": edits, "files": [change.line() for change in changes]})
        plan_id = sha256(text.encode()).hexdigest()[:ID_CHARS]
        ctx.memory.keep(plan_name(plan_id), text)
        return _plan_result(plan_id, len(edits), changes, rules)

    def apply_edit_plan(arguments: JsonObject, ctx: ToolContext, read_content: ReadContent) -> Sequence[FileChange]:
        text = ctx.memory.recall(plan_name(arguments["plan_id"]))
        if text is None:
            raise NotFound("This run has no such plan.", NO_PLAN)
        plan = json.loads(text)
        for file in plan["files"]:
            if rules.hash_content(file["path"], read_content(file["path"])) != file["before"]:
                raise StaleFile(
                    f"{shorten_path(file['path'])} has changed since it was planned.", "Plan the edits again."
                )
        return _plan_changes(plan["edits"], read_content, rules)

    def apply_edits(arguments: JsonObject, _ctx: ToolContext, read_content: ReadContent) -> Sequence[FileChange]:
        return _plan_changes(arguments["edits"], read_content, rules)

    an_edit = {"path": "a.py", "old_string": "old_name(", "new_string": "new_name(", "replace_all": True}
    return [
        Tool(PLAN_SPEC, plan_edits, examples=({"edits": [an_edit, an_edit | {"path": "b.py"}]},), named_only=True),
        edit_tool(APPLY_SPEC, apply_edit_plan, rules, {"plan_id": "0" * ID_CHARS}),
        replace(edit_tool(BOTH_SPEC, apply_edits, rules, {"edits": [an_edit]}), internal=True),
    ]


def _plan_changes(edits: Sequence[JsonObject], read_content: ReadContent, rules: EditRules) -> list[FileChange]:
    """Return the change of each file, in the order in which the edits first name the files."""
    by_path: dict[str, list[TextEdit]] = {}
    for number, edit in enumerate(edits, 1):
        text_edit = TextEdit(edit["old_string"], edit["new_string"], edit.get("replace_all") or False, number)
        by_path.setdefault(rules.find_writable(edit["path"]), []).append(text_edit)
    changes: list[FileChange] = []
    size = 0
    for path, edits_of_path in by_path.items():
        changes.append(rules.propose_edits(path, read_content, edits_of_path))
        size += len(changes[-1].before or b"") + len(changes[-1].after)
        if size > PLAN_BYTES:
            raise TooLarge(f"The files of this plan have more than {PLAN_BYTES:,} bytes.", "Plan fewer files at once.")
    return changes


def _plan_result(plan_id: str, count: int, changes: Sequence[FileChange], rules: EditRules) -> ToolResult:
    files = [change.line() | ({"after": None} if rules.holds_secrets(change) else {}) for change in changes]
    what = f"{count} edit{'s' * (count != 1)} in {len(files)} file{'s' * (len(files) != 1)}"
    notes = [note for change in changes for note in change.notes]
    data: JsonObject = {"plan_id": plan_id, "files": files} | ({"notes": notes} if notes else {})
    text = f"Plan {plan_id}: {what}; nothing is changed yet. apply_edit_plan makes all of it or nothing.\n\n"
    return ToolResult(
        (text + rules.format_diffs(changes)).rstrip("\n") + "".join(f"\n[{note}]" for note in notes), data=data
    )
