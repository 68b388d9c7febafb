"""What is in view of a run before its first step: what the person said, and what was handed in beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from kairos_mcp.core.flow import Row
from kairos_mcp.core.messages import Message, ToolResult, canonical_json
from kairos_mcp.core.run_spec import FrozenFork, FrozenTeam, Spec, TakenOver
from kairos_mcp.store.rows import decode, decode_answer

SAID = "you"


def opening_rows(spec: Spec, text_of: Callable[[str], str]) -> tuple[Row, ...]:
    """Return the rows that a run begins with. Whoever starts it counts as the person, since nobody can tell them apart;
    what a run is given as material is foreign and private, and what it takes over from another is whose it was there.
    `text_of` reads a text by its hash."""
    read = _Texts(text_of)
    return (
        _said_row("goal", spec.goal),
        *(() if spec.arguments is None else (_said_row("arguments", canonical_json(spec.arguments)),)),
        *map(partial(_said_row, "mandate"), read.text(spec.mandate_text)),
        *_prompt_rows(spec, read),
        *_history_rows(spec, read),
        *_team_rows(spec, read),
        *map(partial(_material, "given", "the phase before"), read.text(spec.given_text)),
        *map(
            partial(_material, "lessons", "lessons of earlier runs"),
            filter(_has_lessons, read.text(spec.carried_over_text)),
        ),
        *_fork_rows(spec, read),
    )


def has_material(spec: Spec) -> bool:
    """Whether a run begins with more in view than the person's words."""
    refs = (spec.opens_with, spec.history_text, spec.team_text, spec.given_text, spec.carried_over_text, spec.fork_text)
    return any(ref is not None for ref in refs)


class _Texts:
    def __init__(self, text_of: Callable[[str], str]) -> None:
        self._text_of = text_of

    def text(self, content_hash: str | None) -> tuple[str, ...]:
        """Return the text, or nothing where the spec has none."""
        return () if content_hash is None else (self._text_of(content_hash),)


def _has_lessons(carried_over: str) -> bool:
    """Whether earlier runs of the mandate left lessons or effects; its first run begins with empty lists."""
    return any(decode(dict[str, list[object]], carried_over).values())


def _prompt_rows(spec: Spec, read: _Texts) -> Iterator[Row]:
    """Yield the user prompt, where it holds more than the goal; with summaries of earlier runs it is as their words."""
    for text in read.text(spec.user_text if spec.opens_with is not None else None):
        if spec.opens_with == "earlier" and (whose := _whose_messages(spec, read)):
            yield _taken_over("context", whose[0], text)
        else:
            yield _material("context", "the context", text, is_trusted=spec.opens_with == "files")


def _whose_messages(spec: Spec, read: _Texts) -> list[TakenOver]:
    """Return whose the messages are that are taken over: the first one is a prompt."""
    return [each for text in read.text(spec.whose_text) for each in decode(tuple[TakenOver, ...], text)]


def _history_rows(spec: Spec, read: _Texts) -> Iterator[Row]:
    for text in read.text(spec.history_text):
        messages: tuple[Message, ...] = decode(tuple[Message, ...], text)
        whose = _whose_messages(spec, read)
        for n, message in enumerate(messages, 1):
            if n <= len(whose):
                yield _taken_over(message.tool_call_id or f"message-{n}", whose[n - 1], message.content)
            elif message.role == "user" and spec.continues is None:
                yield _said_row(f"message-{n}", message.content)
            else:
                yield _material(f"message-{n}", "the conversation before", message.content)


def _team_rows(spec: Spec, read: _Texts) -> Iterator[Row]:
    for text in read.text(spec.team_text):
        team: FrozenTeam = decode(FrozenTeam, text)
        if team.plan is not None:
            yield _said_row("plan", canonical_json(team.plan))
        if team.context:
            yield _material("context", "the context", team.context)


def _fork_rows(spec: Spec, read: _Texts) -> Iterator[Row]:
    for text in read.text(spec.fork_text):
        forks: tuple[FrozenFork, ...] = decode(tuple[FrozenFork, ...], text)
        for fork in forks:
            yield from (_said_row("words", fork.words),) if fork.words else ()
            for path, body in fork.answers:
                if isinstance(answer := decode_answer(body), ToolResult):
                    yield _taken_over(path, fork.whose.get(path, TakenOver("the run before")), answer.content)


def _said_row(path: str, text: str) -> Row:
    return Row(path, SAID, "", text, is_trusted=True, is_private=False, is_said=True)


def _taken_over(path: str, whose: TakenOver, text: str) -> Row:
    labels = whose.is_trusted, whose.is_private
    return Row(path, whose.source, "", text, None, *labels, is_printed=whose.is_printed)


def _material(path: str, source: str, text: str, *, is_trusted: bool = False) -> Row:
    return Row(path, source, "", text, is_trusted=is_trusted)
