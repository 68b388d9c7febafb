"""Repairs what a downstream server sends before the protocol library reads it, so that one odd field costs that field.

What has one meaning is repaired, and `repairs` names each kind once. The library sees the envelope of a message alone:
the contents of our two kinds of requests, lists of tools and results of calls, are carried past it as they were sent,
since it refuses a whole list for one definition and a whole result for one block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types as wire
from mcp_types import ErrorData
from mcp_types.methods import validate_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from pydantic import ValidationError

from kairos_mcp.core.messages import JsonObject

MAX_BATCH = 1_000  # messages in one array
MAX_CARRIED = 2_000  # tools of one page
MAX_PENDING = 1_000  # requests of ours that are remembered; a call that was given up is never answered
AS_SENT = "kairos-mcp/as-sent"  # in `_meta` of a result: the result as the server sent it
NO_ANSWER = "kairos-mcp/no-answer"  # in the data of an error: it stands where no answer came
SESSION_LOST = "kairos-mcp/session-lost"  # in the data of an error: the server has forgotten the session
UNREADABLE = "kairos-mcp/unreadable"  # in the data of an error: why the answer in whose place it stands can't be read
_LOST_CODES = (-32000, -32001, -32600)  # with which servers say so in a reply of status 200
_LOST_WORDS = re.compile(
    r"\b(?:no valid|invalid or missing|missing|unknown|invalid) (?:mcp[- ])?session"
    r"|\bsession(?: id)? (?:not found|(?:has |was )?(?:been )?(?:expired|terminated|closed)|is (?:invalid|unknown))",
    re.IGNORECASE,
)
INTERNAL_ERROR = -32603  # of JSON-RPC: of an error that states no number

# Two backslashes, a whole pair of surrogates, or half of one. The first two are kept as they are.
_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
EDGE_BYTES = 512  # at each end of a text: where the id of an answer is
_ID = re.compile(rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")')
_ANSWER = re.compile(rb'"(?:result|error)"\s*:')
_DECODER = json.JSONDecoder()
_LONG_NUMBER = re.compile(rb"\d{4301}")  # Python reads no longer one
_DEFAULT_INFO = {"name": "unnamed", "version": "unknown"}


class UnreadableMessage(ValueError):
    """What was read is no message."""


class MessageRepair:
    """The repairs of one connection.

    `repairs` are sentences without a subject, each once. `protocol_version` is what the server answered to
    `initialize`, if that is no version that is spoken here.
    """

    def __init__(self) -> None:
        self.repairs: dict[str, None] = {}
        self.protocol_version: str | None = None
        self._methods: dict[object, str] = {}  # of requests under way, by id
        self._is_legacy = False  # it has answered to `initialize`
        self._notified = 0  # notifications that it was sent and has not answered

    def record_sent(self, message: wire.JSONRPCMessage) -> None:
        """Record a request, so that its answer can be told from others."""
        self._notified += isinstance(message, wire.JSONRPCNotification)
        if isinstance(message, wire.JSONRPCRequest):
            self._methods[message.id] = message.method
            while len(self._methods) > MAX_PENDING:
                del self._methods[next(iter(self._methods))]

    def read_messages(self, line: bytes) -> list[wire.JSONRPCMessage]:
        """Read a line of a child, which is one message or an array of them. Raises UnreadableMessage."""
        try:
            messages = [wire.jsonrpc_message_adapter.validate_json(line, by_name=False)]
        except ValueError:
            parts = self._decode_or_refuse(line)
            try:
                messages = [wire.jsonrpc_message_adapter.validate_python(part, by_name=False) for part in parts]
            except ValueError as error:
                raise UnreadableMessage from error
        return [self.repair(_mark_answered(message)) for message in messages]

    def repair_text(self, text: bytes, *, is_whole: bool = True) -> bytes:
        """Return the JSON of one message, as the body of an HTTP response has it, in a form that the library reads; of
        an array the answer. What is no message stays as it is, and so does what may go on."""
        try:
            message = wire.jsonrpc_message_adapter.validate_json(text, by_name=False)
        except ValueError:
            try:
                parts = self._decode_or_refuse(text) if is_whole else self._decode(text)
            except UnreadableMessage:
                return text
            answers = [part for part in parts if "method" not in part] or parts
            return json.dumps(answers[0]).encode() if answers else text
        if isinstance(message, wire.JSONRPCError) and message.error.code == wire.CONNECTION_CLOSED:
            return _mark_answered(message).model_dump_json(by_alias=True, exclude_unset=True).encode()
        return text

    def repair(self, message: wire.JSONRPCMessage) -> wire.JSONRPCMessage:
        """Return a message whose result the library takes; any other as it is."""
        if isinstance(message, wire.JSONRPCError):
            if message.id is None and not self._answers_notification({"error": message.error.model_dump()}):
                message = message.model_copy(update={"id": self._only_request()})
            self._methods.pop(_plain_id(message.id), None)
        if not isinstance(message, wire.JSONRPCResponse):
            return message
        sent = message.result.get(AS_SENT, message.result)
        match self._methods.pop(_plain_id(message.id), None):
            case "tools/list":
                result = _carry_listing(sent, for_library=not self._is_legacy)
            case "tools/call":
                result = _carry_result(sent)
            case "initialize":
                result = self._repair_handshake(sent)
            case _:
                return message
        return message.model_copy(update={"result": result})

    def _decode_or_refuse(self, text: bytes) -> list[JsonObject]:
        """Return the messages in a text; in place of an answer of ours that can't be read, an error that says why.

        Whoever waits for it would wait in vain. Raises UnreadableMessage for anything else that can't be read.
        """
        try:
            return self._decode(text)
        except UnreadableMessage:
            number = self._find_answered(text)
            if number is None:
                raise
            reason = _explain_unreadable(text)
            error = {
                "code": INTERNAL_ERROR,
                "message": f"its answer can't be read: {reason}",
                "data": {UNREADABLE: reason},
            }
            return [{"jsonrpc": "2.0", "id": number, "error": error}]

    def _find_answered(self, text: bytes) -> Any:
        """Return the id of the request under way that an unreadable text answers by all appearances, or None."""
        plain = text.replace(b"\0", b"").removeprefix(b"\xef\xbb\xbf").lstrip(b"\xff\xfe \t\r")
        if not plain.startswith((b"{", b"[")) or not _ANSWER.search(plain):
            return None
        found = [json.loads(number) for number in _ID.findall(plain[:EDGE_BYTES] + plain[-EDGE_BYTES:])]
        if not found and b'"jsonrpc"' in plain and len(self._methods) == 1:
            return next(iter(self._methods))
        return next((_plain_id(number) for number in found if _plain_id(number) in self._methods), None)

    def _decode(self, text: bytes) -> list[JsonObject]:
        """Return the messages in a text, each with a whole envelope. Raises UnreadableMessage."""
        whole = text.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0 \t\r\n")
        repaired = _ESCAPES.sub(lambda found: rb"\ufffd" if found[1] else found[0], whole).decode("utf-8", "replace")
        try:
            values = _parse_values(repaired)
        except (ValueError, RecursionError) as error:
            raise UnreadableMessage from error
        is_array = len(values) == 1 and isinstance(values[0], list)
        parts = values[0] if is_array else values
        if not 0 < len(parts) <= MAX_BATCH or not all(isinstance(part, dict) for part in parts):
            raise UnreadableMessage
        if is_array:
            self.repairs["it sends its messages in arrays"] = None
        elif len(parts) > 1:
            self.repairs["it sends messages without a line end between them"] = None
        if repaired.encode() != whole:
            self.repairs["halves of characters in what it sends are replaced"] = None
        messages = (self._complete_envelope(part) for part in parts)
        return [message for message in messages if message is not None]

    def _complete_envelope(self, part: JsonObject) -> JsonObject | None:
        """Return the message in the form of JSON-RPC; None of a result for a notification. Raises UnreadableMessage for
        what is neither a request nor an answer."""
        number = part.get("id")
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(part.get("method"), str):
            kept = {"params": part["params"]} if isinstance(part.get("params"), dict) else {}
            request = {"jsonrpc": "2.0", "method": part["method"], **kept}
            return request if number is None else {**request, "id": number}
        self.repairs["its messages are not as JSON-RPC has them"] = None
        if part.get("error") is not None:
            return {"jsonrpc": "2.0", "id": number, "error": _complete_error(part["error"])}
        if number is None and "result" in part:
            if self._answers_notification(part):
                return None
            number = self._only_request()
        is_empty = not part.keys() - {"jsonrpc", "id", "error"}  # JavaScript leaves out a result that is undefined
        if number is None or not ("result" in part or (is_empty and _plain_id(number) in self._methods)):
            raise UnreadableMessage
        result = part.get("result")
        return {"jsonrpc": "2.0", "id": number, "result": result if isinstance(result, dict) else {AS_SENT: result}}

    def _only_request(self) -> object:
        """Return the id of the request to which an answer without one belongs: of the only one under way."""
        return next(iter(self._methods)) if len(self._methods) == 1 else None

    def _answers_notification(self, answer: Mapping[str, Any]) -> bool:
        """Whether an answer without an id is to a notification, as some servers answer one; each is answered once."""
        is_one = self._notified > 0 and _may_answer_notification(answer)
        self._notified -= is_one
        return is_one

    def _repair_handshake(self, sent: Any) -> JsonObject:
        """Return the answer to `initialize` without what the library would refuse and nobody needs here."""
        self._is_legacy = True
        given: JsonObject = sent if isinstance(sent, dict) else {}
        version = given.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            self.protocol_version = str(version)
        if _fits("initialize", HANDSHAKE_PROTOCOL_VERSIONS[-1], given):
            return given
        self.repairs["its answer to initialize is not as the protocol has it"] = None
        told = given.get("capabilities")
        capabilities = {key: _object(part) for key, part in _object(told).items() if key in ("tools", "logging")}
        capabilities = {
            key: {k: v for k, v in part.items() if isinstance(v, bool)} for key, part in capabilities.items()
        }
        info = {key: value for key, value in _object(given.get("serverInfo")).items() if isinstance(value, str)}
        return {
            "protocolVersion": version if isinstance(version, str) else "",
            "capabilities": capabilities,
            "serverInfo": {key: info.get(key, default) for key, default in _DEFAULT_INFO.items()},
        }


def content_as_sent(result: wire.Result) -> Any:
    """Return what the server sent as the result of a request of ours."""
    return (result.meta or {}).get(AS_SENT)


def has_answered(error: ErrorData) -> bool:
    """Whether an error is the server's own answer. The library says by a number of its own that a connection was lost,
    and it is the number that servers take most."""
    if isinstance(error.data, dict) and NO_ANSWER in error.data:
        return False
    return error.code != wire.CONNECTION_CLOSED or (isinstance(error.data, dict) and AS_SENT in error.data)


def has_lost_session(error: ErrorData) -> bool:
    """Whether an error says that the server does not know the session any more, and so has carried out nothing."""
    is_told = isinstance(error.data, dict) and SESSION_LOST in error.data
    return is_told or (error.code in _LOST_CODES and bool(_LOST_WORDS.search(error.message)))


def find_unreadable(error: ErrorData) -> str | None:
    """Return why an answer could not be read, if this error stands in its place."""
    return error.data.get(UNREADABLE) if isinstance(error.data, dict) else None


def _parse_values(text: str) -> list[Any]:
    """Parse the JSON values in a text, one or, as of a server that leaves out line ends, several. Raises ValueError."""
    values, rest = list[Any](), text.lstrip()
    while rest and len(values) <= MAX_BATCH:
        value, end = _DECODER.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values


def _may_answer_notification(answer: Mapping[str, Any]) -> bool:
    error = answer.get("error")
    if not isinstance(error, dict):
        return error is None and not answer.get("result")
    words = str(error.get("message")).lower()
    return error.get("code") == wire.METHOD_NOT_FOUND or "notification" in words or "initialized" in words


def _explain_unreadable(text: bytes) -> str:
    if b"\0" in text:
        return "it is in UTF-16, not in UTF-8"
    return "a number in it has over 4,300 digits" if _LONG_NUMBER.search(text) else "it is not JSON, or nested too deep"


def _mark_answered(message: wire.JSONRPCMessage) -> wire.JSONRPCMessage:
    """Return what a server sent; an error that the library would use itself is marked as the server's."""
    if not isinstance(message, wire.JSONRPCError) or message.error.code != wire.CONNECTION_CLOSED:
        return message
    marked = message.error.model_copy(update={"data": {AS_SENT: message.error.data}})
    return message.model_copy(update={"error": marked})


def _carry_listing(sent: Any, *, for_library: bool) -> JsonObject:
    """Return a page of tools for the library. In the newer protocol it is given those tools that it takes: they may ask
    for headers, which it sends, and it drops those whose headers are not allowed."""
    listed = sent.get("tools") if isinstance(sent, dict) and for_library else None
    objects = [tool for tool in listed[:MAX_CARRIED] if isinstance(tool, dict)] if isinstance(listed, list) else []
    tools = [tool for tool in objects if _fits("tools/list", LATEST_MODERN_VERSION, _page([tool]))]
    return _page(tools) | {"_meta": {AS_SENT: sent}}


def _page(tools: Sequence[Any]) -> JsonObject:
    return {"tools": tools, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}


def _carry_result(sent: Any) -> JsonObject:
    """Return the result of a call for the library; one that asks for input is left to it."""
    if isinstance(sent, dict) and sent.get("resultType") == "input_required":
        return sent
    return {"content": [], "resultType": "complete", "_meta": {AS_SENT: sent}}


def _fits(method: str, version: str, result: JsonObject) -> bool:
    try:
        validate_server_result(method, version, result)
    except (ValidationError, RecursionError):
        return False
    return True


def _complete_error(error: Any) -> JsonObject:
    given: Mapping[str, Any] = error if isinstance(error, dict) else {"message": error}
    code, message = given.get("code"), given.get("message")
    return {
        "code": code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR,
        "message": message if isinstance(message, str) else json.dumps(error)[:1_000],
    }


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _plain_id(number: object) -> object:
    """Return the id under which our request is known: some servers answer a number as text."""
    return int(number) if isinstance(number, str) and number.isascii() and number.isdigit() else number
