"""Turns a downstream server's list of tools into values: safe names, pinned definitions, effect classes, specs.

Nothing here talks to a server. What a server says about itself is untrusted: it never makes a tool count as less
dangerous. Definitions that can't be used are left out, and a note names them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeVar

from kairos_mcp.core.effects import EFFECTS, Effect, Reach
from kairos_mcp.core.errors import SchemaRejected, ToolNotOffered
from kairos_mcp.core.hidden_text import make_visible, spell_hidden
from kairos_mcp.core.json_schema import relax_schema
from kairos_mcp.core.messages import JsonObject, ToolSpec, canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.table_values import ServerSetting

OLDER_TRANSPORT = "servers of the older HTTP+SSE answer so, which is not spoken here"
MAX_TOOLS = 500  # of one server; the largest in use have about 100
MAX_DEFINITION_BYTES = 100_000
MAX_LISTING_BYTES = 2_000_000
DESCRIPTION_CHARS = 4_000  # of a description, as a model is shown it
NAME_CHARS = 64  # the longest name of a tool that providers accept
PROTOCOL_NAME_CHARS = 128  # the protocol's own bound
QUOTE_CHARS = 200

_T = TypeVar("_T")
_D = TypeVar("_D")
_NAME = re.compile(r"[A-Za-z0-9_.:/ -]+")
_ALTERNATIVES = {"allOf", "anyOf", "oneOf"}  # providers refuse them at the top of a tool's schema
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


@dataclass(frozen=True)  # not slotted: the hash is computed once
class ServerToolDefinition:
    """A tool as its server defines it; `body` is canonical JSON of name, title, description, schemas, annotations."""

    name: str
    body: str

    @cached_property
    def hash(self) -> str:
        return sha256(self.body.encode()).hexdigest()

    @cached_property
    def output_schema(self) -> JsonObject | None:
        """Return the schema that the server states for the tool's structured content, if any."""
        schema: JsonObject | None = json.loads(self.body).get("outputSchema")
        return None if schema is None else relax_schema(schema)[0]

    def build_spec(self, setting: ServerSetting, source: str) -> ToolSpec:
        """Return the spec for a model. Its source holds the pin, so another definition counts as another tool."""
        server, body = setting.name, json.loads(self.body)
        annotations = body.get("annotations") or {}
        pin = sha256(f"{source}\n{self.hash}".encode()).hexdigest()[:16]
        return ToolSpec(
            offered_name(server, self.name),
            _describe_tool(server, body),
            relax_schema(body["inputSchema"])[0],
            classify_effect(self.name, annotations, setting.effects),
            f"mcp:{server}",
            f"mcp:{server}#{pin}",
            classify_reach(self.name, annotations, setting.reaches),
            stated_for(self.name, setting.trusted, default=False),
            stated_for(self.name, setting.private, default=True),
            stated_for(self.name, setting.content, default=None),
        )


@dataclass(frozen=True, slots=True)
class ServerListing:
    """What a server lists: the usable definitions by name, and notes on what was left out and why."""

    definitions: dict[str, ServerToolDefinition]
    notes: tuple[str, ...] = ()


def read_listing(
    server: str,
    listed: Sequence[Any],
    globs: Sequence[str],
    *,
    problem: str | None = None,
    dropped: Collection[str] = (),
    redact: Callable[[JsonObject], JsonObject] = lambda listed: listed,
) -> ServerListing:
    """Choose the tools whose names match one of `globs`, and check each definition on its own.

    `listed` is what the server sent, tool by tool. `problem`: what is wrong with the list as a whole. `dropped`: names
    that the protocol forbids to use. `redact` takes the secrets out of a definition before anything of it is stored or
    shown.
    """
    notes = [f"{server}: {problem}."] if problem is not None else []
    named = [tool for tool in listed if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
    oddities = ["a tool without a name (not taken)"] * (len(named) < len(listed))
    chosen = [tool for tool in named if any(fnmatchcase(tool["name"], glob) for glob in globs)]
    different = list({(tool["name"], canonical_body(tool)): tool for tool in chosen}.values())
    counts = Counter(tool["name"] for tool in different)
    if len(different) > MAX_TOOLS:
        notes.append(
            f"{server} lists {len(different):,} tools; the first {MAX_TOOLS} are taken. `tools` can choose others."
        )
    definitions: dict[str, ServerToolDefinition] = {}
    size = 0
    for as_listed in different[:MAX_TOOLS]:
        name = as_listed["name"]
        tool, repairs = repair_definition(redact(as_listed))
        body = canonical_body(tool)
        size += len(body.encode("utf-8", "replace"))
        refusal = _find_problem(tool, body, size) if counts[name] == 1 else "it is listed more than once"
        if name in dropped:
            refusal = "its x-mcp-header is not as the protocol has it"
        if tool.get("name") != name:
            name, refusal = str(tool.get("name")), "its name holds a secret"
        if refusal is not None:
            oddities.append(f"{quote_server(name, 64)} (not taken: {refusal})")
            continue
        definitions[name] = ServerToolDefinition(name, body)
        schemas = (tool[key] for key in ("inputSchema", "outputSchema") if key in tool)
        reasons = [reason for schema in schemas for reason in relax_schema(schema)[1]]
        repairs += [f"not checked: {quote_server(reason)}" for reason in reasons[:3]]
        if len(tool.get("description") or "") > DESCRIPTION_CHARS:
            repairs.append(f"its description is shown up to {DESCRIPTION_CHARS:,} characters")
        if repairs:
            oddities.append(f"{quote_server(name, 64)} ({'; '.join(repairs)})")
    if oddities:
        more_odd = f" and {len(oddities) - 5} more" if len(oddities) > 5 else ""
        notes.append(f"{server}: {'; '.join(oddities[:5])}{more_odd}.")
    return ServerListing(definitions, tuple(notes))


def repair_definition(listed: JsonObject) -> tuple[JsonObject, list[str]]:
    """Return a tool with those fields mended or left out that no call needs, and what was done, in words."""
    tool, repairs = dict(listed), list[str]()
    for key in ("title", "description"):
        if tool.get(key) is not None and not isinstance(tool[key], str):
            del tool[key]
            repairs.append(f"its {key} is not a text, and is left out")
    if (annotations := tool.get("annotations")) is not None:
        tool["annotations"] = _read_annotations(annotations)
    if tool.get("inputSchema") is None:
        tool["inputSchema"] = {"type": "object", "properties": {}}
        repairs.append("it states no inputSchema, and is taken as one without arguments")
    elif isinstance(tool["inputSchema"], dict):
        tool["inputSchema"] = _repair_input_schema(tool["inputSchema"], repairs)
    if (output := tool.get("outputSchema")) is not None and (reason := _find_schema_problem([output])) is not None:
        del tool["outputSchema"]
        repairs.append(f"its outputSchema is left out: {reason}")
    return tool, repairs


def _repair_input_schema(schema: JsonObject, repairs: list[str]) -> JsonObject:
    if schema.get("properties") == [] and isinstance(schema["properties"], list):  # an empty map, as PHP writes it
        repairs.append("the properties of its inputSchema are an empty list, and are taken as none")
        schema = schema | {"properties": {}}
    if schema.get("type") is None and not schema.keys() & _ALTERNATIVES:
        repairs.append("its inputSchema states no type, and is taken as that of an object")
        schema = schema | {"type": "object"}
    return schema


def _read_annotations(annotations: Any) -> JsonObject:
    """Return the annotations that the protocol knows, each only as it has it."""
    given = annotations if isinstance(annotations, dict) else {}
    return {
        key: given[key]
        for key, kind in (("title", str), *((hint, bool) for hint in _HINTS))
        if isinstance(given.get(key), kind)
    }


def canonical_body(listed: JsonObject) -> str:
    """Return what is pinned of a tool: all that a model or the gate relies on, so neither icons nor `_meta`."""
    kept = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    try:
        return canonical_json({key: listed[key] for key in kept if listed.get(key) is not None})
    except (TypeError, ValueError):  # NaN
        return ""


def offered_name(server: str, tool: str) -> str:
    """Return the name `server__tool`, changed where providers would not accept it.

    A changed name ends in a hash of the original, so that two tools can't get the same. A server's name never holds
    `__`, so no server can pose as another.
    """
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    name = f"{server}__{safe}"
    if safe == tool and len(name) <= NAME_CHARS:
        return name
    return f"{name[: NAME_CHARS - 9]}-{sha256(tool.encode()).hexdigest()[:8]}"


def classify_effect(name: str, annotations: JsonObject, configured: Sequence[tuple[str, Effect]]) -> Effect:
    """Return the effect class: what a person configured for exactly this name; else what the first matching glob says,
    unless the server's annotations admit more; else irreversible."""
    by_name = [effect for glob, effect in configured if glob == name]
    if by_name:
        return by_name[0]
    by_glob: Effect = next((effect for glob, effect in configured if fnmatchcase(name, glob)), "irreversible")
    return max(by_glob, _least_effect(annotations), key=EFFECTS.index)


def classify_reach(name: str, annotations: JsonObject, configured: Sequence[tuple[str, Reach]]) -> Reach | None:
    """Return how far a tool reaches: what a person configured for exactly this name; else what the first matching glob
    says, unless the server itself says that it reaches the world outside; None where nothing is configured."""
    by_name = [reach for glob, reach in configured if glob == name]
    if by_name:
        return by_name[0]
    by_glob = next((reach for glob, reach in configured if fnmatchcase(name, glob)), None)
    return "outside" if by_glob is not None and annotations.get("openWorldHint") is True else by_glob


def stated_for(name: str, configured: Sequence[tuple[str, _T]], *, default: _D) -> _T | _D:
    """Return what a person stated for this name, or by the first glob that matches it."""
    by_name = [stated for glob, stated in configured if glob == name]
    return next(iter(by_name), next((stated for glob, stated in configured if fnmatchcase(name, glob)), default))


def suggested_effect(body: str) -> Effect | None:
    """Return the effect that a definition suggests by its annotations, None if none but irreversible. It counts only
    once a person has stated it."""
    annotations = json.loads(body).get("annotations") or {}
    if annotations.get("readOnlyHint") is True:
        return "read"
    return "idempotent" if annotations.get("idempotentHint") is True else None


def quote_server(text: str, limit: int = QUOTE_CHARS) -> str:
    """Quote a server's text on one line, with invisible characters spelled out, cut at `limit` characters."""
    visible = make_visible(text[:limit])[0].replace("\n", " ").replace("\t", " ")
    return f"{visible}…" if len(text) > limit else visible


def definition_changed(server: str, tool: str) -> ToolNotOffered:
    """Build the error for a call of a tool whose definition is no longer the approved one."""
    return ToolNotOffered(
        f"{server} has changed its definition of {quote_server(tool, 64)} since it was approved.",
        "A person has to look at it: `kairos-mcp tools list` shows what waits. Go on without it.",
    )


def _least_effect(annotations: JsonObject) -> Effect:
    """Return the least that a tool does by its own annotations. They count only where they make us more careful."""
    read_only, destructive = annotations.get("readOnlyHint"), annotations.get("destructiveHint")
    idempotent = annotations.get("idempotentHint")
    if read_only is False or destructive is True:
        return "idempotent" if idempotent is True else "irreversible"
    return "irreversible" if idempotent is False and read_only is not True else "read"


def _describe_tool(server: str, body: JsonObject) -> str:
    text = str(body.get("description") or body.get("title") or "no description")
    shown = spell_hidden(text[:DESCRIPTION_CHARS])
    if len(text) > DESCRIPTION_CHARS:
        shown = f"{shown} [cut here: {len(text):,} characters in all]"
    return f"[in the words of the MCP server {server}] {shown}"


def _find_problem(listed: JsonObject, body: str, size: int) -> str | None:
    """Return why a tool can't be used, None if it can. `size` is that of all definitions up to this one, in bytes."""
    name = listed["name"]
    if len(name) > PROTOCOL_NAME_CHARS or not _NAME.fullmatch(name):
        return "its name has other characters than letters, digits and _-.:/ of ASCII, or over 128"
    if not body or len(body) > MAX_DEFINITION_BYTES:
        return f"its definition is not plain JSON, or over {MAX_DEFINITION_BYTES:,} bytes"
    if size > MAX_LISTING_BYTES:
        return f"all definitions together are over {MAX_LISTING_BYTES:,} bytes"
    schema = listed["inputSchema"]
    if isinstance(schema, dict) and schema.get("type") != "object":
        return "its inputSchema does not say that arguments are an object"
    return _find_schema_problem([schema])


def _find_schema_problem(schemas: Iterable[object]) -> str | None:
    for schema in schemas:
        if not isinstance(schema, dict):
            return "its schema is not an object"
        try:
            relax_schema(schema)
        except SchemaRejected as rejected:
            return f"{rejected.code}: {quote_server(rejected.message)}"
    return None
