"""What a loop and a model exchange: messages, tool calls, results, completions, and the tools that are offered.

Values only: nothing here acts.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from hashlib import sha256
from typing import Any, Literal, overload

from pydantic_core import to_json

from kairos_mcp.core.effects import Effect, Reach
from kairos_mcp.core.quick_dataclass import dataclass

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]
Exactness = Literal["exact", "reported", "estimated", "bounded"]
JsonObject = dict[str, Any]


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Encode a JSON value with sorted keys and no spaces: equal values give equal texts."""
    return _CANONICAL.encode(value)  # one encoder: `json.dumps` makes a new one for each call


DIGEST_BYTES = 32  # of SHA-256


def digest_of(*parts: bytes | bytearray) -> bytes:
    """Return the SHA-256 over the parts, each preceded by its length, so that no two lists of parts collide."""
    joined = b""
    for part in parts:  # few and short: this is quicker than a join
        joined += len(part).to_bytes(8, "big") + part
    return sha256(joined).digest()


class _Digested:
    """Base of values that keep their digest once it is computed."""

    __slots__ = ("_digest",)
    _digest: bytes


@dataclass(frozen=True, slots=True)
class ToolCall(_Digested):
    """A tool call that a model asks for. `id` is the path of its step (`round-3/call-2`).

    If the model's arguments were not a JSON object, `unreadable` says so and `arguments` is empty. Such a call is
    answered with an error and never executed.
    """

    id: str
    name: str
    arguments: JsonObject = field(default_factory=dict)
    unreadable: str | None = None

    @property
    def digest(self) -> bytes:
        """Digest the tool's name and its arguments, without the id: equal calls have equal digests."""
        try:
            return self._digest
        except AttributeError:
            parts = (self.name, canonical_json(self.arguments), self.unreadable or "")
            digest = digest_of(*[part.encode() for part in parts])
            object.__setattr__(self, "_digest", digest)
            return digest

    def as_json(self) -> JsonObject:
        """Return the call as callers and people see it."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


def make_tool_call(call_id: str, name: str, arguments: object) -> ToolCall:
    """Return the call with the arguments that a model gave. It is unreadable if they are not a JSON object."""
    # The same reasons on every route, since they become part of the flow's next request.
    match arguments:
        case dict():
            return ToolCall(call_id, name, arguments)
        case str():
            return ToolCall(call_id, name, unreadable="the arguments are a text; a JSON object is needed")
        case _:
            return ToolCall(call_id, name, unreadable="the arguments are no JSON object")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call. `content` is what the model is shown; `code` one of the error codes in core/errors.py.

    A content that was too long for a conversation is kept whole in the store: `kept` is its hash, `chars` its
    full length in characters, and `content` its head and tail. `remark`
    quotes, in a sentence of ours, what the person said who approved the call; it is no part of the tool's output.
    """

    content: str
    is_error: bool = False
    data: Any = None
    code: str | None = None
    kept: str | None = None
    chars: int | None = None
    remark: str | None = None
    kind: Literal["result"] = "result"

    @property
    def digest(self) -> bytes:
        return digest_of(self.content.encode(), b"error" if self.is_error else b"", (self.kept or "").encode())


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `tool_call_id` belongs to role `tool`, `tool_calls` to role `assistant`."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def encode(self) -> bytes:
        calls = self.tool_calls and [
            (call.id, call.name, canonical_json(call.arguments), call.unreadable) for call in self.tool_calls
        ]
        return to_json((self.role, self.content, calls, self.tool_call_id))

    def as_json(self) -> JsonObject:
        """Return the message as callers and people see it, without absent fields."""
        shown: JsonObject = {"role": self.role, "content": self.content}
        if self.tool_calls:
            shown["tool_calls"] = [call.as_json() for call in self.tool_calls]
        return shown if self.tool_call_id is None else shown | {"tool_call_id": self.tool_call_id}


class _SharedHistory:
    """Messages shared by conversations, with the digest and the size in bytes of all messages up to each one."""

    __slots__ = ("digests", "messages", "sizes")

    def __init__(self, messages: list[Message], digests: bytearray, sizes: array[int]) -> None:
        self.messages, self.digests, self.sizes = messages, digests, sizes

    def append(self, message: Message) -> None:
        encoded = message.encode()
        size = self.sizes[-1] + len(encoded) if self.sizes else len(encoded)
        self.digests += digest_of(self.digests[-DIGEST_BYTES:], encoded)
        self.sizes.append(size)
        self.messages.append(message)


class Conversation(Sequence[Message]):
    """Messages as a value: a length over a shared history that only grows, so that another turn costs one message.

    Each message is encoded once, when it is added; the digest is folded over the digests before it, so that
    asking for it costs the same at any length. A second writer from the same point copies the history.
    """

    __slots__ = ("_history", "_length")

    def __init__(self, messages: Sequence[Message] = (), history: _SharedHistory | None = None) -> None:
        self._history = _SharedHistory([], bytearray(), array("q")) if history is None else history
        for message in messages:
            self._history.append(message)
        self._length = len(self._history.messages)

    def add(self, *messages: Message) -> Conversation:
        """Return the conversation with these messages added; this one stays unchanged."""
        history, length = self._history, self._length
        if len(history.messages) != length:  # another conversation went on from here
            history = _SharedHistory(
                history.messages[:length], history.digests[: DIGEST_BYTES * length], history.sizes[:length]
            )
        return Conversation(messages, history)

    @property
    def digest(self) -> bytes:
        return self.digest_at(self._length) or b""

    def digest_at(self, length: int) -> bytes | None:
        """Return the digest of the first `length` messages, or None where there are fewer."""
        if not 0 < length <= self._length:
            return None
        return bytes(self._history.digests[DIGEST_BYTES * (length - 1) : DIGEST_BYTES * length])

    @property
    def size(self) -> int:
        """Bytes of all messages, encoded."""
        return self.size_at(self._length)

    def size_at(self, length: int) -> int:
        """Return the bytes of the first `length` messages, encoded. There must be that many."""
        return self._history.sizes[length - 1] if length else 0

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return self._history.messages[: self._length][index]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._history.messages[index % self._length]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._history.messages[: self._length])


CALLER_SOURCE = "caller"  # the source of tools that a start brings along: its caller runs them


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it, and what the server must know about it: its effect class, category and source."""

    name: str
    description: str
    input_schema: JsonObject
    effect: Effect = "irreversible"
    category: str = "other"
    source: str = "builtin"
    reaches: Reach | None = None  # how far what a call takes along can get; None: nobody stated it
    trusted: bool = False  # nobody else wrote what it gives
    private: bool = True  # what it gives may not leave unasked
    texts: tuple[str, ...] | None = None  # arguments that are text which goes along, beside those of usual names

    @property
    def is_caller_tool(self) -> bool:
        """Whether it is a tool of the caller's own: no code of ours runs it."""
        return self.source == CALLER_SOURCE


class ToolSet(Sequence[ToolSpec]):
    """The tools offered in one request, in order; encoded and digested once, when the set is made."""

    __slots__ = ("_by_name", "_specs", "digest", "size")

    def __init__(self, specs: Sequence[ToolSpec] = ()) -> None:
        self._specs = tuple(specs)
        self._by_name = {spec.name: spec for spec in self._specs}
        encoded = canonical_json([[s.name, s.description, s.input_schema, s.effect] for s in self._specs]).encode()
        self.digest = digest_of(encoded)
        self.size = len(encoded)

    def find(self, name: str) -> ToolSpec | None:
        return self._by_name.get(name)

    @overload
    def __getitem__(self, index: int) -> ToolSpec: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ToolSpec, ...]: ...
    def __getitem__(self, index: int | slice) -> ToolSpec | tuple[ToolSpec, ...]:
        return self._specs[index]

    def __len__(self) -> int:
        return len(self._specs)

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._specs)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one completion as its route reported them, or as we estimated or bounded them (`exactness`)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    nano_usd: int = 0
    exactness: Exactness = "reported"


@dataclass(frozen=True, slots=True)
class Private:
    """A provider's own JSON (thinking signatures, ids): sent back to `origin` alone, never hashed or shown."""

    origin: str
    body: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. `finish` is None where the route states none; `usage` is None where it reports none.

    `context_tokens` is the context of the route that answered, where known. `unreadable` says why a reply could
    not be parsed; its raw text is then the content. `model`: the host's name of the model that answered.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish | None = None
    usage: Usage | None = None
    context_tokens: int | None = None
    unreadable: str | None = None
    private: Private | None = None
    model: str | None = None
    kind: Literal["completion"] = "completion"

    def with_turn(self, content: str, calls: tuple[ToolCall, ...], finish: Finish | None) -> Completion:
        """Return the answer with this turn in place of its own. It takes a third of the time of `replace`."""
        rest = self.usage, self.context_tokens, self.unreadable, self.private, self.model
        return Completion(content, calls, finish, *rest)


SEARCH = "registry_search"
_FIELDS = ToolSpec.__slots__


def add_discovered_tools(offered: ToolSet, results: Iterable[tuple[str, object]]) -> ToolSet:
    """Add the tools that a search has found to those offered; return the same set where it found nothing new.

    `results`: the names of the tools that were called, each with the answer. Only our own search widens an offer: a
    caller's tool or one from outside may give back whatever it likes.
    """
    search = offered.find(SEARCH)
    if search is None or search.source != "builtin":
        return offered
    found: dict[str, ToolSpec] = {}
    for name, answer in results:
        if name == SEARCH and isinstance(answer, ToolResult):
            found |= {spec.name: spec for spec in discovered_tools(answer) if offered.find(spec.name) is None}
    return ToolSet((*offered, *found.values())) if found else offered


def discovered_tools(result: ToolResult) -> tuple[ToolSpec, ...]:
    """Return the specs in the recorded result of a search; none for any other result."""
    offer = result.data.get("offer") if isinstance(result.data, dict) else None
    offered = (tool for tool in offer or () if isinstance(tool, dict))
    return tuple(ToolSpec(**{name: tool[name] for name in _FIELDS if name in tool}) for tool in offered)
