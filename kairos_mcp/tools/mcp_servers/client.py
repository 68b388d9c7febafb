"""Talks to one downstream server across its restarts: connects when needed, and again with growing pauses.

Each call ends within its time, with a result or an error that says whether it may have been carried out. All of this
runs in the background loop.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from opentelemetry.context import attach
from pydantic import ValidationError

from kairos_mcp.core.effects import REPEATABLE_EFFECTS, Effect
from kairos_mcp.core.errors import KairosError, OutcomeUnknown, ToolNotOffered, Unreachable
from kairos_mcp.core.messages import JsonObject, ToolResult
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import FindParted, find_nothing_parted
from kairos_mcp.tools.commands.missing_files import MissedFile
from kairos_mcp.tools.mcp_servers.child import ChildStart
from kairos_mcp.tools.mcp_servers.connection import HttpAddress, InputRefused, ServerConnection, describe_failure
from kairos_mcp.tools.mcp_servers.definition import (
    OLDER_TRANSPORT,
    ServerListing,
    ServerToolDefinition,
    definition_changed,
    quote_server,
    read_listing,
)
from kairos_mcp.tools.mcp_servers.event_stream import EventStream
from kairos_mcp.tools.mcp_servers.flood_guard import REFUSED_METHODS, find_last_line
from kairos_mcp.tools.mcp_servers.message_repair import find_unreadable, has_answered, has_lost_session
from kairos_mcp.tools.mcp_servers.server_sandbox import ServerSandbox
from kairos_mcp.tools.mcp_servers.server_writes import ServerWrites
from kairos_mcp.tools.mcp_servers.tool_results import ServerResult, convert_answer

if TYPE_CHECKING:
    from opentelemetry.context import Context

_AS_OLDER = re.compile(r"\bHTTP 40[45]\b")
START_S = 60  # to start and list its tools; a first start by npx or uvx downloads
STABLE_S = 60  # a server that lived so long may die once without a pause before its restart
MAX_PAUSE_S = 60  # between two tries
UNCOVERED = "files that its sandbox has to cover were made or replaced"
LOST_ONE = "one of its processes was killed while it was paused"
NOT_POLLED = -32014  # of the extension for events: the kind is delivered in other ways alone
MAX_UNANSWERED = 2  # calls in a row without an answer, after which the server is restarted


@dataclass(frozen=True, slots=True)
class ServerToolCall:
    """One call of a tool.

    `deadline` (`time.monotonic()`) is when the caller stops waiting; `timeout_s` is the server's time, from when the
    call is sent. `mark` marks in the rows that the call leaves, where it has to; it blocks. `recheck` raises if the
    call may not be sent any more. `key`, `find_parted`: as those of the call's ToolContext. `trace`: the context of the
    call in its run's trace, sent to the server; None without telemetry.
    """

    definition: ServerToolDefinition
    arguments: JsonObject
    effect: Effect
    deadline: float
    timeout_s: float
    mark: Callable[[], None] | None
    recheck: Callable[[], None]
    key: str = ""
    trace: Context | None = None
    find_parted: FindParted = find_nothing_parted


class ServerClient:
    """The client of one server. `resolve_address` is called at each start, since a secret may have changed;
    `on_listing` whenever the server's tools were listed."""

    def __init__(
        self,
        name: str,
        globs: tuple[str, ...],
        resolve_address: Callable[[], ChildStart | HttpAddress],
        on_listing: Callable[[ServerListing], None],
        redact: Callable[[JsonObject], JsonObject] = lambda listed: listed,
        writes: ServerWrites | None = None,
    ) -> None:
        self.name = name
        self.listing: ServerListing | None = None
        self.problem: str | None = None
        self.missed: MissedFile | None = None  # in its sandbox, at the last start that failed
        self._globs = globs
        self._resolve_address = resolve_address
        self._on_listing = on_listing
        self._redact = redact
        self._writes = writes
        self._newest: ServerConnection | None = None  # open or not
        self._connection: ServerConnection | None = None
        self._serving: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[ServerConnection] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._connected_at = 0.0
        self._unanswered = 0
        self._active_calls = 0  # sent and not ended
        self._idle = asyncio.Event()
        self._use_legacy = False

    async def ensure_listed(self, deadline: float) -> None:
        """Connect if need be, and update the listing. Raises Unreachable, ConfigError."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._get_connection()
        except TimeoutError:
            failed = await self._find_failed_load()
            why = f": {failed}" if failed is not None else ""
            raise Unreachable(f"{self.name} is still starting{why}.", "Call again in a moment.") from None

    async def call(self, call: ServerToolCall) -> ServerResult:
        """Make a call.

        Raises Unreachable if nothing was sent, or the call may be repeated; ToolNotOffered if the server defines the
        tool otherwise now; OutcomeUnknown if the call was sent and its end is not known. Only a server that had all of
        `timeout_s` counts as silent, not one whose caller gave up earlier.
        """
        if call.trace is not None:
            attach(call.trace)  # of this task alone, which ends with the call; the SDK puts it into `_meta`
        answer_deadline: float | None = None  # set once the call is sent
        connection: ServerConnection | None = None
        try:
            async with asyncio.timeout_at(call.deadline) as limit:
                renewed = await self._close_if_unusable()
                connection = await self._get_connection()
                self._check_definition(call.definition)
                if call.mark is not None:
                    await asyncio.to_thread(call.mark)
                call.recheck()  # here in the loop: made in a thread, the check could be outdated on return
                refused_before, answer_deadline = connection.watch.refused.copy(), time.monotonic() + call.timeout_s
                limit.reschedule(min(call.deadline, answer_deadline))
                with self._counted_call(connection):
                    answer = await connection.call_tool(call.definition.name, call.arguments, call.recheck, call.key)
                    self._unanswered = 0
            result = convert_answer(answer, call.find_parted)
            result = self._add_refusals(result, connection.watch.refused - refused_before)
            return self._add_note(result, f"was restarted before this call: {renewed}") if renewed else result
        except TimeoutError:
            if answer_deadline is None:
                raise Unreachable(f"{self.name} is still starting.", "Call again in a moment.") from None
            if answer_deadline > call.deadline:
                raise self._no_answer_error(call, "had not answered when the caller's time was over") from None
            self._unanswered += 1
            if connection is not None:
                self._close_if_silent(connection)
            raise self._no_answer_error(call, "did not answer in time") from None
        except (MCPError, InputRefused, ValidationError, ConnectionError) as error:
            return ServerResult(await self._convert_failure(call, error, connection))

    async def poll_events(self, params: JsonObject, deadline: float) -> JsonObject | None:
        """Return what the server answers to events/poll; None where it can't be polled. Raises Unreachable where it
        gives none."""
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._get_connection()
                async with self._watch_writes():
                    with self._counted_call(connection):
                        return await connection.poll_events(params)
        except TimeoutError:
            why = "it did not answer in time"
        except (MCPError, ValidationError, ConnectionError) as error:
            if isinstance(error, MCPError) and error.code in (METHOD_NOT_FOUND, NOT_POLLED):
                return None
            why = describe_failure(error)
        raise Unreachable(f"{self.name} gave no events: {why}.", "It is asked again later.")

    async def stream_events(self, params: JsonObject, stream: EventStream) -> None:
        """Have the server tell a stream of events until that ends, for whatever reason."""
        try:
            if self._writes is None:  # else it is paused between its calls
                async with asyncio.timeout(START_S):
                    connection = await self._get_connection()
                await connection.stream_events(params, stream)
        except (KairosError, MCPError, ValidationError, ConnectionError, TimeoutError):
            pass
        finally:
            stream.has_ended = True

    @property
    def is_stale(self) -> bool:
        """Whether it is connected and has reported that its tools changed."""
        return self._connection is not None and self._connection.is_alive and self._connection.watch.tools_changed

    @property
    def is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._serving is None or self._serving.done():
            return
        with suppress(Unreachable):  # else the workspace is gone, and it ends without a word
            async with self._watch_writes():  # it ends in order, and so runs meanwhile
                await self._end_connection()
        await self._end_connection()

    async def _end_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=START_S)

    def _watch_writes(self) -> AbstractAsyncContextManager[None]:
        """Let a server that is paused between its calls run inside the block, and watch what it writes."""
        return self._writes.watch_outside_calls() if self._writes is not None else nullcontext()

    @property
    def covered_inodes(self) -> Mapping[str, int]:
        """Inodes of the protected paths that its process can't write in its sandbox, by plain path."""
        address = self._connection.address if self._connection is not None else None
        return address.sandbox.covered_inodes if isinstance(address, ChildStart) and address.sandbox is not None else {}

    @property
    def repairs(self) -> tuple[str, ...]:
        """What of its messages is repaired, as sentences without a subject."""
        return tuple(self._connection.repair.repairs) if self._connection is not None else ()

    def stderr(self) -> str:
        """Return the last of what the server wrote to stderr; all of it is for a person, never for a model."""
        return self._newest.watch.stderr.decode("utf-8", "replace") if self._newest is not None else ""

    async def _get_connection(self) -> ServerConnection:
        """Return the open connection; open it if need be. All who wait for it share one start."""
        while self._unanswered >= MAX_UNANSWERED and self._active_calls:
            await self._idle.wait()  # it will be restarted, once the calls under way have ended
        opening = self._opening
        if opening is None or opening.done():  # while it is opening it may be connected, but not listed yet
            if self._connection is not None and self._connection.is_alive:
                if self._connection.watch.tools_changed:
                    async with self._watch_writes():
                        await self._refresh_listing(self._connection)
                return self._connection
            opening = self._opening = asyncio.create_task(self._open_watched())
            opening.add_done_callback(_retrieve_exception)
        return await asyncio.shield(opening)  # a caller that gives up must not cancel the start for others

    async def _close_if_unusable(self) -> str | None:
        """End a server whose sandbox has lost a cover, or whose processes lost one, so that it is started anew.

        Returns why, or None. Waits for the calls under way. Raises CommandDenied.
        """
        connection = self._connection
        if connection is None or not connection.is_alive or not isinstance(connection.address, ChildStart):
            return None
        sandbox, processes = connection.address.sandbox, connection.address.processes
        why = LOST_ONE if processes is not None and processes.has_lost_one else None
        if sandbox is not None and await asyncio.to_thread(sandbox.has_lost_covers):
            why = UNCOVERED
        if why is None:
            return None
        while self._active_calls:
            await self._idle.wait()
        if self._connection is connection:  # else another call did so
            connection.close()
            if self._serving is not None:
                await asyncio.wait([self._serving], timeout=10)
            if self._connection is connection:
                self._connection = None  # no failure: it is started again without a pause
        return why

    async def _open_watched(self) -> ServerConnection:
        async with self._watch_writes():
            return await self._open()

    async def _open(self) -> ServerConnection:
        await self._record_lost_connection()
        now = time.monotonic()
        if now < self._retry_at:
            raise Unreachable(
                f"{self.name} is not there: {self.problem}.",
                f"It is tried again in {self._retry_at - now:.0f} s; go on without it.",
            )
        reason = await self._connect(legacy=self._use_legacy)
        if reason is not None and not self._use_legacy and self._newest is not None and self._newest.watch.died_unheard:
            # Perhaps of the first request, which is of the newer protocol: some servers expect `initialize` alone.
            reason = await self._connect(legacy=True)
            self._use_legacy = reason is None
        if self._connection is not None:
            self.problem = None
            return self._connection
        self._use_legacy = not self._use_legacy  # others are silent to it for ever
        raise self._record_failed_start(reason or "it ended")

    async def _connect(self, *, legacy: bool) -> str | None:
        """Connect and list its tools; return why that failed, or None. Raises KairosError."""
        connection = self._newest = ServerConnection(self._resolve_address(), legacy=legacy)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(connection.serve(opened))
        try:
            async with asyncio.timeout(START_S):
                await opened
                self._connection, self._serving, self._connected_at = connection, serving, time.monotonic()
                await self._refresh_listing(connection)
        except (Exception, asyncio.CancelledError) as error:
            self._connection = None
            connection.close()
            if opened.cancelled() or not opened.done():
                serving.cancel()  # it is still connecting, and does not wait for `close` yet
            await asyncio.wait([serving], timeout=10)
            if isinstance(error, asyncio.CancelledError | KairosError):
                raise
            answered = isinstance(error, TimeoutError | ValidationError)
            answered = answered or (isinstance(error, MCPError) and has_answered(error.error))
            reason = describe_failure(error) if answered else connection.watch.end_reason or describe_failure(error)
            reason = self.describe_end(connection, reason, is_start=True)
            missed = self.missed = await asyncio.to_thread(_find_missed_file, connection)
            causes = (reason, missed and missed.describe(), await self._find_failed_load())
            return "; ".join(cause for cause in causes if cause)
        else:
            return None

    async def _record_lost_connection(self) -> None:
        """Record how the last connection ended, if there was one, and set the pause before the next start."""
        if self._connection is None:
            return
        lost, self._connection = self._connection, None
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=10)
        self.problem = self.describe_end(lost, lost.watch.end_reason or "it ended")
        if time.monotonic() - self._connected_at >= STABLE_S:
            self._failures = 0
        self._failures += 1
        if self._failures > 1:
            self._retry_at = time.monotonic() + min(MAX_PAUSE_S, 2 ** (self._failures - 2))

    def describe_end(self, connection: ServerConnection, reason: str, *, is_start: bool = False) -> str:
        """Say why a connection ended or could not be opened, with what its program wrote last: that is mostly the
        cause. Secrets are taken out."""
        watch = connection.watch
        if (version := connection.repair.protocol_version) is not None and is_start:
            spoken = f"{HANDSHAKE_PROTOCOL_VERSIONS[0]} to {HANDSHAKE_PROTOCOL_VERSIONS[-1]}"
            return f"it answered with the protocol version {quote_server(version, 40)}; {spoken} are spoken here"
        parts = [reason]
        if is_start and watch.unreadable_line:
            parts.append(f"it printed to stdout what is not a message: {self._quote(watch.unreadable_line)}")
        if is_start and isinstance(connection.address, HttpAddress) and _AS_OLDER.search(reason):
            parts.append(OLDER_TRANSPORT)
        if line := find_last_line(watch.stderr.decode("utf-8", "replace")):
            parts.append(f"its last line on stderr: {self._quote(line)}")
        return "; ".join(parts)

    async def _find_failed_load(self) -> str | None:
        """Return why the loader of a server in a sandbox could not load it at its newest start, where that is known."""
        match self._newest:
            case ServerConnection(address=ChildStart(sandbox=ServerSandbox() as sandbox), began_at=began_at):
                return await asyncio.to_thread(sandbox.find_failed_load, began_at)
            case _:
                return None

    def _quote(self, line: str) -> str:
        return quote_server(str(self._redact({"line": line})["line"]))

    def _record_failed_start(self, reason: str) -> Unreachable:
        self.problem = reason
        pause = min(MAX_PAUSE_S, 2**self._failures)
        self._failures += 1
        self._retry_at = time.monotonic() + pause
        return Unreachable(
            f"{self.name} could not be started: {reason}.",
            f"It is tried again in {pause} s; go on without it. `kairos-mcp doctor` looks into it.",
        )

    async def _refresh_listing(self, connection: ServerConnection) -> None:
        listed = await connection.list_tools()
        self.listing = await asyncio.to_thread(
            read_listing,
            self.name,
            listed.tools,
            self._globs,
            problem=listed.problem,
            dropped=listed.dropped,
            redact=self._redact,
        )
        await asyncio.to_thread(self._on_listing, self.listing)

    def _check_definition(self, approved: ServerToolDefinition) -> None:
        current = self.listing.definitions.get(approved.name) if self.listing is not None else None
        if current is None:
            raise ToolNotOffered(
                f"{self.name} has no usable tool {quote_server(approved.name, 64)} any more.", "Use another."
            )
        if current.hash != approved.hash:
            raise definition_changed(self.name, approved.name)

    async def _convert_failure(
        self,
        call: ServerToolCall,
        error: MCPError | InputRefused | ValidationError | ConnectionError,
        connection: ServerConnection | None,
    ) -> ToolResult:
        """Convert a failed call: return the error that the server answered with, or raise if no answer came."""
        if not isinstance(error, ConnectionError):
            self._unanswered = 0  # the server answered something
        match error:
            case InputRefused():
                text = f"{self.name} did not finish: {error}. Try other arguments, or another tool."
            case ValidationError():
                text = f"{self.name} answered with something that is not a result; it may have done its work."
            case MCPError() if (why := find_unreadable(error.error)) is not None:
                text = f"{self.name} may have done its work, but its answer can't be read: {why}."
            case MCPError(code=code) if has_answered(error.error):
                is_http = connection is not None and isinstance(connection.address, HttpAddress)
                if connection is not None and is_http and has_lost_session(error.error):
                    connection.close()
                    text = f"{self.name} has lost its session, and carried out nothing: {quote_server(error.message)}."
                    raise Unreachable(text, "Call again: it gets a new one.") from None
                text = f"{self.name} answered with the error {code}: {quote_server(error.message)}"
            case _:
                if connection is None:
                    raise Unreachable(
                        f"{self.name} can't be reached: {describe_failure(error)}.", "Call again."
                    ) from None
                connection.close()
                if self._serving is not None:
                    await asyncio.wait([self._serving], timeout=10)
                ended = connection.watch.end_reason or describe_failure(error)
                if connection.is_unsent:
                    raise Unreachable(f"{self.name} can't be reached: {ended}.", "Call again.") from None
                raise self._no_answer_error(call, f"broke off: {self.describe_end(connection, ended)}") from None
        return ToolResult(text, is_error=True)

    @contextmanager
    def _counted_call(self, connection: ServerConnection) -> Iterator[None]:
        """Count a call as under way inside the block; afterwards restart a silent server if it was the last."""
        self._active_calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active_calls -= 1
            self._close_if_silent(connection)

    def _close_if_silent(self, connection: ServerConnection) -> None:
        """Close the connection to a server that was silent too often, unless another call is still under way."""
        if self._active_calls:
            return
        if self._unanswered >= MAX_UNANSWERED:
            connection.watch.record_end(f"it did not answer {MAX_UNANSWERED} calls in a row")
            connection.close()
            self._unanswered = 0
        self._idle.set()

    def _no_answer_error(self, call: ServerToolCall, failure: str) -> KairosError:
        name = quote_server(call.definition.name, 64)
        if call.effect in REPEATABLE_EFFECTS:
            return Unreachable(f"{self.name} {failure}, while it ran {name}.", "It may be called again.")
        return OutcomeUnknown(
            f"{self.name} {failure}, after {name} was sent: whether it was carried out is not known.",
            "Don't repeat it before you have looked whether it took effect.",
        )

    def _add_refusals(self, answer: ServerResult, refused: Counter[str]) -> ServerResult:
        """Add a note to the result if the server asked for something meanwhile, which was refused."""
        if not refused:
            return answer
        things = ", ".join(
            f"{REFUSED_METHODS[method]}{f' ({n} times)' * (n > 1)}" for method, n in sorted(refused.items())
        )
        return self._add_note(answer, f"asked for {things} meanwhile; refused")

    def _add_note(self, answer: ServerResult, note: str) -> ServerResult:
        content = f"{answer.result.content}\n[{self.name} {note}]"
        return replace(answer, result=replace(answer.result, content=content))


def _find_missed_file(connection: ServerConnection) -> MissedFile | None:
    """Return what a server in a sandbox missed there at its start; None: nothing that is known."""
    address = connection.address
    if not isinstance(address, ChildStart) or address.sandbox is None:
        return None
    return address.sandbox.find_missed_file(connection.watch.stderr.decode("utf-8", "replace"))


def _retrieve_exception(task: asyncio.Task[ServerConnection]) -> None:
    """Retrieve the exception even if all who waited gave up; asyncio would log it as never retrieved."""
    if not task.cancelled():
        task.exception()
