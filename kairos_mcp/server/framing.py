"""Messages as lines of a byte stream: how much of a line is kept, how it is parsed, how ours stay on one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import loads

import mcp_types as wire
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from kairos_mcp.core.json_bounds import MAX_VALUES, has_more_values
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import on_one_line

LINE_BYTES = 16 * 2**20  # several times the largest call with every argument at its bound
EDGE_BYTES = 512  # at each end of a line: where the id of a request may be

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")'
_HEAD = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,200}"\s*,\s*){0,2}' + _ID)
_REPLY = re.compile(_HEAD.pattern + rb'\s*,\s*"(?:result|error)"')
_TAIL = re.compile(rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*' + _ID + rb"\s*\}\s*$")
# of the protocol: as 2025-11-25 or DRAFT-2026-v1, or too short for a secret that is known by its value
_VERSION = re.compile(r"[A-Za-z0-9.-]{1,7}|(?:DRAFT-)?[0-9]{4}-(?:[0-9]{2}-[0-9]{2}|v[0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class FramedLine:
    """A line without its end. Of one that is too long `left_out` bytes are gone, and `tail` is its last part."""

    text: bytes
    left_out: int = 0
    tail: bytes = b""

    def request_id(self) -> int | str | None:
        """The id of the request in a line that can't be parsed, if it is before the params or at the end.

        SDKs write it in these places. It is not looked for anywhere else: that might be the id of another request.
        """
        end = self.tail if self.left_out else self.text[-EDGE_BYTES:]
        found = _HEAD.match(self.text[:EDGE_BYTES]) or _TAIL.search(end)
        if found is None:
            return None
        try:
            number: int | str = loads(found[1])
        except ValueError:
            return None
        return number


def id_of_answer(line: FramedLine) -> int | str | None:
    """The id of our request that an unreadable line answers, if it comes before the result."""
    return line.request_id() if _REPLY.match(line.text[:EDGE_BYTES]) else None


class LineCutter:
    """Cuts chunks into lines and holds at most `limit` bytes of an unfinished one."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._left_out = 0
        self._tail = b""

    def split_chunk(self, chunk: bytes) -> Iterator[FramedLine]:
        """The lines that the chunk ends. Only \\n ends a line: JSON may hold other characters that look like an end."""
        *ended, unfinished = chunk.split(b"\n")
        for piece in ended:
            self._keep(piece)
            yield self._line()
        self._keep(unfinished)

    def flush(self) -> Iterator[FramedLine]:
        """What came after the last end of a line, if anything."""
        if self._kept:
            yield self._line()

    def _keep(self, piece: bytes) -> None:
        room = self._limit - len(self._kept)
        self._kept += piece[:room]
        if len(piece) > room:
            self._left_out += len(piece) - room
            self._tail = (self._tail + piece[room:])[-EDGE_BYTES:]

    def _line(self) -> FramedLine:
        line = FramedLine(bytes(self._kept), self._left_out, self._tail)
        self._kept, self._left_out, self._tail = bytearray(), 0, b""
        return line


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """Why a line is no message. The text never quotes the line."""

    code: int
    text: str

    def as_error(self, request_id: int | str | None) -> wire.JSONRPCError:
        error = wire.ErrorData(code=self.code, message=self.text)
        return wire.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def parse_line(line: FramedLine) -> wire.JSONRPCMessage | UnreadableLine:
    """The message in a line, or why the line has none."""
    if line.left_out:
        return UnreadableLine(wire.INVALID_REQUEST, f"A message has at most {LINE_BYTES} bytes.")
    if has_more_values(line.text, MAX_VALUES):
        return UnreadableLine(wire.INVALID_REQUEST, f"A message holds at most {MAX_VALUES:,} values.")
    try:
        message = wire.jsonrpc_message_adapter.validate_json(line.text, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    else:
        if _names_odd_version(message):
            return UnreadableLine(wire.INVALID_REQUEST, "params._meta has no protocol version.")
        _replace_odd_version(message)
        return message
    if problem["type"] == "json_invalid":
        return UnreadableLine(wire.PARSE_ERROR, f"{problem['msg']}.")
    return UnreadableLine(wire.INVALID_REQUEST, "Not a JSON-RPC 2.0 message.")


def _names_odd_version(message: wire.JSONRPCMessage) -> bool:
    """Whether a request names as its protocol version what can't be one: the library would repeat it in its refusal."""
    match message:
        case wire.JSONRPCRequest(params={"_meta": {wire.PROTOCOL_VERSION_META_KEY: str(version)}}):
            return _VERSION.fullmatch(version) is None
        case _:
            return False


def _replace_odd_version(message: wire.JSONRPCMessage) -> None:
    """Replace what can't be a version in a handshake, which is answered whatever it names: the library would repeat it
    if the connection can't begin another."""
    if isinstance(message, wire.JSONRPCRequest) and message.method == "initialize" and message.params is not None:
        version = message.params.get("protocolVersion")
        if isinstance(version, str) and _VERSION.fullmatch(version) is None:
            message.params["protocolVersion"] = "unknown"


def encode_message(outgoing: SessionMessage) -> bytes:
    """The message as one line. An answer with text that is no Unicode is replaced by an error."""
    message = outgoing.message
    try:
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
    except PydanticSerializationError:
        number = message.id if isinstance(message, wire.JSONRPCResponse) else None
        broken = UnreadableLine(wire.INTERNAL_ERROR, "The answer has text that is not Unicode.")
        text = broken.as_error(number).model_dump_json(by_alias=True, exclude_unset=True)
    return on_one_line(text).encode() + b"\n"
