"""The line to one downstream server over its deaths: opened when needed, and again with pauses that grow.

Each call is bounded, and what happened to it is told. It lives in the background loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST
from pydantic import ValidationError

from kairos_mcp.core.errors import KairosError, OutcomeUnknown, ToolNotOffered, Unreachable
from kairos_mcp.core.messages import Effect, JsonObject, ToolResult
from kairos_mcp.tools.mcp_servers.answers import ServerResult, answered
from kairos_mcp.tools.mcp_servers.child import ChildStart
from kairos_mcp.tools.mcp_servers.connection import HttpAddress, ServerConnection, ServerRequest, reason
from kairos_mcp.tools.mcp_servers.definition import ServerListing, ServerToolDefinition, changed, listing, plain
from kairos_mcp.tools.mcp_servers.flood_guard import REFUSED, ConnectionWatch

START_S = 60  # to start and be listed; a first start by npx or uvx downloads
STEADY_S = 60  # a server that lived so long may die once without a pause
PAUSE_S = 60  # the longest between two tries
SILENT = 2  # calls in a row without an answer, and it is started anew


@dataclass(frozen=True, slots=True)
class ServerCall:
    """What is to be called, and until when its caller waits (`time.monotonic()`); `timeout_s`: how long the server may
    take from when it was sent; `still` raises where it may not be sent any more."""

    definition: ServerToolDefinition
    arguments: JsonObject
    effect: Effect
    until: float
    timeout_s: float
    still: Callable[[], None]


class ServerClient:
    """One server's connection. `way` is asked anew at each start, since a secret may have changed."""

    def __init__(
        self,
        name: str,
        globs: tuple[str, ...],
        way: Callable[[], ChildStart | HttpAddress],
        met: Callable[[ServerListing], None],
        hide: Callable[[JsonObject], JsonObject] = lambda each: each,
    ) -> None:
        self.name = name
        self.listing: ServerListing | None = None
        self.trouble: str | None = None
        self._globs = globs
        self._way = way
        self._met = met
        self._hide = hide
        self._watch = ConnectionWatch()
        self._link: ServerConnection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[ServerConnection] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._since = 0.0
        self._silent = 0
        self._calls = 0  # sent and not ended
        self._idle = asyncio.Event()
        self._legacy = False

    async def listed(self, until: float) -> None:
        """Be connected, and know what the server lists now. Raises Unreachable, ConfigError."""
        try:
            async with asyncio.timeout_at(until):
                await self._connected()
        except TimeoutError:
            raise Unreachable(f"{self.name} is still starting.", "Call again in a moment.") from None

    async def call(self, wanted: ServerCall) -> ServerResult:
        """Make the call. Raises Unreachable where nothing was sent, ToolNotOffered where the server defines this tool
        otherwise now, OutcomeUnknown where it was sent and no end was heard.

        Only a server that had the whole of `timeout_s` was silent; where its caller gave up before, nothing is known.
        """
        allowed: float | None = None  # until when the server may answer, once the call is sent
        link: ServerConnection | None = None
        try:
            async with asyncio.timeout_at(wanted.until) as limit:
                link = await self._connected()
                self._check(wanted.definition)
                wanted.still()  # in the loop: its answer would be old by the time that a thread has brought it
                before, allowed = link.watch.asked.copy(), time.monotonic() + wanted.timeout_s
                limit.reschedule(min(wanted.until, allowed))
                with self._under_way(link):
                    answer = await link.call(wanted.definition.name, wanted.arguments, wanted.still)
                    self._silent = 0
            return self._told(answered(answer), link.watch.asked - before)
        except TimeoutError:
            if allowed is None:
                raise Unreachable(f"{self.name} is still starting.", "Call again in a moment.") from None
            if allowed > wanted.until:
                raise self._unheard(wanted, "had not answered when the caller's time was over") from None
            self._was_silent(link)
            raise self._unheard(wanted, "did not answer in time") from None
        except (MCPError, ServerRequest, ValidationError, ConnectionError) as error:
            return ServerResult(await self._failed(wanted, error, link))

    @property
    def stale(self) -> bool:
        """Whether it lives and has said that its tools changed."""
        return self._link is not None and self._link.alive and self._link.watch.changed

    @property
    def is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close()
        if self._keeper is not None:
            await asyncio.wait([self._keeper], timeout=START_S)

    @property
    def covered(self) -> Mapping[str, int]:
        """What of the workspace its process can't write, as its sandbox was built: inodes by plain path."""
        way = self._link.way if self._link is not None else None
        return way.enclosure.covered if isinstance(way, ChildStart) and way.enclosure is not None else {}

    def stderr(self) -> str:
        """The end of what the server wrote to its stderr; for a person, never for a model."""
        return self._watch.stderr.decode("utf-8", "replace")

    async def _connected(self) -> ServerConnection:
        """The living connection, opened if need be; all who wait for it wait for one start."""
        while self._silent >= SILENT and self._calls:
            await self._idle.wait()  # it is to be started anew, and others still wait for what it has begun
        opening = self._opening
        if opening is None or opening.done():  # until then it may be connected, but what it lists is not known yet
            if self._link is not None and self._link.alive:
                if self._link.watch.changed:
                    await self._list(self._link)
                return self._link
            opening = self._opening = asyncio.create_task(self._open())
            opening.add_done_callback(_heard)
        return await asyncio.shield(opening)  # one who gives up waiting leaves the start to the others

    async def _open(self) -> ServerConnection:
        await self._after_death()
        now = time.monotonic()
        if now < self._not_before:
            raise Unreachable(
                f"{self.name} is not there: {self.trouble}.",
                f"It is tried again in {self._not_before - now:.0f} s; go on without it.",
            )
        link = ServerConnection(self._way(), legacy=self._legacy)
        self._watch = link.watch
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        keeper = asyncio.create_task(link.serve(opened))
        try:
            async with asyncio.timeout(START_S):
                await opened
                self._link, self._keeper, self._since = link, keeper, time.monotonic()
                await self._list(link)
        except (Exception, asyncio.CancelledError) as error:
            self._link = None
            link.close()
            if opened.cancelled() or not opened.done():
                keeper.cancel()  # it is still on its way, and listens to nothing
            await asyncio.wait([keeper], timeout=10)
            if isinstance(error, asyncio.CancelledError | KairosError):
                raise
            why = "it did not answer in time" if isinstance(error, TimeoutError) else reason(error)
            self._legacy = not self._legacy  # some die of a question in the newer protocol
            raise self._pausing(link.watch.why or why) from None
        self.trouble = None
        return link

    async def _after_death(self) -> None:
        """Take note of how the last connection ended, if it did by itself."""
        if self._link is None:
            return
        link, self._link = self._link, None
        if self._keeper is not None:
            await asyncio.wait([self._keeper], timeout=10)
        self.trouble = link.watch.why or "it ended"
        if time.monotonic() - self._since >= STEADY_S:
            self._failures = 0
        self._failures += 1
        if self._failures > 1:
            self._not_before = time.monotonic() + min(PAUSE_S, 2 ** (self._failures - 2))

    def _pausing(self, why: str) -> Unreachable:
        self.trouble = why
        pause = min(PAUSE_S, 2**self._failures)
        self._failures += 1
        self._not_before = time.monotonic() + pause
        return Unreachable(
            f"{self.name} could not be started: {why}.",
            f"It is tried again in {pause} s; go on without it. `kairos-mcp doctor` looks into it.",
        )

    async def _list(self, link: ServerConnection) -> None:
        listed, more = await link.listed()
        self.listing = await asyncio.to_thread(listing, self.name, listed, self._globs, more=more, hide=self._hide)
        await asyncio.to_thread(self._met, self.listing)

    def _check(self, wanted: ServerToolDefinition) -> None:
        now = self.listing.definitions.get(wanted.name) if self.listing is not None else None
        if now is None:
            raise ToolNotOffered(f"{self.name} has no usable tool {plain(wanted.name, 64)} any more.", "Use another.")
        if now.hash != wanted.hash:
            raise changed(self.name, wanted.name)

    async def _failed(
        self,
        wanted: ServerCall,
        error: MCPError | ServerRequest | ValidationError | ConnectionError,
        link: ServerConnection | None,
    ) -> ToolResult:
        """What a call that ended without a result is: an answer of the server, or an end that nobody heard."""
        if not isinstance(error, ConnectionError):
            self._silent = 0  # whatever it was, it was an answer
        match error:
            case ServerRequest():
                return _error(f"{self.name} did not finish: {error}. Try other arguments, or another tool.")
            case ValidationError():
                return _error(f"{self.name} answered with something that is no result; it may have done its work.")
            case MCPError(code=code) if code != CONNECTION_CLOSED:
                if code == INVALID_REQUEST and link is not None and isinstance(link.way, HttpAddress):
                    link.close()  # its session may have ended with a restart of the server
                return _error(f"{self.name} answered with the error {code}: {plain(error.message)}")
            case _:
                if link is None:
                    raise Unreachable(f"{self.name} can't be reached: {reason(error)}.", "Call again.") from None
                link.close()
                if self._keeper is not None:
                    await asyncio.wait([self._keeper], timeout=10)
                if link.unsent:
                    raise Unreachable(f"{self.name} can't be reached: {link.watch.why}.", "Call again.") from None
                raise self._unheard(wanted, f"broke off: {link.watch.why or reason(error)}") from None

    @contextmanager
    def _under_way(self, link: ServerConnection) -> Iterator[None]:
        """Count a call that was sent; a server that is to be started anew is closed when the last one has ended."""
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            self._restart_if_idle(link)

    def _was_silent(self, link: ServerConnection | None) -> None:
        self._silent += 1
        if link is not None:
            self._restart_if_idle(link)

    def _restart_if_idle(self, link: ServerConnection) -> None:
        """Close the connection to a server that was silent too often, unless another's call is under way there."""
        if self._calls:
            return
        if self._silent >= SILENT:
            link.watch.ended(f"it did not answer {SILENT} calls in a row")
            link.close()
            self._silent = 0
        self._idle.set()

    def _unheard(self, wanted: ServerCall, what: str) -> KairosError:
        name = plain(wanted.definition.name, 64)
        if wanted.effect in ("read", "idempotent"):
            return Unreachable(f"{self.name} {what}, while it ran {name}.", "It may be called again.")
        return OutcomeUnknown(
            f"{self.name} {what}, after {name} was sent: whether it was carried out is not known.",
            "Don't repeat it before you have looked whether it took effect.",
        )

    def _told(self, heard: ServerResult, asked: Counter[str]) -> ServerResult:
        """The answer, and that the server asked for something meanwhile."""
        if not asked:
            return heard
        things = ", ".join(f"{REFUSED[method]}{f' ({n} times)' * (n > 1)}" for method, n in sorted(asked.items()))
        note = f"[{self.name} asked for {things} meanwhile; refused]"
        return replace(heard, result=replace(heard.result, content=f"{heard.result.content}\n{note}"))


def _error(text: str) -> ToolResult:
    return ToolResult(text, is_error=True)


def _heard(task: asyncio.Task[ServerConnection]) -> None:
    """Somebody heard how it went, also if all who waited gave up."""
    if not task.cancelled():
        task.exception()
