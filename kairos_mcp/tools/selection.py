"""Chooses which tools a loop is shown, lets it find the others, and shows the one by which it asks for more rounds.

A few tools are all shown. Of many, those that only read are shown, and a search finds the rest. So a thousand tools
cost a round as little as forty, or as twenty where a run names none.

More rounds are granted by the run's own limits, in the commit of the step: what is granted is in store/more_rounds.py,
and by what in budget/more_rounds.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from kairos_mcp.budget.more_rounds import MAX_GRANTED_ROUNDS, MAX_GRANTS
from kairos_mcp.core.builtin_tools import BUILTIN, REQUEST_MORE_ROUNDS, withhold_more_rounds
from kairos_mcp.core.errors import BadArguments, ToolNotOffered
from kairos_mcp.core.messages import CALLER_SOURCE, SEARCH, JsonObject, ToolResult, ToolSet, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.core.tool import Tool, ToolContext

MAX_QUERY_WORDS = 20
_UNPARTED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"  # scripts without blanks
)
_WORDS = re.compile(rf"[{_UNPARTED}]|[^\W\d_{_UNPARTED}]+")
_STOP_WORDS = """
    a an and any are at by can do does for from how i in into is it its me my need of on or please some that the this to
    want what which with you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
MIN_STEM = 4  # characters of a word, to be the same as one with an ending
MAX_ENDING = 3
ENDING_WEIGHT = 0.7
SUMMARY_CHARS = 300
MAX_RELATED = 5


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of search results: a summary of each tool, or its full description if it was asked for by name."""

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


def list_categories(specs: Sequence[ToolSpec]) -> tuple[str, ...]:
    return tuple(sorted({spec.category for spec in specs}))


def search_page(
    specs: Sequence[ToolSpec], query: str | None, category: str | None, cursor: str | None, limit: int
) -> SearchPage:
    """Return a page of the tools of a category that have words of the query. Raises BadArguments for an unknown
    category, or a cursor that is not that of the previous page."""
    known = list_categories(specs)
    if category is not None and category not in known:
        raise BadArguments("There is no such category.", f"Valid: {', '.join(known)}.")
    pool = [spec for spec in specs if category in (None, spec.category)]
    hits = rank_tools(pool, query) if query and query.strip() else pool
    start = _parse_cursor(cursor, len(hits))
    end = start + limit
    return SearchPage(
        tuple(_summarize_tool(spec) for spec in hits[start:end]),
        len(hits),
        str(end) if end < len(hits) else None,
        known,
    )


def rank_tools(pool: Sequence[ToolSpec], query: str) -> list[ToolSpec]:
    """Return the tools that words of the query name or describe, best first; equal ones keep their order.

    A word counts for more the fewer tools have it, and in a name four times. A built-in tool is also found by what
    people call it ("bash"), and first of all by what Claude Code does ("Grep"). Words that say nothing of a tool, as
    "the", are left out.
    """
    words = [word for word in _split_words(query) if word not in STOP_WORDS][:MAX_QUERY_WORDS]
    if not words:
        return list(pool)
    known = [_list_names(spec) for spec in pool]
    points = [0.0] * len(pool)
    for word in words:
        found = [sum(weight * _weigh_word(word, among) for among, weight in names) for names in known]
        rarity = math.log1p(len(pool) / (1 + len(pool) - found.count(0)))
        points = [total + rarity * each for total, each in zip(points, found, strict=True)]
    ranked = sorted(range(len(pool)), key=lambda n: -points[n])
    return [pool[n] for n in ranked if points[n]]


def _list_names(spec: ToolSpec) -> list[tuple[Sequence[str], int]]:
    """Return words by which a tool is found, with how much each counts."""
    row = BUILTIN.get(spec.name) if spec.source == "builtin" else None
    others = () if row is None else _split_words(row.search_words)
    names: list[tuple[Sequence[str], int]] = [
        ((*_split_words(f"{spec.name} {spec.category}"), *others), 4),
        (_split_words(spec.description), 1),
    ]
    return names if row is None or row.claude_name is None else [*names, ((row.claude_name.casefold(),), 6)]


def _split_words(text: str) -> tuple[str, ...]:
    """Return the different words of a text, in order; of a name like `readFile` or `read_file` also its parts."""
    words = [[word, *re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", word)] for word in re.findall(r"\w+", text)]
    return tuple(dict.fromkeys(part.casefold() for parts in words for part in parts))


def _weigh_word(word: str, among: Sequence[str]) -> float:
    """Return 1 if the word is among these, less if one differs from it in an ending alone, as `searches`; else 0."""
    if word in among:
        return 1
    for other in among:
        short, long = sorted((word, other), key=len)
        if len(short) >= MIN_STEM and len(long) - len(short) <= MAX_ENDING and long.startswith(short):
            return ENDING_WEIGHT
    return 0


def describe_tool(spec: ToolSpec, examples: Sequence[JsonObject] = (), related: Sequence[str] = ()) -> JsonObject:
    """Return the full description of a tool; `related` names some for the same kind of work."""
    message: JsonObject = {
        "name": spec.name,
        "description": spec.description,
        "category": spec.category,
        "effect": spec.effect,
        "source": spec.source,
        "reaches": spec.reaches,
        "trusted": spec.trusted,
        "private": spec.private,
        "input_schema": spec.input_schema,
    }
    message |= {"examples": list(examples)} if examples else {}
    return message | {"related": list(related)} if related else message


def related_tools(spec: ToolSpec, specs: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Return other tools of its category and source, those listed after it first."""
    alike = [other.name for other in specs if (other.category, other.source) == (spec.category, spec.source)]
    position = alike.index(spec.name)
    return tuple([*alike[position + 1 :], *alike[:position]][:MAX_RELATED])


def _parse_cursor(cursor: str | None, total: int) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 9 or int(cursor) > total:
        raise BadArguments("This cursor was not given by registry_search.", "Leave it out to start from the beginning.")
    return int(cursor)


def _summarize_tool(spec: ToolSpec) -> JsonObject:
    shown = truncate(spec.description.partition("\n")[0], SUMMARY_CHARS)
    return {"name": spec.name, "description": shown, "category": spec.category, "effect": spec.effect}


MAX_SHOWN_TOOLS = 40  # each is part of every request
MAX_SPEC_CHARS = 24_000
MAX_DEFAULT_TOOLS = 20  # of a run that names none, so that every server's don't cost every run
MAX_DEFAULT_CHARS = 10_000
MAX_FOUND = 8  # of one search: each stays in every later request


class _Bounds(NamedTuple):
    """How many tools are shown at most, and how many characters their specs may have."""

    tools: int
    chars: int

    def are_exceeded_by(self, specs: ToolSet) -> bool:
        return len(specs) > self.tools or specs.size > self.chars


_BOUNDS = _Bounds(MAX_SHOWN_TOOLS, MAX_SPEC_CHARS)
_DEFAULT_BOUNDS = _Bounds(MAX_DEFAULT_TOOLS, MAX_DEFAULT_CHARS)


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of a loop: `shown` from its first round on, and `searchable`, empty if all are shown.

    Both are stored with the run. `finds_late_tools`: the search also finds tools that become available later.
    """

    shown: ToolSet
    searchable: ToolSet
    notes: tuple[str, ...] = ()
    finds_late_tools: bool = False

    @property
    def search(self) -> ToolSpec | None:
        """The spec of the search, if there is anything to find."""
        return self.shown.find(SEARCH) if self.searchable or self.finds_late_tools else None


def offer_tools(granted: ToolSet, starting: Sequence[str] = (), *, is_default: bool = False) -> ToolOffer:
    """Choose what to show to a loop that may use the `granted` tools. The caller's own are shown if there is room.

    `starting`: servers whose tools it might use, but that are still starting. `is_default`: the run named no tools, so
    fewer are shown. Raises BadArguments if many tools are granted and one has the name of the search.
    """
    bounds = _DEFAULT_BOUNDS if is_default else _BOUNDS
    many, is_name_taken = bounds.are_exceeded_by(granted), granted.find(SEARCH) is not None
    if many and is_name_taken:
        raise BadArguments(
            f"With over {bounds.tools} tools {SEARCH} is the search for them.", "Give that tool another name."
        )
    finds_late_tools = bool(starting) and not is_name_taken
    absent = [_note_absent_servers(starting, finds_late_tools=finds_late_tools)] if starting else []
    if not many and not finds_late_tools:
        return ToolOffer(granted, ToolSet(), tuple(absent))
    search = SEARCH_SPEC
    if starting:
        later = f"Those of {', '.join(starting)} were not there yet when this began: look for them here."
        search = replace(search, description=f"{search.description} {later}")
    shown = ToolSet((*(_choose_shown(granted, bounds) if many else granted), search))
    searchable = ToolSet([spec for spec in granted if shown.find(spec.name) is None])
    if many:
        found = f"the run begins with {len(shown)} and finds {len(searchable)} more"
        absent.insert(0, f"tools: {len(granted)} are too many to show; {found}.")
    return ToolOffer(shown, searchable, tuple(absent), finds_late_tools)


def _note_absent_servers(starting: Sequence[str], *, finds_late_tools: bool) -> str:
    later = (
        f"{SEARCH} finds them once they come"
        if finds_late_tools
        else f"they don't join it: another tool is called {SEARCH}"
    )
    return f"tools: the run begins without those of {', '.join(starting)}, not there yet; {later}."


@dataclass(frozen=True, slots=True)
class LateTools:
    """What became available since a run began: its tools, the servers that are still starting, and what is known of
    those that can't be started."""

    tools: ToolSet = field(default_factory=ToolSet)
    starting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def search_tool(searchable: ToolSet, find_late_tools: Callable[[], LateTools] = LateTools) -> Tool:
    """Make the search tool of one loop. It finds the `searchable` tools, and those that `find_late_tools`, which may
    block, says became available since; no others, whatever the registry has.

    Its result has a line for each tool found. Its data, {"offer": [specs]}, is for the flow, which offers these tools
    from then on.
    """

    def run(arguments: JsonObject, _ctx: ToolContext) -> ToolResult:
        names, query = arguments.get("names"), arguments.get("query")
        if not names and not query:
            raise BadArguments(f"{SEARCH} needs a query or names.", 'As query="read issue".')
        late_tools = find_late_tools()
        pool = ToolSet((*searchable, *late_tools.tools))
        if names:
            found = [spec for name in dict.fromkeys(names) if (spec := pool.find(name)) is not None]
        else:
            found = rank_tools(pool, str(query))
        if not found:
            absent = (
                f" Those of {', '.join(late_tools.starting)} are not there yet; look again later."
                if late_tools.starting
                else ""
            )
            message = " ".join(
                (f"Nothing was found among {len(pool)} tools.{absent or ' Try other words.'}", *late_tools.notes)
            )
            return ToolResult(message, data={"offer": []})
        taken = found[:MAX_FOUND]
        lines = [f"{spec.name} ({spec.effect}): {spec.description.partition(chr(10))[0][:300]}" for spec in taken]
        more = f"\n{len(found) - MAX_FOUND} more; narrower words find them." if len(found) > MAX_FOUND else ""
        text = "You can call these from now on:\n" + "\n".join(lines) + more
        return ToolResult(text, data={"offer": [describe_tool(spec) for spec in taken]})

    return Tool(SEARCH_SPEC, run, timeout_s=10, examples=({"query": "read issue"},))


def _choose_shown(granted: ToolSet, bounds: _Bounds) -> list[ToolSpec]:
    """Choose what is shown of many tools: the built-in ones that only read, in any case; then, of each source that has
    room, all that only read, the caller's tools first."""
    shown = [spec for spec in granted if spec.effect == "read" and spec.source == "builtin"]
    sources = dict.fromkeys(_source_name(spec) for spec in granted if spec.source != "builtin")
    for source in sorted(sources, key=lambda source: source != CALLER_SOURCE):
        of_source = [spec for spec in granted if _source_name(spec) == source]
        joining = [spec for spec in of_source if spec.effect == "read" or spec.is_caller_tool]
        if not bounds.are_exceeded_by(ToolSet([*shown, *joining])):
            shown += joining
    chosen = {spec.name for spec in shown}
    return [spec for spec in granted if spec.name in chosen]


def _source_name(spec: ToolSpec) -> str:
    return spec.source.partition("#")[0]  # without the pin of the one tool


SEARCH_SPEC = BUILTIN[SEARCH].spec(
    "Find more tools by words in their names and descriptions; tools it finds can be called from then on.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 500},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 64}, "maxItems": MAX_FOUND},
        },
        "additionalProperties": False,
    },
    category="agent_control",
)


JUSTIFICATION_CHARS = 100  # at least
REQUEST_WORDS = {"justification": 8, "progress_summary": 3}
"""How many different words each text of a request has at least, since blanks and a letter that is repeated say nothing.
What the words say is not judged."""
TEXT_CHARS = 4_000

MORE_ROUNDS_SPEC = REQUEST_MORE_ROUNDS.spec(
    "Ask for more rounds, before the last one is used.\n"
    "They are granted by what was done since the start or the last grant: new results, and few repeated calls. At most "
    f"{MAX_GRANTS} grants and {MAX_GRANTED_ROUNDS} rounds in all. Returns how many were granted, how many are left and "
    "why.",
    {
        "type": "object",
        "properties": {
            "additional": {"type": "integer", "minimum": 1, "maximum": MAX_GRANTED_ROUNDS, "description": "How many"},
            "justification": {
                "type": "string",
                "minLength": JUSTIFICATION_CHARS,
                "maxLength": TEXT_CHARS,
                "description": "What is still to be done, and why it takes so many",
            },
            "progress_summary": {
                "type": "string",
                "minLength": 1,
                "maxLength": TEXT_CHARS,
                "description": "What was found or done so far",
            },
        },
        "required": ["additional", "justification", "progress_summary"],
        "additionalProperties": False,
    },
    category="agent_control",
)


def find_wordless_texts(arguments: JsonObject) -> list[str]:
    """Return what a request for more rounds, which fits its schema, lacks: a sentence for each text with too few
    words."""
    found = ((name, count_different_words(arguments[name]), least) for name, least in REQUEST_WORDS.items())
    return [
        f"{name} has {count_of(words, 'different word')}, and at least {least} are needed"
        for name, words, least in found
        if words < least
    ]


def offer_more_rounds(tools: ToolSet) -> ToolSet:
    """Return the tools with request_more_rounds at their end."""
    return ToolSet((*withhold_more_rounds(tools), MORE_ROUNDS_SPEC))


def more_rounds_tool() -> Tool:
    """Make request_more_rounds. It is answered before it would be run, so running it is an error."""

    def run(_arguments: JsonObject, _ctx: ToolContext) -> ToolResult:
        raise ToolNotOffered("Only the limits of a loop answer this.", "Go on with the rounds that are left.")

    example = {
        "additional": 4,
        "justification": "Two of five modules are unread, and each takes a search and a read; "
        "after that I compare what all five say.",
        "progress_summary": "Read parser, writer and tests: the names differ in 3 places.",
    }
    return Tool(MORE_ROUNDS_SPEC, run, examples=(example,), exact_only=True)


def count_different_words(text: str) -> int:
    """Count the different words of a text: runs of letters, whatever their case. Where no blanks part words, as in
    Chinese and Thai, each character counts as one."""
    return len({word.casefold() for word in _WORDS.findall(text)})
