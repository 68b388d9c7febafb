"""A mandate: what an agent works on in cycles. Parsed strictly, with one canonical form and its hash.

Nothing is dropped or clamped: an unknown key or a value out of range is an error.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, get_args

from kairos_mcp.core.builtin_tools import FILE_TREE
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import find_unfit_value
from kairos_mcp.core.json_schema import compile_schema, object_schema, text_schema
from kairos_mcp.core.limits import DAY_UNITS, UNITS, UNLIMITED, Limits
from kairos_mcp.core.limits_table import LimitsTable, limits_from_json, set_limits_to_json
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.paths import PATH_CHARS, Risk, plain_path_or_none
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.schedule import SCHEDULE_SCHEMA, Schedule, parse_schedule
from kairos_mcp.core.text import nearest_names, truncate

MAX_UNKNOWN, KEY_CHARS = 3, 40  # of unknown keys that an error names

Action = Literal["code_edit", "edit_plan", "create_file", "run_tool", "noop"]

MandateStatus = Literal[
    "created",
    "active",
    "paused_at_checkpoint",
    "paused_risk_exceeded",
    "paused_goal_drift",
    "interrupted",
    "terminated",
]
"""The status of a mandate: `created` without a run, `active` while its newest run is under way.

A paused run gives the reason of its pause, an ended one `terminated` or `interrupted`.
"""
CHECKPOINT_PAUSE: MandateStatus = "paused_at_checkpoint"
RISK_PAUSE: MandateStatus = "paused_risk_exceeded"
DRIFT_PAUSE: MandateStatus = "paused_goal_drift"

ACTIONS: tuple[Action, ...] = get_args(Action)
TRIGGER_EVENTS = ("run.ended", "run.stopped", "mandate.ended")
DEFAULT_EDIT_BYTES = 4_096  # of new text in one decision, unless the mandate says otherwise
DEFAULT_OBSERVE: tuple[str, ...] = (FILE_TREE.name,)


@dataclass(frozen=True, slots=True)
class Observable:
    """One thing to observe: a tool and its arguments."""

    tool: str
    arguments: JsonObject = field(default_factory=dict)

    def as_json(self) -> str | JsonObject:
        return {"tool": self.tool, "args": self.arguments} if self.arguments else self.tool


@dataclass(frozen=True, slots=True)
class FileCheck:
    """An acceptance check: there is a file at `path`, which contains `text` if one is given."""

    path: str
    text: str | None = None
    kind: Literal["file"] = "file"

    def as_json(self) -> JsonObject:
        if self.text is None:
            return {"check": "file_exists", "path": self.path}
        return {"check": "file_contains", "path": self.path, "text": self.text}


@dataclass(frozen=True, slots=True)
class CommandCheck:
    """An acceptance check: the command, an argument list without a shell, exits with 0."""

    argv: tuple[str, ...]
    cwd: str | None = None
    kind: Literal["command"] = "command"

    def as_json(self) -> JsonObject:
        fields: JsonObject = {"check": "command_succeeds", "argv": list(self.argv)}
        return fields if self.cwd is None else fields | {"cwd": self.cwd}


Check = FileCheck | CommandCheck


@dataclass(frozen=True, slots=True)
class Trigger:
    """An event at which a run begins: of another mandate of the same principal, in whatever workspace; or of a
    configured `server`, narrowed by `arguments`."""

    event: str
    mandate_id: str | None = None
    server: str | None = None
    arguments: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        fields: JsonObject = {"event": self.event, "mandate_id": self.mandate_id, "server": self.server}
        fields |= {"arguments": self.arguments or None}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)  # not slotted: its canonical form is made once
class Mandate:
    """A goal, and what its runs may do to reach it.

    `observe`: what each cycle looks at first. `tools`: globs of the tools that run_tool may name; None: those that only
    read. `prefer_scope`: a scope ("L2": nothing below it), or a glob or folder that every path of a decision has to lie
    in. `limits`: of one run. `day`: of all its runs of one day together, for what model calls cost. Limits only narrow
    what the configuration allows. `starts_on`: events at which a worker starts a run of it, beside its schedule.
    """

    goal: str
    id: str | None = None
    observe: tuple[Observable, ...] = tuple(Observable(tool) for tool in DEFAULT_OBSERVE)
    max_cycles: int = 3
    checkpoint_every: int = 1
    risk_budget: Risk = "low"
    allowed_actions: tuple[Action, ...] = ("code_edit", "noop")
    prefer_scope: str | None = None
    max_edit_bytes: int = DEFAULT_EDIT_BYTES
    acceptance: tuple[Check, ...] = ()
    tools: tuple[str, ...] | None = None
    workspace: str | None = None
    limits: Limits = UNLIMITED
    day: Limits = UNLIMITED
    schedule: Schedule | None = None
    starts_on: tuple[Trigger, ...] = ()

    def as_json(self) -> JsonObject:
        """Return every value, defaults included; `parse_mandate` reads it back."""
        hints: JsonObject = {"prefer_scope": self.prefer_scope, "max_edit_bytes": self.max_edit_bytes}
        values: JsonObject = {
            "id": self.id,
            "goal": self.goal,
            "observe": [look.as_json() for look in self.observe],
            "max_cycles": self.max_cycles,
            "checkpoint_every": self.checkpoint_every,
            "risk_budget": self.risk_budget,
            "allowed_actions": list(self.allowed_actions),
            "decide_hints": {name: hint for name, hint in hints.items() if hint is not None},
            "acceptance": [check.as_json() for check in self.acceptance],
            "tools": None if self.tools is None else list(self.tools),
            "workspace": self.workspace,
            "limits": set_limits_to_json(self.limits),
            "day": set_limits_to_json(self.day) or None,
            "schedule": None if self.schedule is None else self.schedule.as_json(),
            "starts_on": [trigger.as_json() for trigger in self.starts_on] or None,
        }
        return {name: value for name, value in values.items() if value is not None}

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of the mandate without its id: names the version that an approval of a check is valid for."""
        named = {name: value for name, value in self.as_json().items() if name != "id"}
        return sha256(canonical_json(named).encode()).hexdigest()

    @property
    def goal_hash(self) -> str:
        """SHA-256 in hex of the goal's text."""
        return goal_hash(self.goal)


def goal_hash(goal: str) -> str:
    """Return the SHA-256 in hex of a goal's text; each cycle compares it, to notice a changed goal."""
    return sha256(goal.encode()).hexdigest()


def parse_mandate(json_value: object) -> Mandate:
    """Parse a mandate from JSON. Raises BadArguments with everything that is wrong."""
    if (reason := find_unfit_value(json_value)) is not None:
        raise BadArguments(f"mandate: {reason}.", "Send plain JSON.")
    values: Any = _drop_nulls(json_value)
    if problems := compile_schema(MANDATE_SCHEMA).problems(values):
        keys = list(MANDATE_SCHEMA["properties"])
        unknown = [key for key in values if key not in keys][:MAX_UNKNOWN] if isinstance(values, dict) else []
        near = [f"Nearest to {truncate(key, KEY_CHARS)}: {', '.join(nearest_names(key, keys))}." for key in unknown]
        raise BadArguments(
            f"mandate: {'; '.join(problems)}.",
            " ".join([*near, f"Its keys: {', '.join(keys)}; the description of mandate_save has their values."]),
        )
    if not values["goal"].strip():
        raise BadArguments("mandate: the goal is blank.", "Describe in a sentence what is to be achieved.")
    hints = values.pop("decide_hints", {})
    if "observe" in values:
        values["observe"] = tuple(_parse_observable(item) for item in values["observe"])
    if "acceptance" in values:
        values["acceptance"] = tuple(_parse_check(n, item) for n, item in enumerate(values["acceptance"], 1))
    if "allowed_actions" in values:  # doing nothing is always allowed, so that no action has to be made up
        allowed = {*values["allowed_actions"], "noop"}
        values["allowed_actions"] = tuple(action for action in ACTIONS if action in allowed)
    if "tools" in values:
        values["tools"] = tuple(dict.fromkeys(values["tools"]))
    if "limits" in values:
        values["limits"] = Limits(**limits_from_json(values["limits"]))
    if "day" in values:
        values["day"] = Limits(**limits_from_json(values["day"]))
    if "schedule" in values:
        values["schedule"] = parse_schedule(values["schedule"])
    if "starts_on" in values:
        values["starts_on"] = tuple(Trigger(**trigger) for trigger in values["starts_on"])
        _check_triggers(values["starts_on"], values.get("id"))
    return Mandate(**values, **_check_hints(hints))


def _check_triggers(triggers: tuple[Trigger, ...], own_id: str | None) -> None:
    for trigger in triggers:
        if (trigger.mandate_id is None) == (trigger.server is None):
            raise BadArguments("mandate: starts_on needs mandate_id or server.", "Give one of them with each event.")
        if trigger.mandate_id is not None and (trigger.event not in TRIGGER_EVENTS or trigger.arguments):
            known = ", ".join(TRIGGER_EVENTS)
            raise BadArguments("mandate: starts_on has no such event of a mandate.", f"They are {known}.")
        if trigger.mandate_id is not None and trigger.mandate_id == own_id:
            raise BadArguments("mandate: starts_on names the mandate itself.", "Give it a schedule, or more cycles.")


def _drop_nulls(value: object) -> object:
    """Drop members that are null: absent and null mean the same.

    Not inside limits, where some clients send null for NaN, nor inside the arguments of a tool.
    """
    match value:
        case dict():
            kept = {"limits", "day", "args", "arguments"}
            return {k: v if k in kept else _drop_nulls(v) for k, v in value.items() if v is not None}
        case list():
            return [_drop_nulls(item) for item in value]
        case _:
            return value


def _check_hints(hints: JsonObject) -> JsonObject:
    scope = hints.get("prefer_scope")
    if scope == "L0":
        raise BadArguments("mandate: prefer_scope L0 is never written.", 'Use "L1", "L2", or a folder or glob.')
    if scope is not None and scope not in ("L1", "L2") and plain_path_or_none(scope) is None:
        raise BadArguments("mandate: prefer_scope is not a path in the workspace.", 'As "docs" or "docs/*.md".')
    return hints


def _parse_observable(value: str | JsonObject) -> Observable:
    match value:
        case str() as tool:
            return Observable(tool)
        case spelled:
            return Observable(spelled["tool"], spelled.get("args", {}))


def _parse_check(number: int, value: JsonObject) -> Check:
    """Parse an acceptance check; which keys it has depends on its kind."""
    match value:
        case {"check": "file_exists", "path": str(path), **rest} if not rest:
            return FileCheck(_require_plain_path(number, path))
        case {"check": "file_contains", "path": str(path), "text": str(text), **rest} if not rest:
            return FileCheck(_require_plain_path(number, path), text)
        case {"check": "command_succeeds", "argv": list(argv), **rest} if rest.keys() <= {"cwd"} and argv and argv[0]:
            return CommandCheck(tuple(argv), rest.get("cwd"))
    raise BadArguments(
        f"mandate: acceptance number {number} does not have the keys of its kind.",
        "file_exists: path; file_contains: path, text; command_succeeds: argv, cwd?.",
    )


def _require_plain_path(number: int, path: str) -> str:
    plain = plain_path_or_none(path)
    if plain is None:
        raise BadArguments(
            f"mandate: the path of acceptance number {number} is not a path in the workspace.", "As docs/index.md."
        )
    return plain


MANDATE_SCHEMA: JsonObject = object_schema(
    ("goal",),
    id={"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
    goal=text_schema(8_000),
    observe={
        "type": "array",
        "items": {"anyOf": [text_schema(64), object_schema(("tool",), tool=text_schema(64), args={"type": "object"})]},
        "maxItems": 16,
    },
    max_cycles={"type": "integer", "minimum": 1, "maximum": 10},
    checkpoint_every={"type": "integer", "minimum": 1, "maximum": 3},
    risk_budget={"enum": ["low", "medium"]},
    allowed_actions={"type": "array", "items": {"enum": list(ACTIONS)}, "minItems": 1, "uniqueItems": True},
    decide_hints=object_schema(
        prefer_scope=text_schema(256), max_edit_bytes={"type": "integer", "minimum": 1, "maximum": 65_536}
    ),
    acceptance={
        "type": "array",
        "items": object_schema(
            ("check",),
            check={"enum": ["file_exists", "file_contains", "command_succeeds"]},
            path=text_schema(PATH_CHARS),
            text=text_schema(4_000),
            argv={"type": "array", "items": text_schema(4_000, 0), "maxItems": 64},
            cwd=text_schema(PATH_CHARS),
        ),
        "maxItems": 10,
    },
    tools={"type": "array", "items": text_schema(256), "maxItems": 64},
    workspace=text_schema(4_096),
    limits=LimitsTable(tuple(unit for field, unit in UNITS.items() if field != "rounds")).json_schema(),
    day=LimitsTable(DAY_UNITS).json_schema(),
    schedule=SCHEDULE_SCHEMA,
    starts_on={
        "type": "array",
        "items": object_schema(
            ("event",),
            event=text_schema(200),
            mandate_id=text_schema(64),
            server=text_schema(64),
            arguments={"type": "object"},
        ),
        "maxItems": 8,
    },
)
