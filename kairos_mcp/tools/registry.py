"""The tools there are: what one is, how they are found and chosen, and the one way to call one.

A tool's effect class, category and schema are in its ToolSpec; whether it may run is for gate.py to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property

from kairos_mcp.errors import BadArguments, ConfigError, KairosError, UnknownTool
from kairos_mcp.messages import JsonObject, ToolResult, ToolSet, ToolSpec
from kairos_mcp.schemas import Schema, compiled
from kairos_mcp.tools.around import Preview, Probed, Surroundings

UNEXPECTED = "tool_failed"  # a bug or a fault below a tool; every expected failure has a code of its own
GLOB_CHARS = 256  # a caller's glob over names of at most 64 characters
SHOWN_NAMES = 20
SAID_CHARS = 120  # how much of a caller's own words an error repeats


@dataclass(frozen=True)  # not slotted: the compiled schema is cached on the instance
class Tool:
    """A tool and the function behind it. `run` blocks and is called in a worker thread.

    It raises a leaf of KairosError for what the model can act on. `preview` says what an approval shows of a call
    that was not made yet (raising as `run` would); without it the arguments are shown. `probe` looks, after a crash,
    whether a `checked` call was carried out.
    """

    spec: ToolSpec
    run: Callable[[JsonObject, Surroundings], ToolResult]
    timeout_s: float = 60
    examples: tuple[JsonObject, ...] = ()
    preview: Callable[[JsonObject, Surroundings], Preview] | None = None
    probe: Callable[[JsonObject, Surroundings], Probed] | None = None

    @cached_property
    def schema(self) -> Schema:
        return compiled(self.spec.input_schema)


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of what a search found: one line a tool, and the whole schema of those asked for by name."""

    tools: tuple[JsonObject, ...]
    total: int
    cursor: str | None = None
    categories: tuple[str, ...] = field(default=())

    def as_json(self) -> JsonObject:
        return {
            "tools": list(self.tools),
            "total": self.total,
            "categories": list(self.categories),
            "cursor": self.cursor,
        }


class Registry:
    """Tools by name, in the order given, which is the order of every listing."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise ConfigError(f"Two tools are called {tool.spec.name!r}.", "Rename or remove one.")
            self._tools[tool.spec.name] = tool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def select(self, globs: Sequence[str] | None) -> ToolSet:
        """The tools a loop is offered: all that only read, or those that the globs name."""
        if globs is None:
            return ToolSet([spec for spec in self.specs if spec.effect == "read"])
        wanted: set[str] = set()
        for glob in globs:
            wanted.update(self._matching(glob))
        return ToolSet([spec for spec in self.specs if spec.name in wanted])

    def search(
        self,
        query: str | None = None,
        names: Sequence[str] | None = None,
        category: str | None = None,
        cursor: str | None = None,
        limit: int = 20,
    ) -> SearchPage:
        """Tools whose name or description has words of the query, best first; `names` asks for whole specs.

        A cursor is the one of the page before; raises BadArguments for another, UnknownTool for a name.
        """
        categories = tuple(sorted({spec.category for spec in self.specs}))
        if names:
            found = [self._named(name) for name in dict.fromkeys(names)]
            return SearchPage(tuple(_whole(tool) for tool in found), len(found), None, categories)
        if category is not None and category not in categories:
            raise BadArguments(f"There is no category {_said(category)}.", f"Valid: {', '.join(categories)}.")
        pool = [spec for spec in self.specs if category in (None, spec.category)]
        hits = _ranked(pool, query) if query and query.strip() else pool
        start = _position(cursor, len(hits))
        end = start + limit
        return SearchPage(
            tuple(_brief(spec) for spec in hits[start:end]),
            len(hits),
            str(end) if end < len(hits) else None,
            categories,
        )

    def _matching(self, glob: str) -> list[str]:
        if glob in self._tools:
            return [glob]
        found = [name for name in self._tools if fnmatchcase(name, glob)] if len(glob) <= GLOB_CHARS else []
        if not found:
            raise self._unknown(glob)
        return found

    def _named(self, name: str) -> Tool:
        tool = self._tools.get(name)
        if tool is None:
            raise self._unknown(name)
        return tool

    def _unknown(self, name: str) -> UnknownTool:
        near = get_close_matches(name[:GLOB_CHARS], list(self._tools), n=3, cutoff=0.5)
        names = ", ".join(near or list(self._tools)[:SHOWN_NAMES]) or "none"
        return UnknownTool(
            f"No tool matches {_said(name)}.",
            f"Near: {names}." if near else f"There are {len(self._tools)}: {names}; registry_search lists them.",
        )


def call(tool: Tool, arguments: JsonObject, around: Surroundings) -> ToolResult:
    """Check the arguments, run the tool, and give every failure as a result; never raises."""
    try:
        given = _present(arguments, tool.spec.input_schema)
        problems = tool.schema.problems(given)
        if problems:
            wrong = f"{tool.spec.name}: {'; '.join(problems)}."
            return failed(BadArguments(wrong, _valid(tool.spec.input_schema)))
        return tool.run(given, around)
    except KairosError as error:
        return failed(error)
    except Exception as error:  # a tool's bug must not take the run with it
        # Only the type's name: the text of a foreign exception may hold paths of this machine, or secrets.
        kind = type(error).__name__
        return _refusal(
            UNEXPECTED,
            f"{tool.spec.name} failed unexpectedly ({kind}); nothing is known to have changed.",
            "Try other arguments or another tool.",
            retryable=isinstance(error, OSError),
        )


def failed(error: KairosError) -> ToolResult:
    """An error as the result that a model reads."""
    return _refusal(error.code, error.message, error.hint, retryable=error.retryable)


def _refusal(code: str, message: str, hint: str, *, retryable: bool) -> ToolResult:
    told = {"code": code, "message": message, "hint": hint, "retryable": retryable}
    return ToolResult(f"{message} {hint}".rstrip(), is_error=True, data=told, code=code)


def _present(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Absent and null are the same, except where the schema itself admits null."""
    if None not in arguments.values():
        return arguments
    refusing = {name for name, kind in _kinds(schema).items() if kind != "any" and "null" not in kind}
    return {name: value for name, value in arguments.items() if value is not None or name not in refusing}


def _valid(schema: JsonObject) -> str:
    required = schema.get("required", [])
    shown = [f"{name} ({kind}{', required' * (name in required)})" for name, kind in _kinds(schema).items()]
    return f"Valid arguments: {', '.join(shown) or 'none'}."


def _kinds(schema: JsonObject) -> dict[str, str]:
    """The type of each argument in words; "any" where the schema states none."""
    kinds: dict[str, str] = {}
    for name, declared in schema.get("properties", {}).items():
        stated = declared.get("type", "any") if isinstance(declared, dict) else "any"
        kinds[name] = stated if isinstance(stated, str) else " or ".join(stated)
    return kinds


def _ranked(pool: Sequence[ToolSpec], query: str) -> list[ToolSpec]:
    words = query.casefold().replace("_", " ").split()[:SHOWN_NAMES]

    def score(spec: ToolSpec) -> int:
        name, text = spec.name.casefold(), f"{spec.category} {spec.description}".casefold()
        return sum(4 * (word in name) + (word in text) for word in words)

    return sorted((spec for spec in pool if score(spec)), key=score, reverse=True)


def _position(cursor: str | None, total: int) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 9 or int(cursor) > total:
        raise BadArguments("This cursor was not given by registry_search.", "Leave it out to start anew.")
    return int(cursor)


def _brief(spec: ToolSpec) -> JsonObject:
    line = spec.description.partition("\n")[0]
    return {"name": spec.name, "description": line, "category": spec.category, "effect": spec.effect}


def _whole(tool: Tool) -> JsonObject:
    spec = tool.spec
    told: JsonObject = {
        "name": spec.name,
        "description": spec.description,
        "category": spec.category,
        "effect": spec.effect,
        "source": spec.source,
        "input_schema": spec.input_schema,
    }
    return told | {"examples": list(tool.examples)} if tool.examples else told


def _said(text: str) -> str:
    return repr(text if len(text) <= SAID_CHARS else text[:SAID_CHARS] + "…")
