"""What a planner run starts from: its prompts, the conversation so far, its tools, and how user prompts are filled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from string import Template

from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.messages import Conversation, JsonObject, Message, ToolSet
from kairos_mcp.core.steps import call_path
from kairos_mcp.core.text import count_of

MAX_CONTEXT_CHARS = 100_000  # more is an error, never a silent cut
MAX_EARLIER_SUMMARIES = 3
MAX_REPEATED_GOAL_CHARS = 500  # a longer one would weigh more than the results above it
USER_PLACEHOLDERS = ("goal", "context", "earlier")


def prompt_field(*placeholders: str) -> str:
    """Declare a text from the prompt file of the field's name that may use these `$placeholders`."""
    text: str = field(metadata={"placeholders": placeholders})
    return text


def later_prompt_field(*placeholders: str) -> str:
    """Declare a text that older specs lack: it is empty there, and changes nothing in their runs."""
    text: str = field(default="", metadata={"placeholders": placeholders})
    return text


@dataclass(frozen=True, slots=True)
class Prompts:
    """Every sentence that the loop itself says to a model; each comes from the prompt file of its name."""

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
    quoted: str = later_prompt_field("text")  # what a model wrote in an earlier step
    look_first: str = later_prompt_field()  # an answer without any look at a file is asked back
    goal_again: str = later_prompt_field("goal")  # reminder after results, for a small model

    @classmethod
    def load(cls, read: Callable[[str], str]) -> Prompts:
        """Read each prompt with `read(field)`. Raises ConfigError for an unknown placeholder."""
        texts = {prompt.name: read(prompt.name).strip() for prompt in fields(cls)}
        for prompt in fields(cls):
            check_template(prompt.name, texts[prompt.name], prompt.metadata["placeholders"])
        return cls(**texts)


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """Everything a planner run starts from. `history` is an earlier conversation, between system and user prompt.

    `looks_first`: a first answer without any tool call is asked back once. `repeated_goal`: of which a small model is
    reminded after results; empty for others. `counts_alike`: of an older spec, whose summaries say "1 calls".
    """

    system: str
    history: tuple[Message, ...]
    user: str
    tools: ToolSet
    output_schema: JsonObject | None
    context_tokens: int
    max_tokens: int
    prompts: Prompts
    looks_first: bool = False
    repeated_goal: str = ""
    counts_alike: bool = False

    def opening_conversation(self) -> Conversation:
        """Return what the first round is asked with: system prompt, history, user prompt."""
        system = (Message("system", self.system),) if self.system else ()
        return Conversation((*system, *self.history, self.goal))

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


def check_template(name: str, text: str, placeholders: Sequence[str]) -> None:
    """Raise ConfigError where a prompt file has a `$` that starts none of its placeholders."""
    template = Template(text)
    unknown = sorted(set(template.get_identifiers()) - set(placeholders))
    if unknown or not template.is_valid():
        found = ", ".join(f"${part}" for part in unknown) or "a single $"
        known = ", ".join(f"${part}" for part in placeholders) or "no placeholder"
        raise ConfigError(f"prompts/{name}.md has {found}.", f"It knows {known}; a plain $ is written $$.")


def render_prompt(template: str, **values: object) -> str:
    """Fill the placeholders of a prompt. Raises ValueError for a `$` that starts none, KeyError without its value."""
    pieces = [text if name is None else f"{text}{values[name]}" for text, name in _split_template(template)]
    return "".join(pieces)


def quote_model_text(template: str, text: str) -> str:
    """Quote what a model wrote, under the sentence of `prompts/quoted.md`. An empty text stays empty; without the
    template (older specs) the text is returned as it is."""
    return render_prompt(template, text=quote_lines(text)) if template and text else text


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
            raise BadArguments(
                f"messages: number {position} has role {message.role}, "
                + (f"but {len(waiting)} calls before it have no result." if waiting else "but no call waits for it."),
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
