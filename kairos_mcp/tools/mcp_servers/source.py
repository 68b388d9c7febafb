"""A downstream server as a source of tools. Its definitions are pinned; a call is sent only to an approved definition.

Looking up its tools never starts the server: those approved before are known from the store. The first call starts it,
or `wait_ready` if its tools are not known yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import ExitStack
from dataclasses import field, replace
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kairos_mcp.core.effects import REPEATABLE_EFFECTS
from kairos_mcp.core.errors import KairosError, OutcomeUnknown, ToolNotOffered, Unreachable
from kairos_mcp.core.messages import JsonObject, ToolResult, canonical_json
from kairos_mcp.core.patterns import may_match_prefix
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import StopSignal, Tool, ToolContext
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.store.tool_pins import FIRST_USE, DefinitionRow
from kairos_mcp.tools.commands.undo_writes import UNDONE_REASON, UndoneWrites, mark_failed
from kairos_mcp.tools.departure import mark_departure
from kairos_mcp.tools.mcp_servers.definition import (
    ServerListing,
    ServerToolDefinition,
    definition_changed,
    offered_name,
    quote_server,
)
from kairos_mcp.tools.mcp_servers.resources import ServerResources
from kairos_mcp.tools.mcp_servers.server_writes import ServerWrites

if TYPE_CHECKING:
    from kairos_mcp.tools.mcp_servers.client import ServerClient, ServerToolCall
    from kairos_mcp.tools.mcp_servers.event_stream import EventStream
    from kairos_mcp.tools.mcp_servers.tool_results import ServerResult

T = TypeVar("T")

# The background loop ends a call at its deadline, and knows whether it was sent: wait for it a little longer.
RESULT_GRACE_S = 0.1
# Added to a call's time limit for starting the server, so that it has all of `timeout_s` for the call.
START_GRACE_S = 1.0
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class _KnownTools:
    """What is offered now; and for each tool that is not, by the name that it would have, why."""

    tools: tuple[Tool, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerTrial:
    """How a start of a server went: `problem` None if it listed its `tools`. `stderr`: the last of what it wrote, for a
    person, never for a model. `opens`: the line of the settings file that shows what it missed in its sandbox.
    `notes`: what of its list is not as it should be."""

    name: str
    problem: str | None
    tools: int
    stderr: str
    opens: str | None = None
    notes: tuple[str, ...] = ()


class McpServerSource:
    """The tools of one configured server, for one workspace."""

    def __init__(self, setting: ServerSetting, workspace: Path | None, resources: ServerResources) -> None:
        self.name = setting.name
        self.version = 0
        self._setting = setting
        self._workspace = workspace
        self._resources = resources
        self._pin_source = pin_source(setting)
        self._lock = threading.Lock()
        self._rows: tuple[DefinitionRow, ...] | None = None
        self._listing: ServerListing | None = None
        self._known = _KnownTools()
        self._problem: str | None = None
        self._first_use = False
        self._built_tools: dict[tuple[str, str], Tool] = {}
        self._client: ServerClient | None = None
        self._writes: ServerWrites | None = None  # of a server without a sandbox nothing is watched: it may write all
        if workspace is not None and setting.command and setting.sandbox:
            self._writes = ServerWrites(workspace, lambda: resources.limits(workspace), self._covered_inodes)
        self._on_listing: Callable[[ServerListing], None] = self._pin_listing
        self._set_tools(resources.definitions.read_source(self._pin_source), None)

    # -- as a source of the registry ---------------------------------------------------------------------------------

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools that are offered now; starts nothing."""
        return self._known.tools

    def why_withheld(self, name: str) -> str | None:
        """Return why a tool of this name is not offered, if this source has one."""
        return self._known.withheld.get(name)

    def may_match(self, globs: Iterable[str] | None) -> bool:
        """Return whether the globs could match a tool of this server; None stands for all tools that only read."""
        if globs is None:
            return any(effect == "read" for _, effect in self._setting.effects)
        prefix = f"{self.name}__"
        return any(may_match_prefix(glob, prefix) for glob in globs)

    def starting(self) -> Sequence[McpServerSource]:
        return (self,)

    @property
    def is_listed(self) -> bool:
        return self._rows is not None

    @property
    def is_starting(self) -> bool:
        """Whether it is being started for the first time, so that its tools are not known yet."""
        client = self._client
        return self._rows is None and client is not None and client.is_opening

    def wait_ready(self, deadline: float) -> None:
        """Find out what can be offered: start a server whose tools are not known, ask a running one for changes.

        Blocks until `deadline` (`time.monotonic()`) at most. Never raises; failures appear in the notes.
        """
        self._update(deadline, lambda known, client: known is None or (client is not None and client.is_stale))

    def try_once(self, deadline: float) -> None:
        """Start it if it was not started here, so that it is known whether its tools can be called."""
        self._update(deadline, lambda _, client: client is None)

    def _update(self, deadline: float, is_needed: Callable[[object, ServerClient | None], bool]) -> None:
        try:
            known = self._resources.definitions.read_source(self._pin_source)
            self._set_tools(known, self._listing)
            if is_needed(known, self._client):
                self._run_in_loop(lambda client: client.ensure_listed(deadline), deadline)
                self._problem = None
        except KairosError as error:
            self._problem = str(error)
        except (StillWaiting, CancelledError):
            self._problem = f"{self.name} is still starting."

    def notes(self) -> tuple[str, ...]:
        """Return sentences on what was left out, cut, trusted at first use, or is missing."""
        rows = self._rows or ()
        notes = [self._problem] if self._problem is not None else []
        if not notes and self._client is not None and self._client.problem is not None:
            notes.append(f"{self.name} is not there: {self._client.problem}.")
        if self._listing is not None:
            notes += self._listing.notes
        if self._client is not None and (repairs := self._client.repairs):
            notes.append(f"{self.name} is not quite as the protocol has it: {'; '.join(repairs)}.")
        if pending := [quote_server(row.name, 64) for row in rows if row.state == "pending"]:
            more = f" and {len(pending) - MAX_NAMED} more" if len(pending) > MAX_NAMED else ""
            notes.append(
                f"{self.name}: a person has to approve {', '.join(pending[:MAX_NAMED])}{more}, since they, or the "
                "server's command line or address, are new or have changed (`kairos-mcp tools list`)."
            )
        if self._writes is not None and (undone := self._writes.notes):
            notes.append(f"{self.name} wrote outside of calls. {UNDONE_REASON} {' '.join(undone)}")
        if self._first_use:
            notes.append(f"{self.name}: its tools were approved on first use; you will be asked about later changes.")
        return tuple(notes)

    def try_start(self, deadline: float) -> ServerTrial:
        """Start the server once more, list its tools, and end it. Nothing is pinned, and nothing of it is offered."""
        trial = McpServerSource(self._setting, self._workspace, self._resources)
        trial._on_listing = lambda listing: None
        problem: str | None = None
        try:
            trial._run_in_loop(lambda client: client.ensure_listed(deadline), deadline)
        except KairosError as error:
            problem = error.message
        except (StillWaiting, CancelledError):
            problem = f"{self.name} did not answer in time."
        listing = trial._client.listing if trial._client is not None else None
        stderr, missed = trial.stderr(), trial._client.missed if trial._client is not None else None
        trial.close()
        opens = None if missed is None else missed.line
        if listing is None:
            return ServerTrial(self.name, problem, 0, stderr, opens)
        return ServerTrial(self.name, problem, len(listing.definitions), stderr, opens, listing.notes)

    def stderr(self) -> str:
        """Return the last of what the server wrote to stderr; for a person, never for a model."""
        return self._client.stderr() if self._client is not None else ""

    def close(self) -> None:
        """End the server if it runs, without waiting for its end."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            self._resources.loop.submit(client.close)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _run(self, definition: ServerToolDefinition, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        from kairos_mcp.tools.mcp_servers.client import ServerToolCall
        from kairos_mcp.tools.mcp_servers.tool_results import check_output_schema

        definitions, key = self._resources.definitions, (definition.name, definition.hash)
        if not definitions.is_approved(self._pin_source, *key):  # a person may have removed it since it was offered
            self._set_tools(definitions.read_source(self._pin_source), self._listing)
            reason = self.why_withheld(offered_name(self.name, definition.name))
            raise ToolNotOffered(reason or f"{self.name} has no such tool any more.", "Go on without it.")
        effect = self._built_tools[key].spec.effect
        call = ServerToolCall(
            definition,
            arguments,
            effect,
            ctx.deadline,
            self._setting.timeout_s,
            partial(mark_departure, ctx) if ctx.is_marked else None,
            ctx.recheck_for(effect),
            ctx.key,
            find_parted=ctx.find_parted,
        )
        if self._resources.trace_of is not None:
            call = replace(call, trace=self._resources.trace_of(ctx.run_id, ctx.path))
        undone = UndoneWrites()
        try:
            with ExitStack() as stack:
                if self._writes is not None:
                    watch = self._writes.watch_call(ctx.memory.keep_taken, f"{ctx.path}/taken-out")
                    undone = stack.enter_context(watch)
                result = check_output_schema(
                    definition.output_schema, self._send(call, ctx), offered_name(self.name, definition.name)
                )
        except KairosError as error:
            if undone.changes:
                text = f"{error.message} {UNDONE_REASON} {' '.join(undone.changes)}"
                raise type(error)(text, error.hint) from None
            raise
        return mark_failed(result, undone)

    def poll_events(self, params: JsonObject, deadline: float) -> JsonObject | None:
        """Return what the server answers to events/poll; blocks. None where it can't be polled. Raises Unreachable,
        ConfigError."""
        try:
            return self._run_in_loop(lambda client: client.poll_events(params, deadline), deadline)
        except (StillWaiting, CancelledError):
            raise Unreachable(f"{self.name} did not answer in time.", "It is asked again later.") from None

    def stream_events(self, params: JsonObject, stream: EventStream) -> None:
        """Begin to have the server tell a stream of events. Raises Unreachable once we are closing."""
        client = self._get_client()
        stream.holding = self._resources.loop.submit(lambda: client.stream_events(params, stream))

    def _covered_inodes(self) -> Mapping[str, int]:
        return self._client.covered_inodes if self._client is not None else {}

    def _send(self, call: ServerToolCall, ctx: ToolContext) -> ServerResult:
        try:
            return self._run_in_loop(lambda client: client.call(call), ctx.deadline, ctx.stop)
        except (StillWaiting, CancelledError):
            if call.effect in REPEATABLE_EFFECTS:
                raise Unreachable(f"The call to {self.name} was given up.", "It may be called again.") from None
            raise OutcomeUnknown(
                f"The call to {self.name} was given up: whether it was carried out is not known.",
                "Don't repeat it before you have looked whether it took effect.",
            ) from None

    def _run_in_loop(
        self, work: Callable[[ServerClient], Coroutine[Any, Any, T]], deadline: float, stop: StopSignal | None = None
    ) -> T:
        """Run a coroutine in the background loop and wait. Raises what it raises, or StillWaiting, CancelledError."""
        client = self._get_client()
        future = self._resources.loop.submit(lambda: work(client))
        if stop is not None:
            stop.add_callback(future.cancel)
        try:
            return future.result(max(0.0, deadline - time.monotonic()) + RESULT_GRACE_S)
        finally:
            future.cancel()

    def _get_client(self) -> ServerClient:
        from kairos_mcp.tools.mcp_servers.client import ServerClient
        from kairos_mcp.tools.mcp_servers.launch import resolve_address

        with self._lock:
            if self._client is None:
                resolve = partial(
                    resolve_address,
                    self._setting,
                    self._workspace,
                    self._resources,
                    pin_source(self._setting),
                    self._writes.processes if self._writes is not None else None,
                )
                self._client = ServerClient(
                    self.name, self._setting.tools, resolve, self._on_listing, self._resources.redact, self._writes
                )
                self._resources.loop.add_closer(self._client.close)
            return self._client

    # -- pins --------------------------------------------------------------------------------------------------------

    def _pin_listing(self, listing: ServerListing) -> None:
        """Pin what the server lists now; called after each listing."""
        definitions = self._resources.definitions
        is_new = definitions.read_source(self._pin_source) is None
        found = {name: (definition.hash, definition.body) for name, definition in listing.definitions.items()}
        known = definitions.record_listing(self._pin_source, found, self._resources.clock())
        self._first_use = self._first_use or (is_new and any(row.by == FIRST_USE for row in known))
        self._problem = None  # it has started, even if a caller gave up waiting for it
        self._set_tools(known, listing)

    def _set_tools(self, rows: tuple[DefinitionRow, ...] | None, listing: ServerListing | None) -> None:
        """Work out what is offered, from what is pinned and what the server listed last, if it was asked."""
        with self._lock:
            if rows == self._rows and listing is self._listing:
                return
            self._rows, self._listing = rows, listing
            known = self._sort_tools(rows or (), listing)
            if known.tools != self._known.tools:
                self.version += 1
            self._known = known

    def _sort_tools(self, rows: Iterable[DefinitionRow], listing: ServerListing | None) -> _KnownTools:
        tools: dict[str, Tool] = {}
        withheld: dict[str, str] = {}
        for row in rows:
            name = offered_name(self.name, row.name)
            current = listing.definitions.get(row.name) if listing is not None else None
            if not any(fnmatchcase(row.name, glob) for glob in self._setting.tools):
                continue
            if row.state == "pending":
                withheld.setdefault(name, f"{name} waits for a person's approval (`kairos-mcp tools list`).")
            elif row.state == "approved" and listing is not None and current is None:
                withheld[name] = f"{self.name} does not list {name} any more, or not as it may be used."
            elif row.state == "approved" and current is not None and current.hash != row.hash:
                withheld[name] = definition_changed(self.name, row.name).message
            elif row.state == "approved":
                tools[name] = self._build_tool(ServerToolDefinition(row.name, row.body))
        for name in tools:
            withheld.pop(name, None)
        return _KnownTools(tuple(tools[name] for name in sorted(tools)), withheld)

    def _build_tool(self, definition: ServerToolDefinition) -> Tool:
        """Return the tool of a definition; made once, since its compiled schema is cached on it."""
        key = (definition.name, definition.hash)
        if key not in self._built_tools:
            spec = definition.build_spec(self._setting, self._pin_source)
            self._built_tools[key] = Tool(
                spec,
                partial(self._run, definition),
                self._setting.timeout_s + START_GRACE_S,
                marks_itself=True,
                key_life_s=self._setting.key_life_s,
            )
        return self._built_tools[key]


def pin_source(setting: ServerSetting) -> str:
    """Return the name under which a server's definitions are pinned.

    A changed command line, folder or address makes another source, and so do other names of variables or headers. The
    values of these don't count: they are secrets, and change.
    """
    variables, headers = sorted(name for name, _ in setting.env), sorted(name.lower() for name, _ in setting.headers)
    parts = [list(setting.command), setting.url, setting.cwd, variables, headers]
    return f"{setting.name}@{sha256(canonical_json(parts).encode()).hexdigest()[:16]}"


def offered_name_of(row: DefinitionRow) -> str:
    """Return the name under which the tool of a row is offered."""
    return offered_name(row.source.partition("@")[0], row.name)
