"""One HTTP exchange over its own connection, to checked addresses. Every wait ends at the deadline or when stopped.

The connection goes to an address, never to a name, so a name that resolves differently later changes nothing. The
certificate is checked against the name. Nothing is kept for the next exchange: no cookies, no connection.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import h11

from kairos_mcp.core.errors import KairosError, Timeout, TlsError, TooLarge, Unreachable
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import StopSignal
from kairos_mcp.core.urls import Address

CONNECT_S = 10.0  # for each address; a host may have others
MAX_ADDRESSES = 4
HEAD_BYTES = 64 * 1024  # status line and headers of a reply
READ_BYTES = 64 * 1024
CONNECT_AGAIN = "Try again later, or ask elsewhere."

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Status, reason and headers of a reply; header names are in lower case."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str:
        """Return a header's value, several joined by commas as in HTTP; empty if there is none."""
        return ", ".join(value for key, value in self.headers if key == name)


class HttpConnection:
    """A connection for one request: opened, used once and closed. `deadline` is on `time.monotonic()`."""

    def __init__(self, host: str, deadline: float, stop: StopSignal) -> None:
        self._host = host  # for messages only
        self._deadline = deadline
        self._stop = stop
        self._socket: socket.socket | None = None
        # A second descriptor, to shut down by while TLS owns the first.
        self._second_socket: socket.socket | None = None
        self._lock = Lock()
        self.request_sent = False  # whether the other end may have received the request
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        stop.add_callback(self._abort)

    def __enter__(self) -> HttpConnection:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for opened in (self._socket, self._second_socket):
                if opened is not None:
                    opened.close()

    def open(self, addresses: Sequence[Address], port: int, tls: Callable[[], ssl.SSLContext] | None) -> None:
        """Connect to the first address that answers; with `tls`, check the certificate for the host's name.

        Raises Unreachable, TlsError, Timeout.
        """
        with self._translate_failures():
            self._socket = self._connect(addresses[:MAX_ADDRESSES], port)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                context = tls()
                self._socket.settimeout(self._remaining_s())  # the handshake as a whole
                self._socket = context.wrap_socket(self._socket, server_hostname=self._host)

    def send_request(
        self, method: str, target: str, headers: Headers, body: bytes, recheck: Callable[[], None] = lambda: None
    ) -> ReplyHead:
        """Send the request and read the head of its reply. Raises Unreachable, TlsError, TooLarge, Timeout.

        `recheck` is called right before each piece of the request is sent. What it raises is passed on, and neither
        that piece nor any later one is sent.
        """
        with self._translate_failures():
            request = h11.Request(method=method, target=target, headers=list(headers))
            pieces = [self._protocol.send(request)]
            pieces += [self._protocol.send(h11.Data(body))] if body else []
            pieces.append(self._protocol.send(h11.EndOfMessage()))
            # A server that refuses a long body may say why before it hangs up.
            with contextlib.suppress(ConnectionError):
                self._send_bytes(b"".join(part for part in pieces if part), recheck)
            while True:
                event = self._next_event()
                if isinstance(event, h11.Response):
                    decoded = [(_decode(name).lower(), _decode(value)) for name, value in event.headers]
                    return ReplyHead(event.status_code, _decode(event.reason), tuple(decoded))

    def read_body(self) -> Iterator[bytes]:
        """Yield the body as it comes, still packed. Raises Unreachable if it breaks off, Timeout."""
        with self._translate_failures():
            while True:
                event = self._next_event()
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                elif not isinstance(event, h11.InformationalResponse):
                    return

    def _connect(self, addresses: Sequence[Address], port: int) -> socket.socket:
        failure: OSError | None = None
        for address in addresses:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            candidate = socket.socket(family, socket.SOCK_STREAM)
            with contextlib.ExitStack() as undo:
                undo.callback(candidate.close)
                with self._lock:
                    if self._second_socket is not None:
                        self._second_socket.close()
                    self._second_socket = candidate.dup()
                candidate.settimeout(min(CONNECT_S, self._remaining_s()))
                try:
                    candidate.connect((str(address), port))
                except OSError as error:
                    failure = error
                else:
                    undo.pop_all()
                    return candidate
        self._remaining_s()
        raise Unreachable(f"{self._host} can't be reached{_describe_reason(failure)}.", CONNECT_AGAIN)

    def _send_bytes(self, content: bytes, recheck: Callable[[], None]) -> None:
        assert self._socket is not None
        view = memoryview(content)
        while view:
            self._socket.settimeout(self._remaining_s())
            recheck()
            self.request_sent = True
            view = view[self._socket.send(view[:READ_BYTES]) :]

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        assert self._socket is not None
        while True:
            event = self._protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._socket.settimeout(self._remaining_s())
            self._protocol.receive_data(self._socket.recv(READ_BYTES))

    def _remaining_s(self) -> float:
        """Return the seconds that are left, more than 0. Raises Timeout if there are none, or the call was stopped."""
        remaining_s = self._deadline - time.monotonic()
        if self._stop.is_set or remaining_s <= 0:
            raise self._timeout_error()
        return remaining_s

    def _timeout_error(self) -> Timeout:
        sent = "It may have been received." if self.request_sent else "Nothing was sent."
        if self._stop.is_set:
            return Timeout(f"The call to {self._host} was stopped.", sent)
        return Timeout(f"{self._host} did not answer in time.", f"{sent} Try again later, or ask for less at once.")

    def _abort(self) -> None:
        """End any wait, from another thread, by shutting the connection down; the other end sees it close."""
        with self._lock, contextlib.suppress(OSError):
            if self._second_socket is not None:
                self._second_socket.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _translate_failures(self) -> Iterator[None]:
        """Turn failures of the connection into our errors; their texts name the host, and nothing of this machine."""
        try:
            yield
        except KairosError:
            raise
        except (OSError, h11.RemoteProtocolError) as error:
            if self._stop.is_set or isinstance(error, TimeoutError):
                raise self._timeout_error() from error
            raise self._translate_error(error) from error

    def _translate_error(self, error: OSError | h11.RemoteProtocolError) -> KairosError:
        match error:
            case ssl.SSLCertVerificationError(verify_message=str(why)):
                return TlsError(f"The certificate of {self._host} is not trusted: {why}.", "Nothing was sent.")
            case ssl.SSLCertVerificationError():
                return TlsError(f"The certificate of {self._host} is not trusted.", "Nothing was sent.")
            case ssl.SSLError():
                return TlsError(f"{self._host} does not speak TLS as it should.", "Is it http instead of https?")
            case h11.RemoteProtocolError(error_status_hint=431):
                return TooLarge(f"The headers of {self._host} have more than {HEAD_BYTES:,} bytes.", "Ask elsewhere.")
            case h11.RemoteProtocolError():
                return Unreachable(f"{self._host} broke off, or does not speak HTTP.", CONNECT_AGAIN)
            case _:
                return Unreachable(f"The connection to {self._host} broke{_describe_reason(error)}.", CONNECT_AGAIN)


def _describe_reason(error: OSError | None) -> str:
    match error:
        case ConnectionRefusedError():
            return ": refused"
        case TimeoutError():
            return f": no answer within {CONNECT_S:g} s"
        case ConnectionError():
            return ": reset"
        case _:
            return ""


def _decode(raw: bytes) -> str:
    return raw.decode("latin-1")
