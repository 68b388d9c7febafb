"""A decision: the one action that a cycle takes, as a value, with the schema of what a model may write of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from kairos_mcp.core.input_checks import Undecodable
from kairos_mcp.core.json_schema import compile_schema, object_schema, text_schema
from kairos_mcp.core.mandate import ACTIONS, Action
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import PATH_CHARS, RISKS, Risk, plain_path_or_none
from kairos_mcp.core.quick_dataclass import dataclass

MAX_EDITS = 20
Base = Mapping[str, str]  # path to the SHA-256 in hex of what was read


@dataclass(frozen=True, slots=True)
class Edit:
    """One literal replacement: `old_string` has to occur exactly once, unless `replace_all` is set."""

    path: str
    old_string: str
    new_string: str
    replace_all: bool = False

    def as_json(self) -> JsonObject:
        json_fields: JsonObject = {"path": self.path, "old_string": self.old_string, "new_string": self.new_string}
        return json_fields | ({"replace_all": True} if self.replace_all else {})


@dataclass(frozen=True, slots=True)
class CodeEdit:
    edit: Edit
    intent: str
    base: Base
    risk: Risk | None = None
    kind: Literal["code_edit"] = "code_edit"


@dataclass(frozen=True, slots=True)
class EditPlan:
    """All of the edits, or none; each matches the file as it was read."""

    edits: tuple[Edit, ...]
    intent: str
    base: Base
    risk: Risk | None = None
    kind: Literal["edit_plan"] = "edit_plan"


@dataclass(frozen=True, slots=True)
class CreateFile:
    """A new file. It has no base: there must be no file yet."""

    target: str
    content: str
    intent: str
    risk: Risk | None = None
    kind: Literal["create_file"] = "create_file"


@dataclass(frozen=True, slots=True)
class RunTool:
    tool: str
    arguments: JsonObject
    intent: str
    risk: Risk | None = None
    kind: Literal["run_tool"] = "run_tool"


@dataclass(frozen=True, slots=True)
class Noop:
    reason: str
    risk: Risk | None = None
    kind: Literal["noop"] = "noop"


Decision = CodeEdit | EditPlan | CreateFile | RunTool | Noop


def decision_json(decision: Decision) -> JsonObject:
    """Return the decision as JSON, as ooda_decide returns it and ooda_act takes it."""
    json_fields: JsonObject = {"action": decision.kind}
    match decision:
        case CodeEdit(edit=edit, intent=intent, base=base):
            edit_fields = edit.as_json()
            json_fields |= {"target": edit_fields.pop("path"), **edit_fields, "intent": intent, "base": dict(base)}
        case EditPlan(edits=edits, intent=intent, base=base):
            json_fields |= {"edits": [edit.as_json() for edit in edits], "intent": intent, "base": dict(base)}
        case CreateFile(target=target, content=content, intent=intent):
            json_fields |= {"target": target, "content": content, "intent": intent}
        case RunTool(tool=tool, arguments=arguments, intent=intent):
            json_fields |= {"tool": tool, "arguments": arguments, "intent": intent}
        case Noop(reason=reason):
            json_fields |= {"reason": reason}
    return json_fields | ({"risk": decision.risk} if decision.risk is not None else {})


def target_paths(decision: Decision) -> tuple[str, ...]:
    """Return the paths that the decision changes, each once."""
    match decision:
        case CodeEdit(edit=edit):
            return (edit.path,)
        case EditPlan(edits=edits):
            return tuple(dict.fromkeys(edit.path for edit in edits))
        case CreateFile(target=target):
            return (target,)
        case RunTool() | Noop():
            return ()


def edits_of(decision: Decision) -> tuple[Edit, ...]:
    match decision:
        case CodeEdit(edit=edit):
            return (edit,)
        case EditPlan(edits=edits):
            return edits
        case _:
            return ()


_RISK: JsonObject = {"enum": list(RISKS)}
_TEXT: JsonObject = {"type": "string"}  # of a file: its size is limited by the mandate
_EDIT = object_schema(
    ("path", "old_string", "new_string"),
    path=text_schema(PATH_CHARS),
    old_string=text_schema(1_000_000),
    new_string=_TEXT,
    replace_all={"type": "boolean"},
)
_SHA256: JsonObject = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_BASE: JsonObject = {"type": "object", "minProperties": 1, "additionalProperties": _SHA256}
_INTENT = text_schema(2_000)
_ACTION_KEYS: dict[Action, tuple[tuple[str, ...], JsonObject]] = {
    "code_edit": (
        ("target", "old_string", "new_string", "intent"),
        {
            "target": text_schema(PATH_CHARS),
            "old_string": _EDIT["properties"]["old_string"],
            "new_string": _TEXT,
            "replace_all": {"type": "boolean"},
            "intent": _INTENT,
        },
    ),
    "edit_plan": (
        ("edits", "intent"),
        {"edits": {"type": "array", "items": _EDIT, "minItems": 1, "maxItems": MAX_EDITS}, "intent": _INTENT},
    ),
    "create_file": (
        ("target", "content", "intent"),
        {"target": text_schema(PATH_CHARS), "content": _TEXT, "intent": _INTENT},
    ),
    "run_tool": (
        ("tool", "arguments", "intent"),
        {"tool": text_schema(64), "arguments": {"type": "object"}, "intent": _INTENT},
    ),
    "noop": (("reason",), {"reason": text_schema(2_000)}),
}


def decision_schema(allowed: Sequence[Action]) -> JsonObject:
    """Return the JSON Schema that a model's decision is held to: the keys of all allowed actions side by side.

    Every provider supports such a schema. Which keys an action needs is checked afterwards, with errors in words.
    """
    properties: JsonObject = {"action": {"enum": list(allowed)}}
    for action in allowed:
        properties |= _ACTION_KEYS[action][1]
    return object_schema(("action",), **properties, risk=_RISK)


def parse_decision(given: JsonObject) -> Decision:
    """Parse what `decision_json` returned, with its base. Raises Undecodable, also for an edit without a base."""
    match given:
        case {"action": "code_edit" | "edit_plan", "base": base}:
            if problems := compile_schema(_BASE).problems(base):
                raise Undecodable(f"base: {'; '.join(problems)}")
            rest = {name: value for name, value in given.items() if name != "base"}
            return parse_action(rest, ACTIONS, base)
        case {"action": "code_edit" | "edit_plan"}:
            raise Undecodable("the decision has no base: ooda_decide adds the hashes of what was read")
        case _:
            return parse_action(given, ACTIONS, {})


def parse_action(given: JsonObject, allowed: Sequence[Action], base: Base) -> Decision:
    """Parse a decision as a model writes it. Raises Undecodable with all that is wrong. `base`: of an edit, which no
    model writes."""
    action: Action | None = next((name for name in allowed if name == given.get("action")), None)
    if action is None:
        raise Undecodable(f"at /action: must be one of {', '.join(allowed)}")
    required, properties = _ACTION_KEYS[action]
    schema = object_schema(("action", *required), action={"const": action}, **properties, risk=_RISK)
    if problems := compile_schema(schema).problems(given):
        raise Undecodable("; ".join(problems))
    risk: Risk | None = given.get("risk")
    match action:
        case "code_edit":
            edit = _parse_edit({"path": given["target"], **{k: given[k] for k in _EDIT["properties"] if k in given}})
            return CodeEdit(edit, given["intent"], base, risk)
        case "edit_plan":
            return EditPlan(tuple(_parse_edit(edit) for edit in given["edits"]), given["intent"], base, risk)
        case "create_file":
            return CreateFile(_plain_path(given["target"]), given["content"], given["intent"], risk)
        case "run_tool":
            return RunTool(given["tool"], given["arguments"], given["intent"], risk)
        case "noop":
            return Noop(given["reason"], risk)


def _parse_edit(given: JsonObject) -> Edit:
    if given["old_string"] == given["new_string"]:
        raise Undecodable("old_string and new_string are the same, so nothing would change")
    return Edit(_plain_path(given["path"]), given["old_string"], given["new_string"], given.get("replace_all", False))


def _plain_path(path: str) -> str:
    plain = plain_path_or_none(path)
    if plain is None:
        raise Undecodable("a path is not in the workspace; write it as docs/index.md")
    return plain
