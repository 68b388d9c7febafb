"""The tools there are: where they come from, how they are found and chosen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Protocol

from kairos_mcp.core.errors import ConfigError, ToolNotOffered, UnknownTool
from kairos_mcp.core.messages import ToolSet, ToolSpec
from kairos_mcp.tools.searching import SearchPage, categories, page, related, whole
from kairos_mcp.tools.tool import Tool

GLOB_CHARS = 256  # a caller's glob over names of at most 64 characters
READY_S = 30  # a host gives up on a call after about 60
SHOWN_NAMES = 20
SAID_CHARS = 120  # how much of a caller's own words an error repeats


class Source(Protocol):
    """Tools that may come and go while the house is open, as those of a server of others or of installed packages.

    All but `ready` is quick and may be asked in the event loop.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """Another number whenever `tools` would give another answer."""

    def tools(self) -> tuple[Tool, ...]:
        """What is offered now, in a fixed order."""

    def withheld(self, name: str) -> str | None:
        """Why a tool of this name is not offered, if that is known."""

    def may_have(self, globs: Sequence[str] | None) -> bool:
        """Whether the globs could name a tool of this source; None: those that only read."""

    def ready(self, until: float) -> None:
        """Know what there is; blocks until `until` (`time.monotonic()`) at most, and never raises."""

    def notes(self) -> tuple[str, ...]:
        """What was left out, cut, taken on trust or is not there, in sentences."""


class Registry:
    """Tools by name: those of the house in the order given, then those of each source in its order.

    A source never takes a name that stands before it. Reading starts nothing; `ready` does.
    """

    def __init__(self, tools: Iterable[Tool], sources: Sequence[Source] = ()) -> None:
        self._own: dict[str, Tool] = {}
        self._internal: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._own or tool.spec.name in self._internal:
                raise ConfigError(f"Two tools are called {tool.spec.name!r}.", "Rename or remove one.")
            (self._internal if tool.internal else self._own)[tool.spec.name] = tool
        self._sources = tuple(sources)
        self._known = self._own
        self._origins: dict[str, str] = {}
        self._gone: dict[str, Tool] = {}
        self._shadowed: tuple[str, ...] = ()
        self._versions: tuple[int, ...] = ()

    @property
    def _tools(self) -> dict[str, Tool]:
        """All tools; put together anew only where a source has changed."""
        versions = tuple(source.version for source in self._sources)
        if versions != self._versions:
            known, shadowed, origins = dict(self._own), [], {}
            for source in self._sources:
                for tool in source.tools():
                    if tool.spec.name in self._internal or known.setdefault(tool.spec.name, tool) is not tool:
                        shadowed.append(f"{source.name}: {tool.spec.name} is left out, since there is another.")
                    else:
                        origins[tool.spec.name] = source.name
            self._gone |= self._known
            self._known, self._shadowed, self._origins = known, tuple(shadowed), origins
            self._versions = versions
        return self._known

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a rule may mean: of the tools that are offered, of those that flows of ours call, of those
        that went."""
        return (*self._tools, *self._internal, *self._gone)

    @property
    def unmet(self) -> tuple[str, ...]:
        """What the names of tools begin with that are not known yet, since their source was never asked."""
        return tuple(source.name for source in self._sources if not source.tools() and source.may_have(("*",)))

    def specs_beside(self, source: str) -> tuple[ToolSpec, ...]:
        """All tools but those of the source of this name."""
        return tuple(tool.spec for name, tool in self._tools.items() if self._origins.get(name) != source)

    def find(self, name: str) -> Tool | None:
        """The tool of this name; also one that was there before, so that a call which was begun for it is answered
        with the reason that its `run` gives."""
        return self._tools.get(name) or self._internal.get(name) or self._gone.get(name)

    def knows(self, name: str) -> bool:
        """Whether a run with this tool can go on here: it is there, or it is known why it is not."""
        return self.find(name) is not None or any(source.withheld(name) for source in self._sources)

    def current(self, spec: ToolSpec) -> Tool:
        """The tool that a run was offered as `spec`. Raises ToolNotOffered where it is gone, waits for approval, or
        has another pin now."""
        tool = self._tools.get(spec.name) or self._internal.get(spec.name)
        if tool is None:
            why = next((why for source in self._sources if (why := source.withheld(spec.name))), None)
            raise ToolNotOffered(why or f"{spec.name} is not there any more.", "Use another tool.")
        if tool.spec.source != spec.source:
            raise ToolNotOffered(f"{spec.name} is another tool now than this run was offered.", "Use another tool.")
        return tool

    def waits_for(self, globs: Sequence[str] | None) -> bool:
        """Whether `ready` would ask anybody."""
        return any(source.may_have(globs) for source in self._sources)

    def ready(self, globs: Sequence[str] | None, within_s: float = READY_S) -> None:
        """Let the sources that the globs may name find out what they have. Blocks: call it in a worker thread."""
        asked = [source for source in self._sources if source.may_have(globs)]
        until = time.monotonic() + within_s
        if len(asked) == 1:
            asked[0].ready(until)
        elif asked:
            with ThreadPoolExecutor(len(asked), "kairos-ready") as threads:
                list(threads.map(lambda source: source.ready(until), asked))

    def notes(self, globs: Sequence[str] | None) -> tuple[str, ...]:
        """What the sources that the globs may name have to say, and names that were taken."""
        told = [note for source in self._sources if source.may_have(globs) for note in source.notes()]
        return (*told, *(self._shadowed if self._tools and globs != () else ()))

    def select(self, globs: Sequence[str] | None) -> ToolSet:
        """The tools that a loop may use: those that the globs name; None: all that only read, but those that are of no
        use without one that does more."""
        if globs is None:
            by_default = [tool.spec for tool in self._tools.values() if not tool.named_only]
            return ToolSet([spec for spec in by_default if spec.effect == "read"])
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
        if names:
            found = [self._named(name) for name in dict.fromkeys(names)]
            told = tuple(whole(tool.spec, tool.examples, related(tool.spec, self.specs)) for tool in found)
            return SearchPage(told, len(found), None, categories(self.specs))
        return page(self.specs, query, category, cursor, limit)

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
        why = next((why for source in self._sources if (why := source.withheld(name))), None)
        if why is not None:
            return UnknownTool(why, "Go on without it.")
        if told := [note for source in self._sources if source.may_have((name,)) for note in source.notes()]:
            return UnknownTool(f"No tool matches {_said(name)}. {' '.join(told[:2])}", "Go on without it.")
        near = get_close_matches(name[:GLOB_CHARS], list(self._tools), n=3, cutoff=0.5)
        names = ", ".join(near or list(self._tools)[:SHOWN_NAMES]) or "none"
        return UnknownTool(
            f"No tool matches {_said(name)}.",
            f"Near: {names}." if near else f"There are {len(self._tools)}: {names}; registry_search lists them.",
        )


def _said(text: str) -> str:
    return repr(text if len(text) <= SAID_CHARS else text[:SAID_CHARS] + "…")
