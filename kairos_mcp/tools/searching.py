"""Finds tools by words, page by page: one line a tool, whole schemas only where they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject, ToolSpec

WORDS = 20
LINE_CHARS = 300
RELATED = 5


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


def categories(specs: Sequence[ToolSpec]) -> tuple[str, ...]:
    return tuple(sorted({spec.category for spec in specs}))


def page(
    specs: Sequence[ToolSpec], query: str | None, category: str | None, cursor: str | None, limit: int
) -> SearchPage:
    """One page of the tools of a category that have words of the query. Raises BadArguments for another cursor than
    the one of the page before, and for an unknown category."""
    known = categories(specs)
    if category is not None and category not in known:
        raise BadArguments("There is no such category.", f"Valid: {', '.join(known)}.")
    pool = [spec for spec in specs if category in (None, spec.category)]
    hits = ranked(pool, query) if query and query.strip() else pool
    start = _position(cursor, len(hits))
    end = start + limit
    return SearchPage(
        tuple(_brief(spec) for spec in hits[start:end]),
        len(hits),
        str(end) if end < len(hits) else None,
        known,
    )


def ranked(pool: Sequence[ToolSpec], query: str) -> list[ToolSpec]:
    """Those whose name or description has words of the query, best first; equal ones in their own order."""
    words = query.casefold().replace("_", " ").split()[:WORDS]

    def score(spec: ToolSpec) -> int:
        name, text = spec.name.casefold(), f"{spec.category} {spec.description}".casefold()
        return sum(4 * (word in name) + (word in text) for word in words)

    scored = [(score(spec), spec) for spec in pool]
    return [spec for points, spec in sorted(scored, key=lambda each: -each[0]) if points]


def whole(spec: ToolSpec, examples: Sequence[JsonObject] = (), related: Sequence[str] = ()) -> JsonObject:
    """All that there is to say of a tool; `related` names some that are for the same kind of work."""
    told: JsonObject = {
        "name": spec.name,
        "description": spec.description,
        "category": spec.category,
        "effect": spec.effect,
        "source": spec.source,
        "input_schema": spec.input_schema,
    }
    told |= {"examples": list(examples)} if examples else {}
    return told | {"related": list(related)} if related else told


def related(spec: ToolSpec, specs: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Other tools of its category and source, the nearest behind it first (SYSTEMS.md O23)."""
    alike = [each.name for each in specs if (each.category, each.source) == (spec.category, spec.source)]
    at = alike.index(spec.name)
    return tuple([*alike[at + 1 :], *alike[:at]][:RELATED])


def _position(cursor: str | None, total: int) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 9 or int(cursor) > total:
        raise BadArguments("This cursor was not given by registry_search.", "Leave it out to start anew.")
    return int(cursor)


def _brief(spec: ToolSpec) -> JsonObject:
    line = spec.description.partition("\n")[0]
    shown = line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}…"
    return {"name": spec.name, "description": shown, "category": spec.category, "effect": spec.effect}
