"""When a conversation is too long for its model, and how it is made shorter without losing the thread.

Kept: the system prompt, the goal, the newest messages. A call is never parted from its results, and the
originals stay in the record. Where somebody thinks, the middle becomes a summary; else its results become
refs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kairos_mcp.core.messages import Completion, Conversation, Message, canonical
from kairos_mcp.core.steps import Flow, RequestCompletion
from kairos_mcp.flows.planner_input import PlannerInput, Prompts, quote, quoted_lines, say

FULL_PERCENT = 92  # SYSTEMS.md P11
BYTES_A_TOKEN = 4
SUMMARY_TOKENS = 2_048


@dataclass(frozen=True, slots=True)
class ContextRoom:
    """How much of the context the next request will take, from what was last reported."""

    context_tokens: int  # the smallest seen
    beside: int  # bytes of tools and schema, which go with every request
    reported: int | None = None  # input tokens of the last answer of this conversation
    size: int = 0  # bytes of the conversation that it was given

    @classmethod
    def of(cls, brief: PlannerInput) -> ContextRoom:
        schema = 0 if brief.output_schema is None else len(canonical(brief.output_schema).encode())
        return cls(brief.context_tokens, brief.tools.size + schema)

    def after(self, turn: Completion, asked: Conversation) -> ContextRoom:
        """What the answer to `asked` tells; an estimate of the hands tells nothing that bytes don't."""
        context = min(self.context_tokens, turn.context_tokens or self.context_tokens)
        if turn.usage is None or turn.usage.exactness not in ("exact", "reported") or not turn.usage.input_tokens:
            return replace(self, context_tokens=context)
        return ContextRoom(context, self.beside, turn.usage.input_tokens, asked.size)

    def tokens(self, talk: Conversation) -> int:
        if self.reported is None:
            return (talk.size + self.beside) // BYTES_A_TOKEN
        return self.reported + (talk.size - self.size) // BYTES_A_TOKEN

    def is_full(self, talk: Conversation) -> bool:
        return self.tokens(talk) * 100 >= self.context_tokens * FULL_PERCENT

    def emptied(self) -> ContextRoom:
        """After a compaction: the last report was of another conversation."""
        return replace(self, reported=None, size=0)

    def beside_more(self, size: int) -> ContextRoom:
        """So many bytes more go with every request from now on, which the last report knew nothing of."""
        if not size:
            return self
        reported = None if self.reported is None else self.reported + size // BYTES_A_TOKEN
        return replace(self, beside=self.beside + size, reported=reported)

    def is_third_smaller(self, short: Conversation, talk: Conversation) -> bool:
        return 3 * (short.size + self.beside) <= 2 * (talk.size + self.beside)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The shorter conversation, and what was done for `degraded`."""

    talk: Conversation
    room: ContextRoom
    note: str


def compacted(name: str, talk: Conversation, brief: PlannerInput, room: ContextRoom) -> Flow[CompactionResult | None]:
    """Make the conversation shorter before the round `name`; None where it doesn't get a third smaller."""
    head, middle, tail = _parts(talk, brief, room)
    if not middle:
        return None
    asked = transcript(middle, room, quoted=bool(brief.prompts.quoted))
    answer = yield from RequestCompletion(
        f"{name}/compact",
        "compact",
        Conversation([Message("system", brief.prompts.compact), Message("user", asked)]),
        max_tokens=min(SUMMARY_TOKENS, brief.max_tokens),
    )
    match answer:
        case Completion(content=summary, unreadable=None, finish=None | "stop") if summary.strip():
            quoted = quote(brief.prompts.quoted, summary.strip())
            told = Message("user", say(brief.prompts.compacted, summary=quoted))
            short = Conversation([*head, told, *tail])
            note = f"Before {name} the middle of the conversation was replaced by the model's summary of it."
        case _:
            short = Conversation([*_shrunk(talk, len(talk) - len(tail), brief.prompts)])
            note = f"Before {name} older tool results were replaced by their refs."
    if not room.is_third_smaller(short, talk):
        return None
    return CompactionResult(short, room.emptied(), note)


def transcript(middle: Sequence[Message], room: ContextRoom, *, quoted: bool = True) -> str:
    """The middle as text, small beside the context: the first part (an earlier summary) and the newest ones. Each part
    is quoted, so that none can pass for another one; not so in runs of before.

    Its bound in characters is half the context in tokens: an eighth of the context in English, and still half
    of it in a script with one character a token.
    """
    bound = max(room.context_tokens // 2, 1_000)
    parts = [part for message in middle for part in _pieces(message)]
    pieces = [f"{heading}\n{quoted_lines(body) if quoted else body}" for heading, body in parts]
    most = max(bound // len(pieces), 160)
    first = _clipped(pieces[0], max(bound // 4, most))
    newest: list[str] = []
    left = bound - len(first)
    for piece in reversed(pieces[1:]):
        clipped = _clipped(piece, most)
        if len(clipped) > left:
            break
        left -= len(clipped)
        newest.append(clipped)
    left_out = len(pieces) - 1 - len(newest)
    return "\n\n".join([first, *([f"[{left_out} parts left out here]"] if left_out else []), *reversed(newest)])


_Messages = list[Message]


def _parts(talk: Conversation, brief: PlannerInput, room: ContextRoom) -> tuple[_Messages, _Messages, _Messages]:
    """Head, middle and tail. The tail is whole turns after the goal: at least one, else a third of all."""
    messages = list(talk)
    head = [message for message in messages[:1] if message.role == "system"]
    goal = messages.index(brief.goal)
    turns = list(_turns(messages[goal + 1 :]))
    most = min(room.context_tokens, talk.size // 3)
    tail: list[Message] = []
    while turns and (not tail or _size([*turns[-1], *tail]) <= most):
        tail = [*turns.pop(), *tail]
    middle = [*messages[len(head) : goal], *(message for turn in turns for message in turn)]
    return [*head, brief.goal], middle, tail


def _turns(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Messages in groups that may not be parted: a turn and the results of its calls."""
    group: list[Message] = []
    for message in messages:
        if group and message.role != "tool":
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _size(messages: Iterable[Message]) -> int:
    return sum(len(message.encoded()) for message in messages)


def _shrunk(talk: Conversation, older: int, prompts: Prompts) -> Iterator[Message]:
    """The conversation with a line in place of each result among its `older` first messages."""
    for position, message in enumerate(talk):
        if message.role != "tool" or position >= older:
            yield message
            continue
        ref = message.tool_call_id or ""
        template = prompts.shrunk_earlier if ref.startswith("earlier/") else prompts.shrunk
        line = say(template, chars=len(message.content), ref=ref)
        yield replace(message, content=line) if len(line) < len(message.content) else message


def _pieces(message: Message) -> Iterator[tuple[str, str]]:
    """The parts of a message, each with what stands above it."""
    if message.role == "tool":
        yield f"[result {message.tool_call_id}]", message.content
        return
    if message.content or not message.tool_calls:
        yield f"[{message.role}]", message.content
    for call in message.tool_calls:
        yield f"[call {call.id}]", f"{call.name} {canonical(call.arguments)}"


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [{len(text) - most} characters left out]"
