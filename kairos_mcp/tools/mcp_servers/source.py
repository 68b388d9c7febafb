"""A downstream server as a source of tools: what it defined is pinned, a call goes to it only as it was approved.

Reading its tools never starts it: those approved before are known from the store. It is started by the first call, or
by `ready` where it was never met.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kairos_mcp.core.errors import KairosError, OutcomeUnknown, ToolNotOffered, Unreachable
from kairos_mcp.core.messages import JsonObject, ToolResult, canonical_json
from kairos_mcp.settings.settings import ServerSetting
from kairos_mcp.store.tool_pins import FIRST_USE, DefinitionRow, DefinitionTable
from kairos_mcp.tools.commands.undo_writes import WHY, WriteWatch, failed_by
from kairos_mcp.tools.mcp_servers.definition import ServerListing, ServerToolDefinition, changed, offered_name, plain
from kairos_mcp.tools.mcp_servers.resources import ServerResources
from kairos_mcp.tools.tool import StopSignal, Tool, ToolContext

if TYPE_CHECKING:
    from kairos_mcp.tools.mcp_servers.answers import ServerResult
    from kairos_mcp.tools.mcp_servers.client import ServerCall, ServerClient

T = TypeVar("T")

LATER_S = 0.1  # the background loop ends a call at its deadline; it knows whether anything was sent
STARTING_S = 1.0  # a call has the server's time and this, so that the server has the whole of it
NAMED = 5


@dataclass(frozen=True, slots=True)
class _KnownTools:
    """What is offered now, and why the rest is not, by the name it would have."""

    tools: tuple[Tool, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)


class McpServerSource:
    """The tools of one configured server, for one workspace."""

    def __init__(self, setting: ServerSetting, workspace: Path | None, shared: ServerResources) -> None:
        self.name = setting.name
        self.version = 0
        self._setting = setting
        self._workspace = workspace
        self._shared = shared
        self._source = settled_source(setting, shared.definitions, shared.clock())
        self._lock = threading.Lock()
        self._rows: tuple[DefinitionRow, ...] | None = None
        self._listing: ServerListing | None = None
        self._known = _KnownTools()
        self._trouble: str | None = None
        self._first_use = False
        self._made: dict[tuple[str, str], Tool] = {}
        self._line: ServerClient | None = None
        self._take(shared.definitions.of(self._source), None)

    # -- as a source of the registry ---------------------------------------------------------------------------------

    def tools(self) -> tuple[Tool, ...]:
        """What is offered now; starts nothing."""
        return self._known.tools

    def why_withheld(self, name: str) -> str | None:
        """Why a tool of this source is not offered, if it would have this name."""
        return self._known.withheld.get(name)

    def may_match(self, globs: Iterable[str] | None) -> bool:
        """Whether the globs could name a tool of this server; None means those that only read."""
        if globs is None:
            return any(effect == "read" for _, effect in self._setting.effects)
        prefix = f"{self.name}__"
        return any(_could_begin(glob, prefix) for glob in globs)

    def starting(self) -> Sequence[McpServerSource]:
        return (self,)

    @property
    def is_starting(self) -> bool:
        """Whether it was never met, and is being started."""
        line = self._line
        return self._rows is None and line is not None and line.is_opening

    def wait_ready(self, until: float) -> None:
        """Know what can be offered: a server that was never met is started, one that lives is asked for changes.
        Blocks until `until` (`time.monotonic()`) at most; what goes wrong is among the notes. Never raises."""
        try:
            known = self._shared.definitions.of(self._source)
            self._take(known, self._listing)
            if known is None or (self._line is not None and self._line.stale):
                self._wait(lambda line: line.listed(until), until)
                self._trouble = None
        except KairosError as error:
            self._trouble = str(error)
        except (StillWaiting, CancelledError):
            self._trouble = f"{self.name} is still starting."

    def notes(self) -> tuple[str, ...]:
        """What of this server was left out, cut, taken on trust or is not there, in sentences."""
        rows = self._rows or ()
        told = [self._trouble] if self._trouble is not None else []
        if not told and self._line is not None and self._line.trouble is not None:
            told.append(f"{self.name} is not there: {self._line.trouble}.")
        if self._listing is not None:
            told += self._listing.notes
        if waiting := [plain(row.name, 64) for row in rows if row.state == "pending"]:
            more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
            told.append(
                f"{self.name}: {', '.join(waiting[:NAMED])}{more} new or changed since approved, or of another command "
                "line or address; a person has to approve (`kairos-mcp tools list`)."
            )
        if self._first_use:
            told.append(f"{self.name}: its tools were approved as it listed them now, at first use.")
        return tuple(told)

    def stderr(self) -> str:
        """The end of what the server wrote to its stderr; for a person, never for a model."""
        return self._line.stderr() if self._line is not None else ""

    def close(self) -> None:
        """End the server, if it lives; doesn't wait for it."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            self._shared.backstage.submit(line.close)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _run(self, definition: ServerToolDefinition, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        from kairos_mcp.tools.mcp_servers.answers import held_to
        from kairos_mcp.tools.mcp_servers.client import ServerCall

        definitions, key = self._shared.definitions, (definition.name, definition.hash)
        if not definitions.counts(self._source, *key):  # a person may have decided since it was offered
            self._take(definitions.of(self._source), self._listing)
            why = self.why_withheld(offered_name(self.name, definition.name))
            raise ToolNotOffered(why or f"{self.name} has no such tool any more.", "Go on without it.")
        effect = self._made[key].spec.effect
        still = ctx.recheck_for(effect)
        call = ServerCall(definition, arguments, effect, ctx.deadline, self._setting.timeout_s, still)
        with self._watching() as watch:
            try:
                result = held_to(
                    definition.output_schema, self._sent(call, ctx), offered_name(self.name, definition.name)
                )
            except KairosError as error:
                if undone := self._undone(watch, ctx):
                    raise type(error)(f"{error.message} {WHY} {' '.join(undone)}", error.hint) from None
                raise
            return failed_by(result, self._undone(watch, ctx))

    @contextmanager
    def _watching(self) -> Iterator[WriteWatch | None]:
        """What a server in a sandbox makes of instructions meanwhile; without one it does what it likes."""
        if self._workspace is None or not self._setting.command or not self._setting.sandbox:
            yield None
            return
        root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield WriteWatch.begun(root, self._shared.rules(self._workspace))
        finally:
            os.close(root)

    def _undone(self, watch: WriteWatch | None, ctx: ToolContext) -> list[str]:
        covered = self._line.covered if self._line is not None else {}
        return watch.undo(ctx.memory.keep, f"{ctx.path}/taken-out", covered) if watch is not None else []

    def _sent(self, call: ServerCall, ctx: ToolContext) -> ServerResult:
        try:
            return self._wait(lambda line: line.call(call), ctx.deadline, ctx.stop)
        except (StillWaiting, CancelledError):
            if call.effect in ("read", "idempotent"):
                raise Unreachable(f"The call to {self.name} was given up.", "It may be called again.") from None
            raise OutcomeUnknown(
                f"The call to {self.name} was given up: whether it was carried out is not known.",
                "Don't repeat it before you have looked whether it took effect.",
            ) from None

    def _wait(
        self, work: Callable[[ServerClient], Coroutine[Any, Any, T]], until: float, stop: StopSignal | None = None
    ) -> T:
        """Have it done in the background loop. Raises what it raises, StillWaiting, CancelledError."""
        line = self._lined()
        future = self._shared.backstage.submit(lambda: work(line))
        if stop is not None:
            stop.add_callback(lambda: _cancel(future))
        try:
            return future.result(max(0.0, until - time.monotonic()) + LATER_S)
        finally:
            future.cancel()

    def _lined(self) -> ServerClient:
        from kairos_mcp.tools.mcp_servers.client import ServerClient
        from kairos_mcp.tools.mcp_servers.launch import way_of

        with self._lock:
            if self._line is None:
                way = partial(way_of, self._setting, self._workspace, self._shared)
                self._line = ServerClient(self.name, self._setting.tools, way, self._meet, self._shared.hide)
                self._shared.backstage.at_close(self._line.close)
            return self._line

    # -- pins --------------------------------------------------------------------------------------------------------

    def _meet(self, listing: ServerListing) -> None:
        """Pin what the server lists now; called each time that it was asked."""
        definitions = self._shared.definitions
        is_new = definitions.of(self._source) is None
        found = {name: (each.hash, each.body) for name, each in listing.definitions.items()}
        known = definitions.meet(self._source, found, self._shared.clock())
        self._first_use = self._first_use or (is_new and any(row.by == FIRST_USE for row in known))
        self._trouble = None  # it is there, whoever gave up waiting for it
        self._take(known, listing)

    def _take(self, rows: tuple[DefinitionRow, ...] | None, listing: ServerListing | None) -> None:
        """What is offered, from what is pinned and what the server listed last, if it was asked."""
        with self._lock:
            if rows == self._rows and listing is self._listing:
                return
            self._rows, self._listing = rows, listing
            known = self._sorted(rows or (), listing)
            if known.tools != self._known.tools:
                self.version += 1
            self._known = known

    def _sorted(self, rows: Iterable[DefinitionRow], listing: ServerListing | None) -> _KnownTools:
        tools: dict[str, Tool] = {}
        withheld: dict[str, str] = {}
        for row in rows:
            offered = offered_name(self.name, row.name)
            now = listing.definitions.get(row.name) if listing is not None else None
            if not any(fnmatchcase(row.name, glob) for glob in self._setting.tools):
                continue
            if row.state == "pending":
                withheld.setdefault(offered, f"{offered} waits for a person's approval (`kairos-mcp tools list`).")
            elif row.state == "approved" and listing is not None and now is None:
                withheld[offered] = f"{self.name} does not list {offered} any more, or not as it may be used."
            elif row.state == "approved" and now is not None and now.hash != row.hash:
                withheld[offered] = changed(self.name, row.name).message
            elif row.state == "approved":
                tools[offered] = self._tool(ServerToolDefinition(row.name, row.body))
        for offered in tools:
            withheld.pop(offered, None)
        return _KnownTools(tuple(tools[offered] for offered in sorted(tools)), withheld)

    def _tool(self, definition: ServerToolDefinition) -> Tool:
        """The tool of a definition: made once, since its schema is compiled on it."""
        key = (definition.name, definition.hash)
        if key not in self._made:
            spec = definition.spec(self.name, self._setting.effects, self._source)
            self._made[key] = Tool(spec, partial(self._run, definition), self._setting.timeout_s + STARTING_S)
        return self._made[key]


def source_of(setting: ServerSetting) -> str:
    """The name under which a server's definitions are pinned: another command line, folder or address is another
    source, and so are other names of variables or headers. Their values are secrets that change."""
    variables, headers = sorted(name for name, _ in setting.env), sorted(name.lower() for name, _ in setting.headers)
    return _hashed(setting, [list(setting.command), setting.url, setting.cwd, variables, headers])


def settled_source(setting: ServerSetting, definitions: DefinitionTable, at: int) -> str:
    """The source that this server's definitions stand under in the store, which may be of before: without names of
    variables and headers."""
    earlier = _hashed(setting, [list(setting.command), setting.url, setting.cwd])
    return definitions.settle(source_of(setting), earlier, at)


def _hashed(setting: ServerSetting, reached: list[Any]) -> str:
    return f"{setting.name}@{sha256(canonical_json(reached).encode()).hexdigest()[:16]}"


def offered_as(row: DefinitionRow) -> str:
    """The name of the tool that a row defines, as it is offered."""
    return offered_name(row.source.partition("@")[0], row.name)


def _cancel(future: Future[Any]) -> None:
    future.cancel()


def _could_begin(glob: str, prefix: str) -> bool:
    """Whether the glob could match a name with this prefix, by what stands before its first wildcard."""
    fixed = re.split(r"[*?\[]", glob, maxsplit=1)[0]
    return fixed.startswith(prefix) or (prefix.startswith(fixed) and fixed != glob)
