"""Fold the chunks of a chat completion: texts, and calls whose pieces several servers number wrongly."""

from __future__ import annotations

from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.errors import error_of
from kairos_mcp.models.replies.exchange import BadProviderReply, Exchange
from kairos_mcp.models.replies.fold import CUT_OFF, end_in_error, index_of


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
        self._index: int | None = None  # of the answer, where its chunks say so

    def take(self, event: JsonObject) -> None:
        """Take a chunk. Raises ErrorInReply."""
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        if self._is_other_answer(choice):
            choice = {}
        groq = event.get("x_groq")
        usages = [event.get("usage"), choice.get("usage"), groq.get("usage") if isinstance(groq, dict) else None]
        self._usages += usages
        self._is_covered = any(usages) or (self._is_covered and not _has_piece(choice))
        if (error := error_of(event) or error_of(choice)) is not None:
            has_begun = bool(self._texts or self._calls)
            raise end_in_error(error, self._exchange, self._usages, has_begun=has_begun, is_covered=self._is_covered)
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

    def _is_other_answer(self, choice: JsonObject) -> bool:
        """Whether a chunk is of a further answer, which nobody asked for: the one that begins first is taken."""
        index = index_of(choice)
        self._index = index if self._index is None else self._index
        return index is not None and index != self._index

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
        index = index_of(piece)
        call = self._by_index.get(index) if index is not None else self._find_call(piece.get("id"))
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

    def _find_call(self, given_id: object) -> _Call | None:
        """Return the call with this id, or that has begun last: of a piece without an index."""
        named = (call for call in reversed(self._calls) if given_id and call.fields.get("id") == given_id)
        return next(named, self._calls[-1] if self._calls else None)


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
