"""Let the person at the terminal decide about what a run asks permission for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kairos_mcp.cli.escape import MARK
from kairos_mcp.cli.output import DIGEST_CHARS, purpose_line, question_lines, workspace_name
from kairos_mcp.cli.terminal import DiffLine, Prose, QuestionLine, columns_of, diff_lines, fold, print_note
from kairos_mcp.core.decision_rights import Settlement, Verdict
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import printable_name
from kairos_mcp.core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from kairos_mcp.cli.keyboard import Keyboard
    from kairos_mcp.store.rules import CallShape, RuleRequest, RuleScope
    from kairos_mcp.views.run_report import RunReport


class Choice(NamedTuple):
    """What may be typed for an approval.

    `asks_why`: the model gets the reason, if one is given. `always`: such calls are allowed from then on.
    `asks_files`: only some of the files are approved.
    """

    letter: str
    label: str
    verdict: Verdict | None
    asks_why: bool = False
    always: RuleScope | None = None
    asks_files: bool = False


_JOINED = "\0"  # stands for a space at which no line ends

CHOICES = (
    Choice("y", "yes", "approve"),
    Choice("r", "always for this run", "approve", always="run"),
    Choice("p", "always for this project", "approve", always="project"),
    Choice("f", "some files", "approve", asks_files=True),
    Choice("n", "no", "deny"),
    Choice("w", "no and why", "deny", asks_why=True),
    Choice("l", "later", None),
)


@dataclass(frozen=True, slots=True)
class TypedDecision:
    """What a person typed about an approval. `rule`: what is to be remembered. `files`: those that alone are
    approved."""

    verdict: Verdict
    feedback: str | None = None
    rule: RuleRequest | None = None
    files: list[str] | None = None


def approval_lines(report: RunReport, item: JsonObject) -> Iterator[str | DiffLine | Prose]:
    """What a run asks permission for: the change first, then what it is for, and what the decision is bound to."""
    yield from question_lines(item["name"], item["effect"], item["preview"])
    yield Prose(purpose_line(report, workspace_name(report.workspace)))
    bound = f"{item['key']} · {item['name']} · digest {item['digest'][:DIGEST_CHARS]}"
    yield Prose(f"run {report.run_id} · {bound}")


def settlement_lines(report: RunReport, item: JsonObject) -> Iterator[str | DiffLine | Prose]:
    """A call of unknown outcome, and what it was for."""
    what = f"Nobody knows whether this call of {item['name']} was made"
    yield Prose(f"{what}: its process ended during it. Look first.")
    yield from diff_lines(json.dumps(item["arguments"], ensure_ascii=False, indent=2))
    yield Prose(purpose_line(report, workspace_name(report.workspace)))
    yield Prose(f"run {report.run_id} · {item['key']} · digest {item['digest'][:DIGEST_CHARS]}")


_SETTLEMENTS: Mapping[str, Settlement | None] = {"l": None, "d": "already_done", "r": "reattempt"}


async def ask_about_settlement(keyboard: Keyboard, report: RunReport, item: JsonObject) -> Settlement | None:
    """Show a call of unknown outcome, and ask what became of it; None: it is left as it is."""
    print_note("")
    for line in settlement_lines(report, item):
        print_note(QuestionLine(line))
    while (typed := await keyboard.ask("leave it [l], it was done [d], make it again [r]? ", fresh=True)) is not None:
        if typed.casefold() in _SETTLEMENTS:
            return _SETTLEMENTS[typed.casefold()]
    return None


async def ask_about_approval(
    keyboard: Keyboard, report: RunReport, item: JsonObject, shape: CallShape | None
) -> TypedDecision | None:
    """Show what a run asks permission for, and ask for a decision; None: it is left for later. `shape`: of the call, if
    a decision about it can be remembered."""
    print_note("")
    for line in approval_lines(report, item):
        print_note(QuestionLine(line))
    scopes = () if shape is None else ("run",) if report.workspace is None else ("run", "project")
    files = item.get("files", ())
    choices = [
        choice
        for choice in CHOICES
        if (choice.always is None or choice.always in scopes) and (files or not choice.asks_files)
    ]
    words = ", ".join(f"{choice.label} [{choice.letter}]".replace(" ", _JOINED) for choice in choices)
    columns = columns_of(sys.stderr)
    question = fold(words, columns and columns - len(MARK) - len("? y")).replace(_JOINED, " ") + "? "
    while (typed := await keyboard.ask(question, fresh=True)) is not None:
        chosen = next((choice for choice in choices if typed.casefold() in (choice.letter, choice.label)), None)
        if chosen is None:
            continue
        if chosen.verdict is None:
            return None
        reason, rule, approved = None, None, None
        if chosen.asks_why and (reason := await _ask_why(keyboard)) is None:
            continue  # Ctrl-C takes the choice back
        if shape is not None and chosen.always and (rule := await _ask_for_rule(keyboard, shape, chosen)) is None:
            continue
        if chosen.asks_files and (approved := await _ask_files(keyboard, files)) is None:
            continue
        return TypedDecision(chosen.verdict, reason or None, rule, approved)
    return None


async def _ask_for_rule(keyboard: Keyboard, shape: CallShape, chosen: Choice) -> RuleRequest | None:
    """Return what is to be remembered; None where that is taken back. The pattern of a command is shown and confirmed,
    and may be another one that matches it."""
    from kairos_mcp.core.command_patterns import parse_pattern
    from kairos_mcp.store.rules import RuleRequest

    rule = RuleRequest(chosen.always or "run")
    if shape.command is None:
        return rule
    while True:
        print_note(f"{chosen.label.capitalize()}: {rule.cover(shape).describe(shape.tool)}")
        typed = await keyboard.ask(
            "Enter allows these commands; or type another pattern, as 'pytest ...': ", fresh=True
        )
        if not typed:
            return None if typed is None else rule
        try:
            wider = RuleRequest(rule.scope, parse_pattern(typed))
            wider.cover(shape)
        except BadArguments as error:
            print_note(str(error))
        else:
            rule = wider


async def _ask_files(keyboard: Keyboard, files: Sequence[str]) -> list[str] | None:
    """Ask which of these files are approved, by number or path; None where that is taken back."""
    for number, path in enumerate(files, 1):
        print_note(f"{number:>4}  {printable_name(path)}")
    while typed := await keyboard.ask("Which, by number or path, separated by spaces? ", fresh=True):
        by_word = {**{str(number): path for number, path in enumerate(files, 1)}, **{path: path for path in files}}
        words = typed.replace(",", " ").split()
        if unknown := [word for word in words if word not in by_word]:
            print_note(f"{unknown[0]} is not one of them.")
        else:
            return list(dict.fromkeys(by_word[word] for word in words))
    return None


async def _ask_why(keyboard: Keyboard) -> str | None:
    """Ask for a reason of permitted length; None on Ctrl-C and Ctrl-D."""
    from kairos_mcp.models.answers import MAX_FEEDBACK_CHARS

    while (reason := await keyboard.ask("What should the model know, or do instead? ")) is not None:
        if len(reason) <= MAX_FEEDBACK_CHARS:
            return reason
        print_note(f"That is longer than {MAX_FEEDBACK_CHARS} characters; shorten it.")
    return None
