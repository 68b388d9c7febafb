"""Put the events of a streamed reply together, so that a stream leaves exactly what a whole reply would have left.

Its text is heard as it comes. Each fold takes the decoded events in their order; `reply` is what they add up to, in
the form of a whole reply, and is repaired like one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.chat import take_usage
from kairos_mcp.models.replies.errors import error_of
from kairos_mcp.models.replies.exchange import BadProviderReply, ErrorInReply, Exchange, refuse_many_values

DONE = "[DONE]"
MAX_EVENT_LINES = 200  # each is looked at again with every further one
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the end of what has come may be the half of a CRLF
_HEARTBEAT = re.compile(r"[\[(]?[\w .:-]{0,40}[\])]?")  # a word or two: nothing that an event could be a part of


class EventDecoder:
    """Decodes the bytes of events as they come. Comments, heartbeats and blank data are no events."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of a line whose end has not come
        self._data: list[str] = []  # the lines of an event whose end has not come
        self._begins = True

    def feed(self, part: bytes) -> Iterator[str | JsonObject]:
        """Yield the events that end in this part: an object, or DONE. Raises BadProviderReply for any other data."""
        has_end = b"\n" in part or b"\r" in part or (self._parts and self._parts[-1].endswith(b"\r"))
        self._parts.append(part)
        if not has_end:
            return
        *lines, rest = _LINE_END.split(b"".join(self._parts))
        self._parts = [rest]
        for line in lines:
            yield from self._take(line)

    def end(self) -> Iterator[str | JsonObject]:
        """Yield what the last line holds, which may have no end."""
        rest, self._parts = b"".join(self._parts), []
        yield from self._take(rest.rstrip(b"\r"))
        self._end_event()

    def _take(self, line: bytes) -> Iterator[str | JsonObject]:
        if self._begins:
            line, self._begins = line.removeprefix(_BOM), False
        if not line.strip():
            self._end_event()
            return
        text = line.decode("utf-8", "replace")
        if text.startswith("data:"):
            text = text[len("data:") :].strip()
        elif not text.startswith("{"):  # a comment, or a field that says nothing; some servers leave out `data:`
            return
        if text == DONE:
            self._end_event()
            yield DONE
        elif not _HEARTBEAT.fullmatch(text):
            yield from self._take_data(text)

    def _take_data(self, text: str) -> Iterator[JsonObject]:
        """Yield the event as soon as it is one: some servers leave out the blank line after it."""
        self._data.append(text)
        if len(self._data) > MAX_EVENT_LINES:
            self._end_event()
        if (event := _parse_object("\n".join(self._data))) is not None:
            self._data = []
            yield event

    def _end_event(self) -> None:
        if self._data:
            raise BadProviderReply("an event of it is no JSON", retryable=True)


def _parse_object(data: str) -> JsonObject | None:
    if not data.startswith(("{", "[")):
        return None
    refuse_many_values(data)
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(event, list):
        event = next((part for part in event if isinstance(part, dict)), {})
    return event if isinstance(event, dict) else None


class Fold(Protocol):
    """What the events of one form add up to."""

    def take(self, event: JsonObject) -> None: ...

    def reply(self, *, is_done: bool) -> JsonObject: ...


CUT_OFF = "it is cut off"


def _end_in_error(
    error: object,
    exchange: Exchange,
    usages: Iterable[object],
    *,
    has_begun: bool,
    is_covered: bool,
    cache_is_apart: bool = False,
) -> ErrorInReply:
    """Return the error that ends a stream, with what the stream has reported by then in the exchange.

    `is_covered`: no piece came after the last report. Else the report says too little, and the whole reservation is
    charged.
    """
    take_usage(exchange, iter(usages), cache_is_apart=cache_is_apart)
    if not is_covered:
        exchange.usage = None
    return ErrorInReply(error, has_begun=has_begun or exchange.reports_usage)


class _Call:
    """A call as its pieces come."""

    def __init__(self, fields: JsonObject) -> None:
        self.fields = fields
        self.name = ""
        self._pieces: list[str] = []
        self._scanner = _ObjectScanner()
        self._size = 0
        self._whole: Any = None  # arguments that came as an object

    @property
    def is_complete(self) -> bool:
        return self._whole is not None or self._scanner.is_complete

    def add(self, arguments: object) -> None:
        """Add a piece of the arguments, or all of them."""
        if not isinstance(arguments, str):
            self._whole = arguments or self._whole
            return
        is_repeated = self._size == len(arguments) and self.is_complete and "".join(self._pieces) == arguments
        if not is_repeated:
            self._pieces.append(arguments)
            self._size += len(arguments)
            self._scanner.scan(arguments)

    def as_json(self) -> JsonObject:
        arguments = "".join(self._pieces) if self._whole is None else self._whole
        return {**self.fields, "function": {"name": self.name, "arguments": arguments}}


class _ObjectScanner:
    """Finds out whether a text that comes in pieces is one whole object by now, looking at each character once."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = self._has_begun = False

    @property
    def is_complete(self) -> bool:
        return self._has_begun and self._depth == 0

    def scan(self, piece: str) -> None:
        for char in piece:
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped, self._in_string = char == "\\", char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth, self._has_begun = self._depth + 1, True
            elif char in "}]":
                self._depth -= 1


class ChatFold:
    """Folds the chunks of a chat completion."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._hearing = _AnswerListener(exchange)
        self._head: JsonObject = {}
        self._texts: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}
        self._usages: list[object] = []
        self._is_covered = True  # by the last report, which counts the pieces of its own chunk
        self._finish: object = None

    def take(self, event: JsonObject) -> None:
        """Take a chunk. Raises ErrorInReply."""
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        groq = event.get("x_groq")
        usages = [event.get("usage"), choice.get("usage"), groq.get("usage") if isinstance(groq, dict) else None]
        self._usages += usages
        self._is_covered = any(usages) or (self._is_covered and not _has_piece(choice))
        if (error := error_of(event) or error_of(choice)) is not None:
            has_begun = bool(self._texts or self._calls)
            raise _end_in_error(error, self._exchange, self._usages, has_begun=has_begun, is_covered=self._is_covered)
        for name in ("id", "model", "created"):
            if event.get(name) and not self._head.get(name):
                self._head[name] = event[name]
        self._finish = choice.get("finish_reason") or self._finish
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(delta, dict) and delta:
            self._take_delta(delta)
        elif isinstance(message, dict) and not (self._texts or self._calls):  # else it repeats what has come
            self._take_delta(message)
        elif isinstance(choice.get("text"), str):
            self._take_delta({"content": choice["text"]})

    def reply(self, *, is_done: bool) -> JsonObject:
        """Return the whole reply. Raises BadProviderReply where the stream ended without saying so."""
        if not (is_done or self._finish):
            raise BadProviderReply(CUT_OFF, retryable=True)
        self._hearing.end()
        message: JsonObject = {name: "".join(pieces) for name, pieces in self._texts.items()}
        message |= {"reasoning_details": self._details} if self._details else {}
        message["tool_calls"] = [call.as_json() for call in self._calls]
        if not (self._texts or self._calls or self._finish):
            return {**self._head, "choices": [], "usages": self._usages}
        choice = {"message": message, "finish_reason": self._finish}
        return {**self._head, "choices": [choice], "usages": self._usages}

    def _take_delta(self, delta: JsonObject) -> None:
        for name in ("content", "refusal", "reasoning_content", "reasoning", "thinking"):
            self._take_text(name, delta.get(name))
        if isinstance(details := delta.get("reasoning_details"), list):
            self._details += details
        given = delta.get("tool_calls")
        for piece in given if isinstance(given, list) else [given] if isinstance(given, dict) else ():
            if isinstance(piece, dict):
                self._take_call(piece)
        if isinstance(legacy := delta.get("function_call"), dict):
            self._take_call({"index": 0, "function": legacy})

    def _take_text(self, name: str, piece: object) -> None:
        parts = piece if isinstance(piece, list) else [piece]
        for part in parts:
            match part:
                case str() if part:
                    self._texts.setdefault(name, []).append(part)
                    if name == "content":
                        self._hearing.hear(part)
                case {"type": "thinking" | "reasoning", **rest}:
                    for value in rest.values():
                        self._take_text("reasoning_content", value)
                case {"text": str(text)}:
                    self._take_text(name, text)
                case _:
                    pass

    def _take_call(self, piece: JsonObject) -> None:
        """Take a piece of a call: of one that is under way, or of a new one."""
        inner = piece.get("function")
        function = inner if isinstance(inner, dict) else piece
        given_name = inner if isinstance(inner, str) else function.get("name")
        name = given_name if isinstance(given_name, str) else ""
        index = _index_of(piece)
        call = self._by_index.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call is None or _begins_another(call, piece.get("id"), name):
            call = _Call({key: piece[key] for key in ("id", "extra_content") if piece.get(key)})
            self._calls.append(call)
            self._by_index[index] = call
        if name and name != call.name:
            call.name += name
        if piece.get("extra_content"):
            call.fields["extra_content"] = piece["extra_content"]
        if piece.get("id") and not call.fields.get("id"):
            call.fields["id"] = piece["id"]
        call.add(function.get("arguments", function.get("parameters")))


def _has_piece(choice: JsonObject) -> bool:
    """Whether a chunk holds a piece of the answer, and not the role alone."""
    held = choice.get("delta") or choice.get("message")
    fields = held.items() if isinstance(held, dict) else ()
    return bool(choice.get("text")) or any(value for name, value in fields if name != "role")


def _begins_another(call: _Call, given_id: object, name: str) -> bool:
    """Whether a piece for this call is one of the next: its id is another, or it has a name after whole arguments.

    Several servers give each of the calls of a turn the index 0.
    """
    if given_id and call.fields.get("id"):
        return given_id != call.fields["id"] or (bool(name) and call.is_complete and name != call.name)
    return bool(name) and bool(call.name) and call.is_complete


def _index_of(event: JsonObject) -> int | None:
    index = event.get("index")
    return index if isinstance(index, int) else None


class _AnswerListener:
    """Passes the text on as it comes, without thinking that stands in it before the answer."""

    _BEGIN, _END = "<think>", "</think>"

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._held = ""  # what may be thinking
        self._may_think = True

    def hear(self, piece: str) -> None:
        if not self._may_think:
            self._exchange.hear(piece)
            return
        self._held += piece
        start = self._held.lstrip()
        if start.startswith(self._BEGIN):
            _, end, answer = start.partition(self._END)
            if end:
                self._pass_on(answer)
        elif not self._BEGIN.startswith(start):
            self._pass_on(self._held)

    def end(self) -> None:
        if self._may_think and not self._held.lstrip().startswith(self._BEGIN):
            self._pass_on(self._held)

    def _pass_on(self, text: str) -> None:
        self._held, self._may_think = "", False
        self._exchange.hear(text)


_GROWING = {"text": "text", "thinking": "thinking", "tool_use": "input"}  # what of a block comes in pieces


class MessageFold:
    """Folds the events of an Anthropic message."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reply: JsonObject = {}
        self._usage: JsonObject = {}
        self._bad_usage: object = None
        self._is_covered = True  # by the last report
        self._blocks: list[JsonObject] = []
        self._by_index: dict[Any, JsonObject] = {}
        self._has_ended = False

    def take(self, event: JsonObject) -> None:
        """Take an event. Raises ErrorInReply."""
        if (error := error_of(event)) is not None:
            self._take_usage(event.get("usage"))
            raise _end_in_error(
                error,
                self._exchange,
                (self._usage or None, self._bad_usage),
                has_begun=bool(self._blocks),
                is_covered=self._is_covered,
                cache_is_apart=True,
            )
        match event:
            case {"type": "message_start", "message": dict(message)}:
                self._reply = {key: message[key] for key in ("id", "model") if message.get(key)}
                self._take_usage(message.get("usage"))
            case {"type": "content_block_start", "content_block": dict(block)}:
                self._begin(_index_of(event), {**block})
            case {"type": "content_block_delta", "delta": dict(delta)}:
                self._add(_index_of(event), delta)
            case {"type": "content_block_stop"}:
                self._by_index.pop(_index_of(event), None)
            case {"type": "message_delta", **rest}:
                ended = rest.get("delta")
                stop_reason = ended.get("stop_reason") if isinstance(ended, dict) else None
                self._reply |= {"stop_reason": stop_reason} if stop_reason else {}
                self._take_usage(rest.get("usage"))
            case {"type": "message_stop", **rest}:
                self._has_ended = True
                self._take_usage(rest.get("usage"))
            case {"type": "message", "content": _}:  # a whole reply as the one event
                self._reply, self._has_ended = {**event, "content": None}, True
                self._take_usage(event.get("usage"))
                blocks = event["content"]
                for block in blocks if isinstance(blocks, list) else [blocks]:
                    self._begin(None, {**block} if isinstance(block, dict) else {"type": "text", "text": block})
            case _:
                pass

    def reply(self, *, is_done: bool) -> JsonObject:
        """Return the whole reply. Raises BadProviderReply where the stream ended without saying so."""
        if not (is_done or self._has_ended):
            raise BadProviderReply(CUT_OFF, retryable=True)
        for block in self._blocks:
            pieces, name = "".join(block.pop("pieces", ())), _GROWING.get(str(block.get("type")), "text")
            if name == "input":
                block["input"] = pieces or block.get("input")
            elif pieces:
                block[name] = f"{block.get(name) or ''}{pieces}"
        return {**self._reply, "content": self._blocks, "usages": [self._usage or None, self._bad_usage]}

    def _begin(self, index: object, block: JsonObject) -> None:
        self._is_covered = False
        self._blocks.append(block)
        self._by_index[index] = block
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            self._exchange.hear(block["text"])

    def _add(self, index: object, delta: JsonObject) -> None:
        self._is_covered = False
        match delta:
            case {"text": str(text)}:
                self._block(index, "text").setdefault("pieces", []).append(text)
                self._exchange.hear(text)
            case {"thinking": str(text)}:
                self._block(index, "thinking").setdefault("pieces", []).append(text)
            case {"signature": str(signature)}:
                self._block(index, "thinking")["signature"] = signature
            case {"partial_json": str(piece)}:
                self._block(index, "tool_use").setdefault("pieces", []).append(piece)
            case _:
                pass

    def _block(self, index: object, kind: str) -> JsonObject:
        """Return the block of this kind that is under way at this index, or has begun last; else a new one."""
        block = self._by_index.get(index)
        if block is not None and block.get("type") == kind:
            return block
        for each in reversed(self._blocks):
            if each.get("type") == kind:
                return each
        self._begin(index, begun := {"type": kind})
        return begun

    def _take_usage(self, usage: object) -> None:
        """Merge a report: each is of all so far, and none has to name what has not changed."""
        if not isinstance(usage, dict):
            self._bad_usage = usage or self._bad_usage
            return
        self._is_covered = True
        for name, value in usage.items():
            before = self._usage.get(name)
            is_less = isinstance(before, int) and type(value) is int and 0 <= value < before
            if value is not None and not is_less:
                self._usage[name] = value


class ResponseFold:
    """Folds the events of a response of OpenAI's newer interface, whose last one holds the whole."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reply: JsonObject | None = None
        self._usages: list[object] = []
        self._has_begun = False

    def take(self, event: JsonObject) -> None:
        """Take an event. Raises ErrorInReply."""
        response = event.get("response")
        self._usages += [event.get("usage"), response.get("usage") if isinstance(response, dict) else None]
        match event:
            case {"type": "response.output_text.delta", "delta": str(text)}:
                self._has_begun = True
                self._exchange.hear(text)
            case {"type": "response.completed" | "response.incomplete" | "response.failed", "response": dict(response)}:
                self._reply = response
            case {"type": "error"} | {"error": dict() | str()}:
                is_covered = not self._has_begun  # only the last event has the usage, and there is none
                raise _end_in_error(
                    event, self._exchange, self._usages, has_begun=self._has_begun, is_covered=is_covered
                )
            case _:
                pass

    def reply(self, *, is_done: bool) -> JsonObject:
        """Return the whole reply. Raises BadProviderReply where the stream ended without it."""
        if self._reply is None:
            raise BadProviderReply(CUT_OFF, retryable=True)
        return self._reply
