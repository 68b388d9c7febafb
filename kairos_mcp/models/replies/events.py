"""Decode the events of a streamed reply, as lenient as its sender is careless."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.errors import error_of
from kairos_mcp.models.replies.exchange import BadProviderReply, refuse_many_values

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
        self._is_error = False  # the event is called so
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
        yield from self._end_event()

    def _take(self, line: bytes) -> Iterator[str | JsonObject]:
        if self._begins:
            line, self._begins = line.removeprefix(_BOM), False
        if not line.strip():
            yield from self._end_event()
            self._is_error = False
            return
        text = line.decode("utf-8", "replace")
        name, _, value = text.partition(":")
        match name:
            case "data" | "error":  # llama.cpp of before sent an error under that name
                text, self._is_error = value.strip(), self._is_error or name == "error"
            case "event":
                self._is_error = value.strip() == "error"
                return
            case _ if not text.startswith("{"):  # a comment, or a field that says nothing; some leave out `data:`
                return
        if text == DONE:
            yield from self._end_event()
            yield DONE
        elif self._is_error or not _HEARTBEAT.fullmatch(text):
            yield from self._take_data(text)

    def _take_data(self, text: str) -> Iterator[JsonObject]:
        """Yield the event as soon as it is one: some servers leave out the blank line after it."""
        self._data.append(text)
        if len(self._data) > MAX_EVENT_LINES:
            yield from self._end_event()
        if (event := _parse_object("\n".join(self._data))) is not None:
            self._data = []
            is_told = not self._is_error or error_of(event) is not None
            yield event if is_told else {"error": event}

    def _end_event(self) -> Iterator[JsonObject]:
        data, self._data = "\n".join(self._data), []
        if data.strip() and self._is_error:
            yield {"error": data}
        elif data:
            raise BadProviderReply("an event of it is not JSON", retryable=True)


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
