"""Compaction: notice when a conversation is too long for its model, and make it shorter without losing the thread.

The system prompt, the goal and the newest messages are kept, and a call is never separated from its results. The middle
becomes a summary by the model; without a usable summary, older results become references to the record, which keeps
every original.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kairos_mcp.core.messages import Completion, Conversation, Message, canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Flow, RequestCompletion
from kairos_mcp.flows.planner_input import PlannerInput, Prompts, quote_lines, quote_model_text, render_prompt

FULL_PERCENT = 92  # of the context, as estimated
BYTES_PER_TOKEN = 4
SUMMARY_TOKENS = 2_048


@dataclass(frozen=True, slots=True)
class ContextUsage:
    """An estimate of how much of the context the next request will take, based on the last reported usage."""

    context_tokens: int  # the smallest that any answer has reported
    overhead_bytes: int  # of tools and output schema, which go with every request
    reported_tokens: int | None = None  # input tokens of the last answer of this conversation
    reported_bytes: int = 0  # size of the conversation that was reported on

    @classmethod
    def at_start(cls, planner_input: PlannerInput) -> ContextUsage:
        schema = 0 if planner_input.output_schema is None else len(canonical_json(planner_input.output_schema).encode())
        return cls(planner_input.context_tokens, planner_input.tools.size + schema)

    def after_completion(self, turn: Completion, request: Conversation) -> ContextUsage:
        """Return the usage as the answer to `request` reports it.

        Tokens that this server only estimated are ignored: they say no more than the number of bytes does.
        """
        context = min(self.context_tokens, turn.context_tokens or self.context_tokens)
        if turn.usage is None or turn.usage.exactness not in ("exact", "reported") or not turn.usage.input_tokens:
            return replace(self, context_tokens=context)
        return ContextUsage(context, self.overhead_bytes, turn.usage.input_tokens, request.size)

    def estimate_tokens(self, conversation: Conversation) -> int:
        """Estimate the input tokens of a request with this conversation."""
        if self.reported_tokens is None:
            return (conversation.size + self.overhead_bytes) // BYTES_PER_TOKEN
        return self.reported_tokens + (conversation.size - self.reported_bytes) // BYTES_PER_TOKEN

    def is_full(self, conversation: Conversation) -> bool:
        """Whether a request with this conversation would come too close to the end of the context."""
        return self.estimate_tokens(conversation) * 100 >= self.context_tokens * FULL_PERCENT

    def after_compaction(self) -> ContextUsage:
        """Forget the last report: it was about another conversation."""
        return replace(self, reported_tokens=None, reported_bytes=0)

    def with_more_overhead(self, size: int) -> ContextUsage:
        """Add bytes that go with every request from now on, and that the last report did not include."""
        if not size:
            return self
        reported = None if self.reported_tokens is None else self.reported_tokens + size // BYTES_PER_TOKEN
        return replace(self, overhead_bytes=self.overhead_bytes + size, reported_tokens=reported)

    def is_third_smaller(self, shorter: Conversation, conversation: Conversation) -> bool:
        """Whether a request with `shorter` is at most two thirds of one with `conversation`."""
        return 3 * (shorter.size + self.overhead_bytes) <= 2 * (conversation.size + self.overhead_bytes)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The shorter conversation, and a note for the result's `degraded` list."""

    conversation: Conversation
    usage: ContextUsage
    note: str


def compact_conversation(
    name: str, conversation: Conversation, planner_input: PlannerInput, usage: ContextUsage
) -> Flow[CompactionResult | None]:
    """Make the conversation shorter before the round `name`; None where it can't be made at least a third smaller."""
    head, middle, tail = _split_conversation(conversation, planner_input, usage)
    if not middle:
        return None
    middle_text = render_transcript(middle, usage, quoted=bool(planner_input.prompts.quoted))
    answer = yield from RequestCompletion(
        f"{name}/compact",
        "compact",
        Conversation([Message("system", planner_input.prompts.compact), Message("user", middle_text)]),
        max_tokens=min(SUMMARY_TOKENS, planner_input.max_tokens),
    )
    match answer:
        case Completion(content=summary, unreadable=None, finish=None | "stop") if summary.strip():
            quoted = quote_model_text(planner_input.prompts.quoted, summary.strip())
            summary_message = Message("user", render_prompt(planner_input.prompts.compacted, summary=quoted))
            shorter = Conversation([*head, summary_message, *tail])
            note = f"Before {name} the middle of the conversation was replaced by the model's summary of it."
        case _:
            shorter = Conversation(
                [*_shrink_results(conversation, len(conversation) - len(tail), planner_input.prompts)]
            )
            note = f"Before {name} older tool results were replaced by their refs."
    if not usage.is_third_smaller(shorter, conversation):
        return None
    return CompactionResult(shorter, usage.after_compaction(), note)


def render_transcript(middle: Sequence[Message], usage: ContextUsage, *, quoted: bool = True) -> str:
    """Render the middle as text for the summary: its first part (an earlier summary) and its newest ones.

    Each part is quoted, so that none can pass for another (older specs lack the template, and stay unquoted). The limit
    in characters is half the context's tokens: an eighth of the context in English, and half of it in a script with one
    character per token.
    """
    limit = max(usage.context_tokens // 2, 1_000)
    parts = [part for message in middle for part in _message_parts(message)]
    pieces = [f"{heading}\n{quote_lines(body) if quoted else body}" for heading, body in parts]
    piece_limit = max(limit // len(pieces), 160)
    first = _clip_text(pieces[0], max(limit // 4, piece_limit))
    newest: list[str] = []
    left = limit - len(first)
    for piece in reversed(pieces[1:]):
        clipped = _clip_text(piece, piece_limit)
        if len(clipped) > left:
            break
        left -= len(clipped)
        newest.append(clipped)
    left_out = len(pieces) - 1 - len(newest)
    return "\n\n".join([first, *([f"[{left_out} parts left out here]"] if left_out else []), *reversed(newest)])


_Messages = list[Message]


def _split_conversation(
    conversation: Conversation, planner_input: PlannerInput, usage: ContextUsage
) -> tuple[_Messages, _Messages, _Messages]:
    """Return head, middle and tail. The tail is whole turns after the goal: at least one, and up to a third of all."""
    messages = list(conversation)
    head = [message for message in messages[:1] if message.role == "system"]
    goal = messages.index(planner_input.goal)
    turns = list(_group_by_turn(messages[goal + 1 :]))
    max_bytes = min(usage.context_tokens, conversation.size // 3)
    tail: list[Message] = []
    while turns and (not tail or _total_bytes([*turns[-1], *tail]) <= max_bytes):
        tail = [*turns.pop(), *tail]
    middle = [*messages[len(head) : goal], *(message for turn in turns for message in turn)]
    return [*head, planner_input.goal], middle, tail


def _group_by_turn(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Group messages that may not be separated: a turn with the results of its calls."""
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


def _shrink_results(conversation: Conversation, older: int, prompts: Prompts) -> Iterator[Message]:
    """Yield the conversation with one line in place of each result among its `older` first messages."""
    for position, message in enumerate(conversation):
        if message.role != "tool" or position >= older:
            yield message
            continue
        ref = message.tool_call_id or ""
        template = prompts.shrunk_earlier if ref.startswith("earlier/") else prompts.shrunk
        line = render_prompt(template, chars=len(message.content), ref=ref)
        yield replace(message, content=line) if len(line) < len(message.content) else message


def _message_parts(message: Message) -> Iterator[tuple[str, str]]:
    """Yield the parts of a message, each as its heading and its body."""
    if message.role == "tool":
        yield f"[result {message.tool_call_id}]", message.content
        return
    if message.content or not message.tool_calls:
        yield f"[{message.role}]", message.content
    for call in message.tool_calls:
        yield f"[call {call.id}]", f"{call.name} {canonical_json(call.arguments)}"


def _clip_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [{len(text) - limit} characters left out]"
