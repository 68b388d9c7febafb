"""Watches what a downstream server sends unasked: counted, mostly dropped, and too much ends the connection."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable

import mcp_types as wire

from kairos_mcp.core.json_bounds import MESSAGE_VALUES
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.tools.mcp_servers.event_stream import METHOD_PREFIX, SUBSCRIPTION_ID

MAX_BURST = 2_000  # unasked messages at once
MAX_PER_SECOND = 100  # unasked messages, in the long run
MAX_REQUESTS = 1_000  # of the server to us on one connection; each is answered
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MESSAGE_TOO_LARGE = f"it sent a message of over {MAX_MESSAGE_BYTES // 2**20} MiB"
TOO_MANY_VALUES = f"it sent a message of over {MESSAGE_VALUES:,} values"
QUOTED_BYTES = 1_000  # of a line that is no message
REFUSED_METHODS = {
    "sampling/createMessage": "the model",
    "elicitation/create": "the user",
    "roots/list": "the folders of this client",
}
_ERROR_NAME = re.compile(r"(?:Uncaught )?[\w.]*(?:Error|Exception)\b")
_HELD_BY_ERROR = re.compile(
    r"""[\]\[{}(),;]+ | ['"].* | \w+:\ (?:['"\[{\d-].* | (?:undefined|null|true|false),?)""", re.VERBOSE
)
_PASSED_ON = {"notifications/tools/list_changed", "notifications/subscriptions/acknowledged"}


class FloodError(Exception):
    """The server sends more than is read."""


class ConnectionWatch:
    """What was seen of one connection.

    `tools_changed`: the server's tools may have changed since they were listed. `refused` counts the requests that it
    made and that were refused, by method. `unreadable_line`: the first line on stdout that is no message. `end_reason`:
    why the connection ended, once it has. `died_unheard`: its program ended by itself before it sent any message.
    `stderr`: the last of what the server wrote there. `hearers`: who takes what streams of events tell, by the ids of
    their requests.
    """

    def __init__(self) -> None:
        self.tools_changed = False
        self.refused: Counter[str] = Counter()
        self.unreadable_line = ""
        self.end_reason: str | None = None
        self.died_unheard = False
        self.stderr = bytearray()
        self.hearers: dict[object, Callable[[str, JsonObject], None]] = {}
        self._has_spoken = False
        self._allowance = float(MAX_BURST)
        self._counted_at = time.monotonic()

    def passes_on(self, message: wire.JSONRPCMessage) -> bool:
        """Count a message; return whether it is passed on to the protocol library. Raises FloodError."""
        self._has_spoken = True
        match message:
            case wire.JSONRPCNotification(method=method, params=params):
                self.count_unasked()
                if method == "notifications/tools/list_changed":
                    self.tools_changed = True
                if method.startswith(METHOD_PREFIX):
                    self._pass_to_hearer(method, params or {})
                return method in _PASSED_ON
            case wire.JSONRPCRequest(method=method):
                self.count_unasked()
                if method in REFUSED_METHODS:
                    self.refused[method] += 1
                if self.refused.total() > MAX_REQUESTS:
                    raise FloodError(
                        f"it asked for {REFUSED_METHODS.get(method, 'things')} over {MAX_REQUESTS:,} times"
                    )
                return True
            case _:
                return True

    def _pass_to_hearer(self, method: str, params: JsonObject) -> None:
        """Have the stream that a notification belongs to take it. Some servers don't say which: then it is the only
        one."""
        meta = params.get("_meta")
        of = meta.get(SUBSCRIPTION_ID) if isinstance(meta, dict) else None
        if of is None and len(self.hearers) == 1:
            (of,) = self.hearers
        if isinstance(of, int | str) and of in self.hearers:
            self.hearers[of](method, params)

    def count_unreadable(self, line: bytes = b"") -> None:
        """Count a line that is no message: some servers print to stdout. Raises FloodError."""
        self.unreadable_line = self.unreadable_line or line[:QUOTED_BYTES].decode("utf-8", "replace").strip()
        self.count_unasked()

    def count_unasked(self) -> None:
        """Count a message that nobody asked for. Raises FloodError."""
        now = time.monotonic()
        self._allowance = min(MAX_BURST, self._allowance + (now - self._counted_at) * MAX_PER_SECOND) - 1
        self._counted_at = now
        if self._allowance < 0:
            raise FloodError(f"it sent over {MAX_BURST:,} messages that nobody asked for")

    def record_exit(self, how: str) -> None:
        """Record that its program ended by itself."""
        self.died_unheard = not self._has_spoken
        self.record_end(f"it ended{how}")

    def record_end(self, reason: str) -> None:
        """Record why the connection ended; only the first reason is kept."""
        if self.end_reason is None:
            self.end_reason = reason


def find_last_line(stderr: str) -> str:
    """Return the last line of a program's stderr that says something. Node says what is wrong first: then where, what
    the error holds, and its own version."""
    lines = [line.strip() for line in stderr.splitlines()]
    said = [line for line in lines if line and not line.startswith("Node.js v")]
    end = len(said)
    while end and _HELD_BY_ERROR.fullmatch(said[end - 1]):
        end -= 1
    if end and said[end - 1].startswith("at "):
        named = next((line for line in reversed(said[:end]) if _ERROR_NAME.match(line)), None)
        return named or said[-1]
    return said[-1] if said else ""
