"""What a planner asks its model with: prompts, the first messages, and a long conversation, made shorter.

A conversation that fills the context of its model is compacted without losing the thread. The system prompt, the goal
and the newest messages are kept, and a call is never separated from its results. The middle becomes a summary by the
model; without a usable summary, older results become references to the record, which keeps every original.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from string import Template

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import Completion, Conversation, JsonObject, Message, ToolSet, canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Flow, RequestCompletion, call_path
from kairos_mcp.core.text import count_of
from kairos_mcp.flows.prompt_texts import PromptTexts, check_template, prompt_field

MAX_CONTEXT_CHARS = 100_000  # more is an error, never a silent cut
MAX_EARLIER_SUMMARIES = 3
MAX_REPEATED_GOAL_CHARS = 500  # a longer one would weigh more than the results above it
USER_PLACEHOLDERS = ("goal", "context", "earlier")


@dataclass(frozen=True, slots=True)
class Prompts(PromptTexts):
    """Every sentence that the loop itself says to a model; each file has its field's name."""

    closing: str = prompt_field("limit")  # a limit was reached: write the summary
    stalled: str = prompt_field("tool")  # the same call gave the same result five times: write the summary
    stall: str = prompt_field("tool", "times")  # reminder: you are repeating a call
    failures: str = prompt_field()  # reminder: the calls of two turns have failed
    unreadable: str = prompt_field("reason")
    truncated: str = prompt_field()
    empty: str = prompt_field()
    repair: str = prompt_field("problems")  # the final text does not fit the schema
    compact: str = prompt_field()  # the system prompt of a summary of the middle
    compacted: str = prompt_field("summary")  # how that summary stands in the conversation
    shrunk: str = prompt_field("chars", "ref")  # in place of an older result
    shrunk_earlier: str = prompt_field("chars")  # in place of a result of an earlier run, which has no ref here
    outside: str = prompt_field("tool", "call")  # the one line above each result
    quoted: str = prompt_field("text")  # what a model wrote in an earlier step
    look_first: str = prompt_field()  # an answer without any look at a file is asked back
    goal_again: str = prompt_field("goal")  # reminder after results, for a small model

    @classmethod
    def files(cls) -> dict[str, str]:
        return {each.name: each.name for each in fields(cls)}


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """Everything a planner run starts from. `history` is an earlier conversation, between system and user prompt.

    `asks_at_limit`: a person is asked whether the run may have more, before a limit of its own ends it.
    `asks_back`: a first answer without any tool call is asked back once. `repeated_goal`: of which a small model is
    reminded after results; empty for others.
    `has_goal`: the user prompt is a message of `history` already, where a run goes on at a round without a new turn.
    `submits`: the run works in a stage, and submits at its end what is left in it.
    """

    system: str
    history: tuple[Message, ...]
    user: str
    tools: ToolSet
    output_schema: JsonObject | None
    context_tokens: int
    max_tokens: int
    prompts: Prompts
    asks_back: bool = False
    asks_at_limit: bool = False
    repeated_goal: str = ""
    has_goal: bool = False
    submits: bool = False

    def opening_conversation(self) -> Conversation:
        """Return what the first round is asked with: system prompt, history, user prompt."""
        system = (Message("system", self.system),) if self.system else ()
        return Conversation((*system, *self.opening_messages))

    @property
    def opening_messages(self) -> tuple[Message, ...]:
        """The opening conversation without the system prompt."""
        return self.history if self.has_goal else (*self.history, self.goal)

    @property
    def goal(self) -> Message:
        """The user prompt as a message."""
        return Message("user", self.user)

    def goal_reminder(self, conversation: Conversation) -> str | None:
        """Return the goal, said again after the newest results, where a small model has it far above them."""
        if not self.prompts.goal_again or not 0 < len(self.repeated_goal) <= MAX_REPEATED_GOAL_CHARS:
            return None
        is_after_results = conversation[-1].role == "tool"
        return render_prompt(self.prompts.goal_again, goal=self.repeated_goal) if is_after_results else None


def render_prompt(template: str, **values: object) -> str:
    """Fill the placeholders of a prompt. Raises ValueError for a `$` that starts none, KeyError without its value."""
    pieces = [text if name is None else f"{text}{values[name]}" for text, name in _split_template(template)]
    return "".join(pieces)


def quote_model_text(template: str, text: str) -> str:
    """Quote what a model wrote, under the sentence of `prompts/quoted.md`. An empty text stays empty."""
    return render_prompt(template, text=quote_lines(text)) if text else text


def quote_lines(text: str) -> str:
    """Put `>` before each line, whatever character ends it, so that no line of the text can pass for a part of the
    prompt around it."""
    return "\n".join(f"> {line}" if line else ">" for line in text.splitlines())


@lru_cache(maxsize=64)  # the `outside` prompt is filled for every result
def _split_template(template: str) -> tuple[tuple[str, str | None], ...]:
    """Split a prompt into the text before each placeholder with the placeholder's name, and the rest with None."""
    pieces: list[tuple[str, str | None]] = []
    text, end = "", 0
    for found in Template.pattern.finditer(template):
        text, end = text + template[end : found.start()], found.end()
        name = found["named"] or found["braced"]
        if name is not None:
            pieces.append((text, name))
            text = ""
        elif found["escaped"] is not None:
            text += "$"
        else:
            raise ValueError("A single $ stands in a prompt.")
    return (*pieces, (text + template[end:], None))


def render_user_prompt(template: str, goal: str, context: str | None = None, earlier: Sequence[str] = ()) -> str:
    """Fill the user prompt: `$goal`, `$context`, and the newest three of the `earlier` summaries as `$earlier`.

    Raises BadArguments where `context` is longer than 100,000 characters.
    """
    if context is not None and len(context) > MAX_CONTEXT_CHARS:
        raise BadArguments(
            f"context has {len(context)} characters; {MAX_CONTEXT_CHARS} are allowed.",
            "Put it into files of the workspace and let the run read what it needs.",
        )
    newest = [quote_lines(summary.strip()) for summary in earlier if summary.strip()][-MAX_EARLIER_SUMMARIES:]
    values = {
        "goal": goal.strip(),
        "context": quote_lines((context or "").strip()),
        "earlier": "\n\n".join(f"{n}.\n{summary}" for n, summary in enumerate(newest, 1)),
    }
    check_template("planner-user", template, USER_PLACEHOLDERS)
    return render_sections(template, **values)


def render_sections(template: str, **values: str) -> str:
    """Fill a user prompt. A section (from one `## ` heading to the next) whose placeholders are all empty is left out.

    The template is split before it is filled, so no value can begin a section.
    """
    sections = [Template(section) for section in re.split(r"(?m)^(?=## )", template)]
    kept = [s for s in sections if not (names := s.get_identifiers()) or any(values[name] for name in names)]
    return "\n\n".join(text for s in kept if (text := s.substitute(values).strip()))


def normalize_history(history: Sequence[Message]) -> tuple[Message, ...]:
    """Make a conversation from outside, or of an earlier run, fit to continue: call ids become `earlier/call-N`.

    Raises BadArguments where a call is not answered exactly once, in order, right after its turn.
    """
    normalized: list[Message] = []
    waiting: list[tuple[str, str]] = []  # (id as given, new id), oldest first
    count = 0
    for position, message in enumerate(history, 1):
        if (message.role == "tool") != bool(waiting):
            open_calls = (
                f"{count_of(len(waiting), 'call')} before it {'has' if len(waiting) == 1 else 'have'} no result"
            )
            raise BadArguments(
                f"messages: number {position} has role {message.role}, "
                f"but {open_calls if waiting else 'no call waits for it'}.",
                "After an assistant turn with tool_calls comes one tool message for each call, in order.",
            )
        if message.role == "tool":
            given_id, new_id = waiting.pop(0)
            if message.tool_call_id != given_id:
                raise BadArguments(
                    f"messages: number {position} does not answer the oldest open call.",
                    "Give the results in the order of the calls.",
                )
            normalized.append(replace(message, tool_call_id=new_id))
            continue
        calls = []
        for call in message.tool_calls:
            count += 1
            waiting.append((call.id, call_path("earlier", count)))
            calls.append(replace(call, id=waiting[-1][1]))
        normalized.append(replace(message, tool_calls=tuple(calls)))
    if waiting:
        raise BadArguments(
            f"messages: no result for the last {count_of(len(waiting), 'call')}.", "Add a tool message for each."
        )
    return tuple(normalized)


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
    name: str,
    conversation: Conversation,
    planner_input: PlannerInput,
    usage: ContextUsage,
    *,
    was_too_long: bool = False,
) -> Flow[CompactionResult | str]:
    """Make the conversation shorter before the round `name`. Returns why it can't be made at least a third smaller,
    where that is so.

    `was_too_long`: the model's server has refused it, so that even a result which nobody has seen yet becomes its ref.
    """
    head, middle, tail = _split_conversation(conversation, planner_input, usage)
    if not middle:
        if not was_too_long:
            return _why_not_shortened(conversation, planner_input)
        shorter = Conversation([*_shrink_results(conversation, len(conversation), planner_input.prompts)])
        note = f"Before {name} tool results that were too long for the model's context were replaced by their refs."
        if not usage.is_third_smaller(shorter, conversation):
            return _why_not_shortened(conversation, planner_input)
        return CompactionResult(shorter, usage.after_compaction(), note)
    middle_text = render_transcript(middle, usage)
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
        return _why_not_shortened(conversation, planner_input)
    return CompactionResult(shorter, usage.after_compaction(), note)


def _why_not_shortened(conversation: Conversation, planner_input: PlannerInput) -> str:
    """Say why a conversation stays as long as it is, and what makes it shorter."""
    kept = "its first messages and its newest turn are kept whole, and are most of it"
    if conversation[-1] == planner_input.goal:
        kept = "the model has not answered yet, so there are only the prompt, the goal and its material"
    return (
        f"Nothing could be shortened for a context of {planner_input.context_tokens} tokens (context_tokens): {kept}. "
        "Give less in goal, context and messages, offer fewer tools, or take a model with a larger context."
    )


def render_transcript(middle: Sequence[Message], usage: ContextUsage) -> str:
    """Render the middle as text for the summary: its first part (an earlier summary) and its newest ones.

    Each part is quoted, so that none can pass for another. The limit in characters is half the context's tokens: an
    eighth of the context in English, and half of it in a script with one character per token.
    """
    limit = max(usage.context_tokens // 2, 1_000)
    parts = [part for message in middle for part in _message_parts(message)]
    pieces = [f"{heading}\n{quote_lines(body)}" for heading, body in parts]
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
    while turns and (not tail or sum(len(message.encode()) for message in (*turns[-1], *tail)) <= max_bytes):
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
