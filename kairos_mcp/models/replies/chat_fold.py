"""Fold the chunks of a chat completion: texts, and calls whose pieces several servers number wrongly."""

from __future__ import annotations

from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.calls import arguments_of, calls_of, function_of, is_call_block
from kairos_mcp.models.replies.errors import error_of, read_error
from kairos_mcp.models.replies.exchange import BadProviderReply, ErrorInReply, Exchange
from kairos_mcp.models.replies.fold import REPEATS, cut_off, end_in_error, index_of
from kairos_mcp.models.replies.layout import find_choice, finish_of, held_in, unwrap_reply, usages_of
from kairos_mcp.models.replies.pieces import ArgumentPieces, GrowingText


class _Call:
    """A call as its pieces come."""

    def __init__(self, fields: JsonObject) -> None:
        self.fields = fields
        self.name = ""
        self.arguments = ArgumentPieces()
        self._whole: Any = None  # arguments that came as an object

    @property
    def is_complete(self) -> bool:
        return self._whole is not None or self.arguments.is_complete

    def add(self, arguments: object) -> None:
        """Add a piece of the arguments, or all of them."""
        if isinstance(arguments, str):
            self.arguments.add(arguments)
        else:
            self._whole = arguments or self._whole

    def as_json(self) -> JsonObject:
        arguments = self.arguments.text() if self._whole is None else self._whole
        return {**self.fields, "function": {"name": self.name, "arguments": arguments}}


class ChatFold:
    """Folds the chunks of a chat completion."""

    has_ended = False  # only DONE says that no usage follows

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._hearing = _AnswerListener(exchange)
        self._head: JsonObject = {}
        self._texts: dict[str, GrowingText] = {}
        self._details: list[Any] = []
        self._calls: list[_Call] = []
        self._by_index: dict[Any, _Call] = {}
        self._usages: list[object] = []
        self._is_covered = True  # by the last report, which counts the pieces of its own chunk
        self._finish: object = None
        self._index: int | None = None  # of the answer, where its chunks say so
        self._said: JsonObject | None = None  # an event without an answer that says something

    def take(self, event: JsonObject) -> None:
        """Take a chunk. Raises ErrorInReply."""
        event = unwrap_reply(event)
        choice = find_choice(event)
        index = index_of(choice)
        self._index = index if self._index is None else self._index
        if index is not None and index != self._index:  # of a further answer, which nobody asked for
            choice = {}
        usages = list(usages_of(event, choice))
        self._usages += usages
        held = held_in(choice, "delta") or held_in(choice, "message")
        has_piece = bool(choice.get("text") or choice.get("tool_calls")) or _is_said(held)  # and not the role alone
        self._is_covered = any(usages) or (self._is_covered and not has_piece)
        if (error := error_of(event) or error_of(choice)) is not None:
            raise self._end_in(error)
        for name in ("id", "model", "created"):
            if event.get(name) and not self._head.get(name):
                self._head[name] = event[name]
        self._finish = finish_of(event, choice) or self._finish
        delta, message = held_in(choice, "delta"), held_in(choice, "message")
        if _is_said(delta) or not message:
            self._take_delta(delta or {"content": choice.get("text")}, (delta, choice, event))
        else:  # the whole; perhaps some of it has come
            new = {name: value for name, value in message.items() if name not in self._texts}
            self._take_delta(new, () if self._calls else (message, choice, event))
        if not choice and read_error(event).words:
            self._said = event

    def reply(self, *, is_done: bool) -> JsonObject:
        """Return the whole reply. Raises BadProviderReply where the stream ended without saying so."""
        has_come = bool(self._texts or self._calls or self._finish)
        if not (is_done or self._finish):
            raise BadProviderReply(cut_off(self._said), retryable=True)
        if self._said is not None and not has_come:
            raise self._end_in(self._said)
        for text in self._texts.values():
            text.end()
        self._hearing.end()
        if any(text.repeats for text in self._texts.values()):
            self._exchange.note_repair(REPEATS)
        message: JsonObject = {name: str(text) for name, text in self._texts.items()}
        message |= {"reasoning_details": self._details} if self._details else {}
        message["tool_calls"] = [call.as_json() for call in self._calls]
        if not has_come:
            return {**self._head, "choices": [], "usages": self._usages}
        choice = {"message": message, "finish_reason": self._finish}
        return {**self._head, "choices": [choice], "usages": self._usages}

    def _end_in(self, error: object) -> ErrorInReply:
        has_begun = bool(self._texts or self._calls)
        return end_in_error(error, self._exchange, self._usages, has_begun=has_begun, is_covered=self._is_covered)

    def _take_delta(self, delta: JsonObject, holders: tuple[JsonObject, ...]) -> None:
        """Take a piece. `holders`: in which its calls may be."""
        for name in ("content", "refusal", "reasoning_content", "reasoning", "thinking"):
            self._take_text(name, delta.get(name))
        if isinstance(details := delta.get("reasoning_details"), list):
            self._details += details
        for piece in calls_of(holders):
            self._take_call(piece)

    def _take_text(self, name: str, piece: object) -> None:
        parts = piece if isinstance(piece, list) else [piece]
        for part in parts:
            match part:
                case str() if part:
                    if name not in self._texts:
                        self._texts[name] = GrowingText(self._hearing.hear) if name == "content" else GrowingText()
                    self._texts[name].add(part)
                case {"type": "thinking" | "reasoning", **rest}:
                    for value in rest.values():
                        self._take_text("reasoning_content", value)
                case {"text": str(text)} if not is_call_block(part):
                    self._take_text(name, text)
                case _:
                    pass

    def _take_call(self, piece: JsonObject) -> None:
        """Take a piece of a call: of one that is under way, or of a new one."""
        function = function_of(piece)
        name = given if isinstance(given := function.get("name"), str) else ""
        index = index_of(piece)
        call = self._by_index.get(index) if index is not None else self._find_call(piece.get("id"))
        if call is None:  # an index alone begins no call
            call = self._find_begun(piece.get("id"), name)
        if call is None or _begins_another(call, piece.get("id"), name):
            call = _Call({key: piece[key] for key in ("id", "extra_content") if piece.get(key)})
            self._calls.append(call)
        self._by_index[index] = call
        call.name = name if name.startswith(call.name) else call.name + name  # all of it once more, or a piece
        if piece.get("extra_content"):
            call.fields["extra_content"] = piece["extra_content"]
        if piece.get("id") and not call.fields.get("id"):
            call.fields["id"] = piece["id"]
        call.add(arguments_of(function))

    def _find_call(self, given_id: object) -> _Call | None:
        """Return the call with this id, or that has begun last: of a piece without an index."""
        named = (call for call in reversed(self._calls) if given_id and call.fields.get("id") == given_id)
        return next(named, self._calls[-1] if self._calls else None)

    def _find_begun(self, given_id: object, name: str) -> _Call | None:
        """Return the unfinished call that a piece under a further index goes on with: one of its id, or one unnamed."""
        call = self._find_call(given_id)
        is_same = call is not None and (call.fields.get("id") == given_id if given_id else not name)
        return call if call is not None and is_same and not call.is_complete else None


def _is_said(held: JsonObject) -> bool:
    return any(value for name, value in held.items() if name != "role")


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
