"""The registry of tools: where tools come from, and how they are found and selected."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

from kairos_mcp.core.builtin_tools import HOST_TOOLS, REQUEST_MORE_ROUNDS
from kairos_mcp.core.errors import ConfigError, ToolNotOffered, UnknownTool
from kairos_mcp.core.messages import JsonObject, ToolSet, ToolSpec
from kairos_mcp.core.text import count_of, nearest_names, truncate
from kairos_mcp.core.tool import Tool
from kairos_mcp.tools.selection import SearchPage, describe_tool, list_categories, related_tools, search_page

_OF_HOSTS = {name.casefold(): ours for name, ours in HOST_TOOLS.items()}
GLOB_CHARS = 256  # a caller's glob over names of at most 64 characters
NAMED_WAIT_S = 30  # for a source that is named, by a tool of it or a glob; hosts give up on a call after about 60 s
DEFAULT_WAIT_S = 3  # for other sources; tools that come later can still be found by the search
MAX_NOTES = 4  # of sources, in a search's result
QUOTED_CHARS = 120  # how much of a caller's own words an error repeats


class StartingSource(Protocol):
    """A source that takes time to become available, such as a server that has to be started."""

    @property
    def name(self) -> str: ...

    @property
    def is_starting(self) -> bool:
        """Whether it is being started, and its tools are not known yet."""

    @property
    def is_listed(self) -> bool:
        """Whether it is known which tools it has, from now or from before."""

    def may_match(self, globs: Sequence[str] | None) -> bool:
        """Whether the globs could match a tool of it; None stands for all tools that only read."""

    def notes(self) -> tuple[str, ...]:
        """Return sentences on what was left out, cut, trusted at first use, or is missing."""

    def wait_ready(self, deadline: float) -> None:
        """Find out what tools there are. Blocks until `deadline` (`time.monotonic()`) at most, and never raises.

        A start that takes longer continues in the background.
        """

    def try_once(self, deadline: float) -> None:
        """Start it if it was never started here, also where its tools are known. Never raises."""


class ToolSource(Protocol):
    """Tools that may come and go while the server runs, such as those of another MCP server or of installed packages.

    Every method is quick, and may be called in the event loop and in worker threads.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """A number that changes whenever `tools` would return something else."""

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools that are offered now, in a fixed order."""

    def why_withheld(self, name: str) -> str | None:
        """Return why a tool of this name is not offered, if that is known."""

    def may_match(self, globs: Sequence[str] | None) -> bool:
        """Whether the globs could name a tool of this source; None: those that only read."""

    def starting(self) -> Sequence[StartingSource]:
        """Return the parts that may have to be waited for."""

    def notes(self) -> tuple[str, ...]:
        """Return sentences on what was left out, cut, trusted at first use, or is missing."""


class _SourceTools(NamedTuple):
    """The tools at these versions of the sources; `origins`: the source of each; `shadowed`: notes on names in use.

    One immutable value, since worker threads read it too.
    """

    versions: tuple[int, ...]
    tools: dict[str, Tool]
    origins: dict[str, str]
    shadowed: tuple[str, ...]


class ToolRegistry:
    """Tools by name: the built-in ones in the order given, then those of each source in its order.

    A source never replaces a tool that comes before it. Looking up tools starts no source; `wait_ready` does.
    """

    def __init__(self, tools: Iterable[Tool], sources: Sequence[ToolSource] = (), *, read_only: bool = False) -> None:
        """`read_only`: leave out every tool that does more than read."""
        self._is_read_only = read_only
        self._left_out: dict[str, Tool] = {}
        self._builtin: dict[str, Tool] = {}
        self._internal: dict[str, Tool] = {}
        for tool in tools:
            if self._leaves_out(tool):
                continue
            if tool.spec.name in self._builtin or tool.spec.name in self._internal:
                raise ConfigError(f"Two tools are called {tool.spec.name!r}.", "Rename or remove one.")
            (self._internal if tool.internal else self._builtin)[tool.spec.name] = tool
        self._sources = tuple(sources)
        self._cached = _SourceTools((), self._builtin, {}, ())
        self._removed: dict[str, Tool] = {}

    def _leaves_out(self, tool: Tool) -> bool:
        """Whether a tool is left out, since it does more than read; remember it."""
        if not self._is_read_only or tool.spec.effect == "read" or REQUEST_MORE_ROUNDS.is_tool(tool.spec):
            return False
        self._left_out[tool.spec.name] = tool
        return True

    def without_left_out(self, globs: Sequence[str] | None) -> Sequence[str] | None:
        """Return the globs without those that match only tools which a read-only server leaves out."""
        if globs is None or not self._left_out:
            return globs
        return tuple(glob for glob in globs if self._match_glob(glob) or not self._match_left_out(glob))

    def _match_left_out(self, glob: str) -> list[str]:
        return [name for name in self._left_out if fnmatchcase(name, glob[:GLOB_CHARS])]

    @property
    def _tools(self) -> dict[str, Tool]:
        return self._current_tools().tools

    def _current_tools(self) -> _SourceTools:
        """Return all tools; collected anew only if a source has changed."""
        versions = tuple([source.version for source in self._sources])
        if versions != self._cached.versions:
            known, shadowed, origins = dict(self._builtin), [], {}
            for source in self._sources:
                for tool in source.tools():
                    if self._leaves_out(tool):
                        continue
                    if tool.spec.name in self._internal or known.setdefault(tool.spec.name, tool) is not tool:
                        shadowed.append(
                            f"{source.name}: {tool.spec.name} is left out, since another tool has this name."
                        )
                    else:
                        origins[tool.spec.name] = source.name
            self._removed |= self._cached.tools
            self._cached = _SourceTools(versions, known, origins, tuple(shadowed))
        return self._cached

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a rule may match: of offered tools, of internal ones, and of those that were removed."""
        return (*self._tools, *self._internal, *self._removed)

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories of all tools, also of internal ones and of those that were removed."""
        return tuple(
            {tool.spec.category for tools in (self._tools, self._internal, self._removed) for tool in tools.values()}
        )

    @property
    def unknown_sources(self) -> tuple[str, ...]:
        """Names of the sources whose tools are not known yet; the tools' names begin with these."""
        return tuple(source.name for source in self._sources if not source.tools() and source.may_match(("*",)))

    def specs_without(self, source: str) -> tuple[ToolSpec, ...]:
        """Return the specs of all tools but those of the source with this name."""
        known = self._current_tools()
        return tuple(tool.spec for name, tool in known.tools.items() if known.origins.get(name) != source)

    def find(self, name: str) -> Tool | None:
        """Return the tool of this name, also one that was removed: a call begun for it then fails with the reason that
        its own `run` gives."""
        return self._tools.get(name) or self._internal.get(name) or self._removed.get(name)

    def can_resolve(self, names: Iterable[str]) -> bool:
        """Return whether a run with these tools can continue here: each exists, or it is known why it does not."""
        offered = self._tools
        return all(
            name in offered or self.find(name) is not None or any(source.why_withheld(name) for source in self._sources)
            for name in names
        )

    def resolve(self, spec: ToolSpec) -> Tool:
        """Return the tool that a run was offered as `spec`. Raises ToolNotOffered if it is gone, waits for approval, or
        has another source now, which carries the pin of a server's tool."""
        tool = self._tools.get(spec.name) or self._internal.get(spec.name)
        if tool is None:
            if spec.name in self._left_out:
                raise ToolNotOffered(
                    f"{spec.name} does more than read, and this server is read-only.", "Go on without."
                )
            reason = next((reason for source in self._sources if (reason := source.why_withheld(spec.name))), None)
            raise ToolNotOffered(reason or f"{spec.name} is not there any more.", "Use another tool.")
        if tool.spec.source != spec.source:
            raise ToolNotOffered(f"{spec.name} is another tool now than this run was offered.", "Use another tool.")
        return tool

    def must_wait_for(self, globs: Sequence[str] | None) -> bool:
        """Return whether `wait_ready` would wait for any source."""
        return any(source.may_match(globs) for source in self._sources)

    def wait_ready(
        self,
        globs: Sequence[str] | None,
        named: Sequence[str] = (),
        *,
        soon_s: float = DEFAULT_WAIT_S,
        named_s: float = NAMED_WAIT_S,
    ) -> None:
        """Wait for the sources that the globs, or these names, may match. Blocks: call it in a worker thread.

        A source that is named, by a tool that is not known yet or by a glob that begins with the source's name, is
        waited for up to `named_s` or `soon_s`, whichever is longer, any other up to `soon_s`.
        """
        asked = (*named, *(globs or ()))
        unknown = tuple(name for name in asked if not _is_glob(name) and name not in self._tools)
        now = time.monotonic()
        waits = [
            (source, now + (max(named_s, soon_s) if _is_named(source, unknown, asked) else soon_s))
            for source in self._starting()
            if source.may_match(globs) or source.may_match(named)
        ]
        if len(waits) == 1:
            waits[0][0].wait_ready(waits[0][1])
        elif waits:
            with ThreadPoolExecutor(len(waits), "kairos-ready") as threads:
                list(threads.map(lambda wait: wait[0].wait_ready(wait[1]), waits))

    def try_sources(self, names: Sequence[str], within_s: float = DEFAULT_WAIT_S) -> None:
        """Start the sources of these tools where they were not started yet, so that it is known whether they can be.
        Blocks."""
        deadline = time.monotonic() + within_s
        parts = [part for part in self._starting() if part.may_match(names)]
        if parts:
            with ThreadPoolExecutor(len(parts), "kairos-ready") as threads:
                list(threads.map(lambda part: part.try_once(deadline), parts))

    def starting_sources(self, globs: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of sources that the globs may match and that are still being started."""
        return tuple(source.name for source in self._starting() if source.may_match(globs) and source.is_starting)

    def notes(self, globs: Sequence[str] | None) -> tuple[str, ...]:
        """Return the notes of the sources that the globs may match, and notes on names already in use."""
        found_notes = [note for part in self._parts() if part.may_match(globs) for note in part.notes()]
        return (*found_notes, *(self._current_tools().shadowed if globs != () else ()))

    def opening_notes(self, globs: Sequence[str] | None) -> tuple[str, ...]:
        """Return the notes for the beginning of a run: where it named no tools, only that there are some, since they
        would be read by a model that asked for no server. registry_search shows them."""
        if globs is not None:
            return self.notes(globs)
        count = len(self.notes(None))
        return (f"tools: registry_search has {count_of(count, 'note')} on servers and names in use.",) if count else ()

    def _parts(self) -> Iterable[ToolSource | StartingSource]:
        """Return the sources, and the servers of those that hold several."""
        parts: list[ToolSource | StartingSource] = [*self._sources, *self._starting()]
        return {id(part): part for part in parts}.values()  # a source may be its own server, and need not be hashable

    def select(self, globs: Sequence[str] | None) -> ToolSet:
        """Return the tools that a loop may use: those that match the globs; for None, all that only read and are not
        `named_only`.

        Raises UnknownTool for a glob that matches none, unless it may match tools of a source that is still starting.
        """
        for glob in globs or ():
            if not self._match_glob(glob) and not (_is_glob(glob) and self.starting_sources((glob,))):
                raise self.unknown_tool(glob)
        return self.select_available(globs)

    def select_available(self, globs: Sequence[str] | None) -> ToolSet:
        """Return what `select` would, without an error for globs that match nothing."""
        if globs is None:
            offered = [tool.spec for tool in self._tools.values() if not tool.named_only]
            return ToolSet([spec for spec in offered if spec.effect == "read"])
        names = {name for glob in globs for name in self._match_glob(glob)}
        return ToolSet([tool.spec for name, tool in self._tools.items() if name in names])

    def find_unmatched(self, globs: Sequence[str]) -> tuple[str, ...]:
        """Return the globs that match no tool, nor could match one of a source whose tools are not known yet; without
        those of tools that a read-only server leaves out."""
        unlisted = [part for part in self._starting() if not part.is_listed]
        return tuple(
            glob
            for glob in self.without_left_out(globs) or ()
            if not self._match_glob(glob) and not any(part.may_match((glob,)) for part in unlisted)
        )

    def search(
        self,
        query: str | None = None,
        names: Sequence[str] | None = None,
        category: str | None = None,
        cursor: str | None = None,
        limit: int = 20,
    ) -> SearchPage:
        """Find tools whose name or description has words of the query, best first; or return full specs by `names`.

        `cursor` is that of the previous page. Raises BadArguments for another cursor, UnknownTool for an unknown name.
        """
        if names:
            found: list[JsonObject] = []
            for name in dict.fromkeys(names):
                if (tool := self._tools.get(name)) is None:
                    raise self.unknown_tool(name)
                found.append(describe_tool(tool.spec, tool.examples, related_tools(tool.spec, self.specs)))
            return SearchPage(tuple(found), len(found), None, list_categories(self.specs))
        return search_page(self.specs, query, category, cursor, limit)

    def _match_glob(self, glob: str) -> list[str]:
        if glob in self._tools:
            return [glob]
        if len(glob) > GLOB_CHARS:
            return []
        return [name for name, tool in self._tools.items() if fnmatchcase(name, glob) and not tool.exact_only]

    def _starting(self) -> list[StartingSource]:
        return [part for source in self._sources for part in source.starting()]

    def unknown_tool(self, name: str) -> UnknownTool:
        """Return the error for a name or a glob that matches no tool, with the nearest names."""
        if self._match_left_out(name):
            what = f"{_quote_name(name)} does more than read, and this server is read-only."
            return UnknownTool(what, "registry_search lists what there is.")
        reason = next((reason for source in self._sources if (reason := source.why_withheld(name))), None)
        if reason is not None:
            return UnknownTool(reason, "Go on without it.")
        if found_notes := [note for part in self._parts() if part.may_match((name,)) for note in part.notes()]:
            why = " ".join(found_notes[:2])  # which says how to go on
            return UnknownTool(f"No tool matches {_quote_name(name)}. {why}", "registry_search lists what there is.")
        if ours := [tool for tool in _OF_HOSTS.get(name.casefold(), ()) if tool in self._tools]:
            return UnknownTool(f"No tool matches {_quote_name(name)}.", f"Here it is {' or '.join(ours)}.")
        near = ", ".join(nearest_names(name, list(self._tools))) or "none"
        hint = f"Nearest of {len(self._tools)}: {near}; registry_search lists all."
        return UnknownTool(f"No tool matches {_quote_name(name)}.", hint)


def _is_named(source: StartingSource, unknown: Sequence[str], asked: Sequence[str]) -> bool:
    globs = [glob for glob in asked if _is_glob(glob)]
    own = [glob for glob in globs if re.split(r"[*?[]", glob, maxsplit=1)[0].startswith(source.name)]
    return source.may_match((*unknown, *own))


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _quote_name(text: str) -> str:
    return repr(truncate(text, QUOTED_CHARS))
