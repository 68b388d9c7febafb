"""When a conversation is too long for its model, and how it is made shorter without losing the thread.

Kept: the system prompt, the goal, the newest messages. A call is never parted from its results, and the
originals stay in the record. Where somebody thinks, the middle becomes a summary; else its results become
refs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kairos_mcp.core.messages import Completion, Conversation, Message, canonical_json
from kairos_mcp.core.steps import Flow, RequestCompletion
from kairos_mcp.flows.planner_input import PlannerInput, Prompts, quote_lines, quote_model_text, render_prompt

FULL_PERCENT = 92  # SYSTEMS.md P11
BYTES_PER_TOKEN = 4
SUMMARY_TOKENS = 2_048


@dataclass(frozen=True, slots=True)
class ContextUsage:
    """How much of the context the next request will take, from what was last reported."""

    context_tokens: int  # the smallest seen
    overhead_bytes: int  # bytes of tools and schema, which go with every request
    reported_tokens: int | None = None  # input tokens of the last answer of this conversation
    reported_bytes: int = 0  # bytes of the conversation that it was given

    @classmethod
    def at_start(cls, brief: PlannerInput) -> ContextUsage:
        schema = 0 if brief.output_schema is None else len(canonical_json(brief.output_schema).encode())
        return cls(brief.context_tokens, brief.tools.size + schema)

    def after_completion(self, turn: Completion, asked: Conversation) -> ContextUsage:
        """What the answer to `asked` tells; an estimate of the hands tells nothing that bytes don't."""
        context = min(self.context_tokens, turn.context_tokens or self.context_tokens)
        if turn.usage is None or turn.usage.exactness not in ("exact", "reported") or not turn.usage.input_tokens:
            return replace(self, context_tokens=context)
        return ContextUsage(context, self.overhead_bytes, turn.usage.input_tokens, asked.size)

    def estimate_tokens(self, talk: Conversation) -> int:
        if self.reported_tokens is None:
            return (talk.size + self.overhead_bytes) // BYTES_PER_TOKEN
        return self.reported_tokens + (talk.size - self.reported_bytes) // BYTES_PER_TOKEN

    def is_full(self, talk: Conversation) -> bool:
        return self.estimate_tokens(talk) * 100 >= self.context_tokens * FULL_PERCENT

    def after_compaction(self) -> ContextUsage:
        """After a compaction: the last report was of another conversation."""
        return replace(self, reported_tokens=None, reported_bytes=0)

    def with_more_overhead(self, size: int) -> ContextUsage:
        """So many bytes more go with every request from now on, which the last report knew nothing of."""
        if not size:
            return self
        reported = None if self.reported_tokens is None else self.reported_tokens + size // BYTES_PER_TOKEN
        return replace(self, overhead_bytes=self.overhead_bytes + size, reported_tokens=reported)

    def is_third_smaller(self, short: Conversation, talk: Conversation) -> bool:
        return 3 * (short.size + self.overhead_bytes) <= 2 * (talk.size + self.overhead_bytes)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The shorter conversation, and what was done for `degraded`."""

    conversation: Conversation
    usage: ContextUsage
    note: str


def compact_conversation(
    name: str, conversation: Conversation, planner_input: PlannerInput, usage: ContextUsage
) -> Flow[CompactionResult | None]:
    """Make the conversation shorter before the round `name`; None where it doesn't get a third smaller."""
    head, middle, tail = _split_conversation(conversation, planner_input, usage)
    if not middle:
        return None
    asked = render_transcript(middle, usage, quoted=bool(planner_input.prompts.quoted))
    answer = yield from RequestCompletion(
        f"{name}/compact",
        "compact",
        Conversation([Message("system", planner_input.prompts.compact), Message("user", asked)]),
        max_tokens=min(SUMMARY_TOKENS, planner_input.max_tokens),
    )
    match answer:
        case Completion(content=summary, unreadable=None, finish=None | "stop") if summary.strip():
            quoted = quote_model_text(planner_input.prompts.quoted, summary.strip())
            told = Message("user", render_prompt(planner_input.prompts.compacted, summary=quoted))
            short = Conversation([*head, told, *tail])
            note = f"Before {name} the middle of the conversation was replaced by the model's summary of it."
        case _:
            short = Conversation([*_shrink_results(conversation, len(conversation) - len(tail), planner_input.prompts)])
            note = f"Before {name} older tool results were replaced by their refs."
    if not usage.is_third_smaller(short, conversation):
        return None
    return CompactionResult(short, usage.after_compaction(), note)


def render_transcript(middle: Sequence[Message], usage: ContextUsage, *, quoted: bool = True) -> str:
    """The middle as text, small beside the context: the first part (an earlier summary) and the newest ones. Each part
    is quoted, so that none can pass for another one; not so in runs of before.

    Its bound in characters is half the context in tokens: an eighth of the context in English, and still half
    of it in a script with one character a token.
    """
    bound = max(usage.context_tokens // 2, 1_000)
    parts = [part for message in middle for part in _message_parts(message)]
    pieces = [f"{heading}\n{quote_lines(body) if quoted else body}" for heading, body in parts]
    most = max(bound // len(pieces), 160)
    first = _clip_text(pieces[0], max(bound // 4, most))
    newest: list[str] = []
    left = bound - len(first)
    for piece in reversed(pieces[1:]):
        clipped = _clip_text(piece, most)
        if len(clipped) > left:
            break
        left -= len(clipped)
        newest.append(clipped)
    left_out = len(pieces) - 1 - len(newest)
    return "\n\n".join([first, *([f"[{left_out} parts left out here]"] if left_out else []), *reversed(newest)])


_Messages = list[Message]


def _split_conversation(
    talk: Conversation, brief: PlannerInput, room: ContextUsage
) -> tuple[_Messages, _Messages, _Messages]:
    """Head, middle and tail. The tail is whole turns after the goal: at least one, else a third of all."""
    messages = list(talk)
    head = [message for message in messages[:1] if message.role == "system"]
    goal = messages.index(brief.goal)
    turns = list(_group_by_turn(messages[goal + 1 :]))
    most = min(room.context_tokens, talk.size // 3)
    tail: list[Message] = []
    while turns and (not tail or _total_bytes([*turns[-1], *tail]) <= most):
        tail = [*turns.pop(), *tail]
    middle = [*messages[len(head) : goal], *(message for turn in turns for message in turn)]
    return [*head, brief.goal], middle, tail


def _group_by_turn(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Messages in groups that may not be parted: a turn and the results of its calls."""
    group: list[Message] = []
    for message in messages:
        if group and message.role != "tool":
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _total_bytes(messages: Iterable[Message]) -> int:
    return sum(len(message.encode()) for message in messages)


def _shrink_results(talk: Conversation, older: int, prompts: Prompts) -> Iterator[Message]:
    """The conversation with a line in place of each result among its `older` first messages."""
    for position, message in enumerate(talk):
        if message.role != "tool" or position >= older:
            yield message
            continue
        ref = message.tool_call_id or ""
        template = prompts.shrunk_earlier if ref.startswith("earlier/") else prompts.shrunk
        line = render_prompt(template, chars=len(message.content), ref=ref)
        yield replace(message, content=line) if len(line) < len(message.content) else message


def _message_parts(message: Message) -> Iterator[tuple[str, str]]:
    """The parts of a message, each with what stands above it."""
    if message.role == "tool":
        yield f"[result {message.tool_call_id}]", message.content
        return
    if message.content or not message.tool_calls:
        yield f"[{message.role}]", message.content
    for call in message.tool_calls:
        yield f"[call {call.id}]", f"{call.name} {canonical_json(call.arguments)}"


def _clip_text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [{len(text) - most} characters left out]"
