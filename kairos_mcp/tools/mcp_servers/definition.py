"""What a downstream server says of its tools, made into values: safe names, pinned bodies, effect classes, specs.

Nothing here touches a server. A server's words about itself are content from outside: they never make a tool less
dangerous, and what does not fit is left out and named.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256

from kairos_mcp.core.errors import SchemaRejected, ToolNotOffered
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import Effect, JsonObject, ToolSpec, canonical_json
from kairos_mcp.core.outside import spell_hidden
from kairos_mcp.core.text import make_visible

TOOLS = 500  # of one server; the largest in use have about 100
DEFINITION_BYTES = 100_000
LISTING_BYTES = 2_000_000
DESCRIPTION_CHARS = 4_000  # what a model is shown of one
NAME_CHARS = 64  # what providers take for the name of a tool
OWN_NAME_CHARS = 128  # the protocol's own bound
SAID_CHARS = 200

_TAKEN = re.compile(r"[A-Za-z0-9_.:/ -]+")
_CAUTION: tuple[Effect, ...] = ("read", "idempotent", "checked", "irreversible")


@dataclass(frozen=True)  # not slotted: the hash is computed once
class ServerToolDefinition:
    """A tool as its server defined it: `body` is canonical JSON of name, title, description, schemas, annotations."""

    name: str
    body: str

    @cached_property
    def hash(self) -> str:
        return sha256(self.body.encode()).hexdigest()

    @cached_property
    def output_schema(self) -> JsonObject | None:
        """What the tool's structured content keeps to, by its own word."""
        found: JsonObject | None = json.loads(self.body).get("outputSchema")
        return found

    def spec(self, server: str, effects: Sequence[tuple[str, Effect]], source: str) -> ToolSpec:
        """The tool as a model is offered it; its source names the pin, so that another definition is another tool."""
        body: JsonObject = json.loads(self.body)
        pin = sha256(f"{source}\n{self.hash}".encode()).hexdigest()[:16]
        return ToolSpec(
            offered_name(server, self.name),
            _worded(server, body),
            body["inputSchema"],
            effect_of(self.name, body.get("annotations") or {}, effects),
            f"mcp:{server}",
            f"mcp:{server}#{pin}",
        )


@dataclass(frozen=True, slots=True)
class ServerListing:
    """What a server lists, taken apart: the definitions that may be used, by name, and what was left out and why."""

    definitions: dict[str, ServerToolDefinition]
    notes: tuple[str, ...] = ()


def listing(
    server: str,
    listed: Sequence[JsonObject],
    globs: Sequence[str],
    *,
    more: bool = False,
    hide: Callable[[JsonObject], JsonObject] = lambda each: each,
) -> ServerListing:
    """The tools that were asked for by `globs` over their own names; `more`: the server had not come to an end. `hide`
    takes the secrets out of what is listed of one, before anything of it is kept or told."""
    notes = [f"{server} lists more tools than are read; some are left out."] if more else []
    times = Counter(str(each.get("name")) for each in listed)
    wanted = [each for each in listed if any(fnmatchcase(str(each.get("name")), glob) for glob in globs)]
    if len(wanted) > TOOLS:
        notes.append(f"{server} lists {len(wanted):,} tools; the first {TOOLS} are taken. `tools` can choose others.")
    taken: dict[str, ServerToolDefinition] = {}
    odd: list[str] = []
    size = 0
    for as_listed in wanted[:TOOLS]:
        each = hide(as_listed)
        name, body = str(each.get("name")), canonical_body(each)
        size += len(body.encode("utf-8", "replace"))
        problem = _problem(each, body, size) if times[name] == 1 else "it is listed more than once"
        if name != as_listed.get("name"):
            problem = "its name holds a secret"
        if problem is None:
            taken[name] = ServerToolDefinition(name, body)
            if len(str(each.get("description") or "")) > DESCRIPTION_CHARS:
                odd.append(f"{plain(name, 64)} (its description is shown up to {DESCRIPTION_CHARS:,} characters)")
        else:
            odd.append(f"{plain(name, 64)} (not taken: {problem})")
    if odd:
        more_odd = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        notes.append(f"{server}: {'; '.join(odd[:5])}{more_odd}.")
    return ServerListing(taken, tuple(notes))


def canonical_body(listed: JsonObject) -> str:
    """What is pinned of a tool: all that a model or the gate may go by; icons and `_meta` are neither."""
    kept = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    try:
        return canonical_json({key: listed[key] for key in kept if listed.get(key) is not None})
    except (TypeError, ValueError):  # NaN
        return ""


def offered_name(server: str, tool: str) -> str:
    """`server__tool`, within what providers take; a name that had to be changed ends in a hash of what it was, so
    that two can't become one. No server's name holds `__`, so no server can speak for another."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    name = f"{server}__{safe}"
    if safe == tool and len(name) <= NAME_CHARS:
        return name
    return f"{name[: NAME_CHARS - 9]}-{sha256(tool.encode()).hexdigest()[:8]}"


def effect_of(name: str, annotations: JsonObject, stated: Sequence[tuple[str, Effect]]) -> Effect:
    """The effect class: what a person stated of this very tool; else what a glob states, unless the server itself
    says that the tool does more than that; else irreversible."""
    exact = [effect for glob, effect in stated if glob == name]
    if exact:
        return exact[0]
    by_glob: Effect = next((effect for glob, effect in stated if fnmatchcase(name, glob)), "irreversible")
    return max(by_glob, _admitted(annotations), key=_CAUTION.index)


def plain(text: str, most: int = SAID_CHARS) -> str:
    """A server's words on one line, what is invisible spelled out, cut at `most` characters."""
    shown = make_visible(text[:most])[0].replace("\n", " ").replace("\t", " ")
    return f"{shown}…" if len(text) > most else shown


def changed(server: str, tool: str) -> ToolNotOffered:
    """What a call is answered that goes to another definition than the approved one."""
    return ToolNotOffered(
        f"{server} defines {plain(tool, 64)} otherwise now than it was approved.",
        "A person has to look at it: `kairos-mcp tools list` shows what waits. Go on without it.",
    )


def _admitted(annotations: JsonObject) -> Effect:
    """The least that a tool does by its own words. A hint is believed only where it makes us more careful."""
    read_only, destructive = annotations.get("readOnlyHint"), annotations.get("destructiveHint")
    idempotent = annotations.get("idempotentHint")
    if read_only is False or destructive is True:
        return "idempotent" if idempotent is True else "irreversible"
    return "irreversible" if idempotent is False and read_only is not True else "read"


def _worded(server: str, body: JsonObject) -> str:
    text = str(body.get("description") or body.get("title") or "no description")
    shown = spell_hidden(text[:DESCRIPTION_CHARS])
    if len(text) > DESCRIPTION_CHARS:
        shown = f"{shown} [cut here: {len(text):,} characters in all]"
    return f"[in the words of the MCP server {server}] {shown}"


def _problem(listed: JsonObject, body: str, size: int) -> str | None:
    """Why a tool can't be used, if it can't."""
    name = str(listed.get("name"))
    if len(name) > OWN_NAME_CHARS or not _TAKEN.fullmatch(name):
        return "its name has other characters than letters, digits and _-.:/ of ASCII, or over 128"
    if not body or len(body) > DEFINITION_BYTES:
        return f"its definition is no plain JSON, or over {DEFINITION_BYTES:,} bytes"
    if size > LISTING_BYTES:
        return f"all definitions together are over {LISTING_BYTES:,} bytes"
    return _schema_problem(each for each in (listed.get("inputSchema"), listed.get("outputSchema")) if each is not None)


def _schema_problem(schemas: Iterable[object]) -> str | None:
    for schema in schemas:
        if not isinstance(schema, dict):
            return "its schema is no object"
        try:
            compile_schema(schema)
        except SchemaRejected as rejected:
            return f"{rejected.code}: {plain(rejected.message)}"
    return None
