"""Commands that answer what a run waits for: `answer`, `approve`, `deny`, `settle`.

Each then goes on with the run here, unless a living server has it. A decision binds to what the person has seen: who
gives a run's whole id and the key has, who gives less is shown the item and asked, or names its digest.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from kairos_mcp.cli.ask import approval_lines, ask_about_settlement, settlement_lines
from kairos_mcp.cli.exit_codes import COMPLETED, WAITING
from kairos_mcp.cli.follow import follow_and_print
from kairos_mcp.cli.keyboard import confirm, is_person_there, run_on_keyboard
from kairos_mcp.cli.options import (
    AllFlags,
    Always,
    AsJson,
    Digest,
    Drive,
    Files,
    Key,
    Pattern,
    Principal,
    Run,
    StateFlags,
    WaitingRun,
)
from kairos_mcp.cli.output import DIGEST_CHARS, purpose_line, question_lines, shell_command, workspace_name
from kairos_mcp.cli.rules import removal_arguments
from kairos_mcp.cli.session import TargetRun, find_target_to_drive, with_app
from kairos_mcp.cli.terminal import DiffLine, Prose, QuestionLine, emit, print_line, print_note
from kairos_mcp.core.decision_rights import Settlement, Verdict
from kairos_mcp.core.errors import BadArguments, NotWaiting
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.outcomes import END_STATUSES
from kairos_mcp.settings.bounded_files import read_stdin_bounded, read_text_bounded
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.store.rules import CallShape, RuleRequest, RuleScope
    from kairos_mcp.views.run_report import RunReport

T = TypeVar("T")

_WHOLE_DIGEST = 64  # hexadecimal digits


def answer(
    run: Run,
    key: Key = None,
    text: Annotated[str | None, typer.Argument(metavar="JSON", help="The answer. Default: --file, or stdin.")] = None,
    *,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="A file with the answer.")] = None,
    drive: Drive = True,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Answer what a run waits for, and go on with it.

    A completion is {"content": TEXT} or {"tool_calls": [{"id", "name", "arguments"}]}; a tool's result is
    {"content": TEXT}.
    """
    if key is not None and text is None and key.lstrip().startswith("{"):  # a key begins otherwise
        key, text = None, key
    target = find_target_to_drive(flags, run, principal)
    run_id, caller = target.run_id, target.caller
    if key is None or not target.is_exact:
        report, item = _find_item(target, ("completion", "tool_call"), key)
        key = item["key"]
        print_note(f"{key} of run {run_id} · {purpose_line(report, workspace_name(report.workspace))}")
    answers = {key: _read_answer(text, file)}

    async def answer_and_drive(app: App) -> str:
        await app.answers.submit(run_id, answers, caller)
        await app.control.drive(run_id)
        return run_id

    async def store_answer(app: App) -> RunReport:
        await app.answers.submit(run_id, answers, caller, drive=False)
        return await app.runs.report(run_id, caller)

    if drive:
        return follow_and_print(target.settings, answer_and_drive, flags, as_json=as_json, caller=caller)
    report = with_app(target.settings, store_answer)
    emit(report.as_json(), [f"stored; run {run_id} is {report.status}"], as_json=as_json)
    return COMPLETED


def approve(
    run: WaitingRun,
    key: Key = None,
    *,
    always: Always = None,
    pattern: Pattern = None,
    file: Files = None,
    digest: Digest = None,
    drive: Drive = True,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Approve what a run asks permission for, and go on with it. `show` prints what that is.

    Without KEY it shows all that waits for permission and asks once. With --file, of the changes of a stage, only
    those files are applied; the others stay in the stage.

    With --always, also allow such calls from now on: exactly the same call, edits of the same file, or commands that
    match a pattern. `rules` lists and removes these approvals.
    """
    if pattern is not None and always is None:
        raise BadArguments("--pattern needs --always.", "Say for how long: --always run, or --always project.")
    return _decide(
        *(flags, run, key, "approve", None),
        digest=digest,
        principal=principal,
        drive=drive,
        as_json=as_json,
        always=always,
        pattern=pattern,
        files=file or None,
    )


def deny(
    run: WaitingRun,
    key: Key = None,
    *,
    feedback: Annotated[
        str | None, typer.Option("--feedback", metavar="TEXT", help="What the model should know or do instead.")
    ] = None,
    digest: Digest = None,
    drive: Drive = True,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Deny what a run asks permission for, and go on with it."""
    return _decide(flags, run, key, "deny", feedback, digest=digest, principal=principal, drive=drive, as_json=as_json)


def settle(
    run: WaitingRun,
    key: Key = None,
    settlement: Annotated[
        Settlement | None,
        typer.Argument(metavar="SETTLEMENT", help="Whether to make the call again, or take it for made."),
    ] = None,
    *,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="What you saw; the model reads it.")] = None,
    digest: Digest = None,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Resolve a tool call whose outcome is unknown after a crash: try it again, or mark it as done."""
    match key, settlement:
        case ("reattempt" | "already_done") as word, None:
            key, settlement = None, word
    target = find_target_to_drive(flags, run, principal, waits_for="settle")
    if settlement is None and (as_json or not is_person_there()):
        raise BadArguments("Was the call made?", "Say already_done or reattempt, as the last word.")
    pinned = Pinned(key or "", digest)
    if settlement is None or not _is_certain(target, key, digest):
        report, item = _find_item(target, ("settle",), key)
        pinned = _pin(item, digest, as_json=as_json)
        if settlement is None:
            settlement = run_on_keyboard(partial(ask_about_settlement, report=report, item=item))
        elif digest is None and not _confirm(settlement_lines(report, item), f"Is it {settlement}"):
            settlement = None
        if settlement is None:
            return _nothing_decided()
    chosen, run_id, caller = settlement, target.run_id, target.caller

    async def settle_and_drive(app: App) -> str:
        await app.answers.settle(run_id, pinned.key, chosen, caller, note=note, digest=pinned.digest)
        await app.control.drive(run_id)
        return run_id

    return follow_and_print(target.settings, settle_and_drive, flags, as_json=as_json, caller=caller)


def _decide(
    flags: Flags,
    run: str,
    key: str | None,
    decision: Verdict,
    feedback: str | None,
    *,
    digest: str | None,
    principal: str | None,
    drive: bool,
    as_json: bool,
    always: RuleScope | None = None,
    pattern: str | None = None,
    files: Sequence[str] | None = None,
) -> int:
    """Decide about the waiting approval under the key; with `drive`, go on with the run here if no server does."""
    from kairos_mcp.models.answers import MAX_FEEDBACK_CHARS

    if feedback is not None and len(feedback) > MAX_FEEDBACK_CHARS:
        raise BadArguments(f"The feedback is longer than {MAX_FEEDBACK_CHARS} characters.", "Shorten it.")
    target = find_target_to_drive(flags, run, principal, waits_for="approval")
    run_id, caller, pins = target.run_id, target.caller, [Pinned(key or "", digest)]
    was_shown = not _is_certain(target, key, digest)
    if was_shown:
        report, items = _find_items(target, ("approval",), key)
        if digest is not None or always is not None or files is not None:
            _require_one(target, items)
        pins = [_pin(item, digest, as_json=as_json) for item in items]
        lines = chain.from_iterable(approval_lines(report, item) for item in items)
        what = "it" if len(items) == 1 else f"these {len(items)}"
        if digest is None and not _confirm(lines, f"{decision.capitalize()} {what}"):
            return _nothing_decided()
    rule = None
    if always is not None:
        rule = _ask_for_rule(target, pins[0].key, always, pattern, as_json=as_json)
        if rule is None:
            return _nothing_decided()

    async def decide_and_drive(app: App) -> str:
        await decide(app, drive=True)
        await app.control.drive(run_id)
        return run_id

    async def store_decision(app: App) -> RunReport:
        await decide(app, drive=False)
        return await app.runs.report(run_id, caller)

    async def decide(app: App, *, drive: bool) -> None:
        decided = []
        for pinned in reversed(pins):  # so that no call begins, and fails, before all of them are decided
            decided += [
                await app.answers.decide(
                    *(run_id, pinned.key, decision, feedback, caller),
                    digest=pinned.digest,
                    rule=rule,
                    files=files,
                    drive=drive,
                )
            ]
        for approval in reversed(decided) if not as_json else ():
            for line in () if was_shown else question_lines(approval.tool, approval.effect, approval.person_preview):
                print_line(line)
            print_line(f"{'approved' if decision == 'approve' else 'denied'}: {approval.tool} at {approval.path}")
        made = None if rule is None else await app.answers.find_rule_made_with(run_id, pins[0].key, caller)
        if made is not None and not as_json:
            where = "in this run" if made.run_id else "in this workspace"
            remove = shell_command(flags, *removal_arguments(made, target.settings))
            print_line(f"allowed from now on {where} ({made.name}): {made.description}")
            print_line(f"  {remove}")

    if drive:
        return follow_and_print(target.settings, decide_and_drive, flags, as_json=as_json, caller=caller)
    report = with_app(target.settings, store_decision)
    has_ended = report.status in END_STATUSES
    what = f"is {report.status}" if has_ended else "goes on at a server or a worker"
    line = f"stored: run {run_id} {what}"
    emit(report.as_json(), [line], as_json=as_json)
    return COMPLETED


class Pinned(NamedTuple):
    """What a decision is about: the key of the item, and the digest of what was shown (None: the key says it)."""

    key: str
    digest: str | None


def _is_certain(target: TargetRun, key: str | None, digest: str | None) -> bool:
    """Whether the person has said exactly what they decide about, so that nothing has to be looked up."""
    return target.is_exact and key is not None and (digest is None or len(digest) >= _WHOLE_DIGEST)


def _pin(item: JsonObject, digest: str | None, *, as_json: bool) -> Pinned:
    """Pin a decision to an item. Raises BadArguments where a person would have to be asked, and none is there."""
    if digest is not None:
        is_beginning = len(digest) >= DIGEST_CHARS and item["digest"].startswith(digest)
        return Pinned(item["key"], item["digest"] if is_beginning else digest)
    if as_json or not is_person_there():
        raise BadArguments(
            "Without a terminal give the full run id and KEY, or --digest.",
            "`show` prints all of them.",
        )
    return Pinned(item["key"], item["digest"])


def _find_item(target: TargetRun, kinds: Collection[str], key: str | None) -> tuple[RunReport, JsonObject]:
    """Find what the run waits for: the item under the key, or the only one of these kinds. Raises NotWaiting,
    BadArguments."""
    report, items = _find_items(target, kinds, key)
    _require_one(target, items)
    return report, items[0]


def _require_one(target: TargetRun, items: Sequence[JsonObject]) -> None:
    if len(items) > 1:
        keys = ", ".join(item["key"] for item in items)
        raise BadArguments(f"Several items wait in run {target.run_id}.", f"Name one of them: {keys}.")


def _find_items(target: TargetRun, kinds: Collection[str], key: str | None) -> tuple[RunReport, list[JsonObject]]:
    """Find what the run waits for of these kinds: the item under the key, or all. Raises NotWaiting."""

    async def read_report(app: App) -> RunReport:
        return await app.runs.report(target.run_id, target.caller)

    report = with_app(target.settings, read_report)
    items = [item for item in report.waiting if item["kind"] in kinds and key in (None, item["key"])]
    if not items or len(items[0]) <= len(("key", "kind")):  # the run's flow has changed since: nobody can answer it
        others = ", ".join(f"{item['key']} ({item['kind']})" for item in report.waiting) or "nothing"
        which = "of this kind" if key is None else f"under {key[:120]!r}"
        raise NotWaiting(f"Nothing {which} waits in run {target.run_id}.", f"Waiting: {others}.", run_id=report.run_id)
    return report, items


def _confirm(lines: Iterator[str | DiffLine | Prose], question: str) -> bool:
    """Show what is to be decided about, and ask whether it is meant."""
    for line in lines:
        print_note(QuestionLine(line))
    return confirm(question)


def _nothing_decided() -> int:
    print_note("nothing was decided")
    return WAITING


def _ask_for_rule(
    target: TargetRun, key: str, scope: RuleScope, pattern: str | None, *, as_json: bool
) -> RuleRequest | None:
    """Ask what is to be remembered: the pattern of a command is shown and confirmed, unless it was typed. None: it was
    not confirmed. Raises BadArguments."""
    from kairos_mcp.core.command_patterns import format_pattern, parse_pattern
    from kairos_mcp.store.rules import RuleRequest

    if pattern is not None:
        return RuleRequest(scope, parse_pattern(pattern))

    async def find_shape(app: App) -> CallShape | None:
        return (await app.answers.find_approval(target.run_id, key, target.caller)).shape

    shape = with_app(target.settings, find_shape)
    if shape is None or shape.command is None:
        return RuleRequest(scope)
    where = "this run" if scope == "run" else "every run in this workspace"
    if as_json or not is_person_there():
        shown = shlex.quote(format_pattern(shape.pattern))
        raise BadArguments("It is not clear which commands to allow.", f"Add --pattern {shown}.")
    covered = RuleRequest(scope).cover(shape).describe(shape.tool)
    lines = iter((f"From now on, in {where}, this command runs unasked:", f"  {covered}"))
    return RuleRequest(scope) if _confirm(lines, "Allow it (--pattern 'PROGRAM ...' allows more)") else None


def _read_answer(text: str | None, file: str | None) -> JsonObject:
    """One JSON object, from the command line, a file or stdin. Raises BadArguments."""
    from kairos_mcp.core.input_checks import Undecodable, parse_strict_json

    if text is not None and file is not None:
        raise BadArguments("There are two answers.", "Give it as an argument, or by --file.")
    try:
        if file is not None:
            text = read_text_bounded(Path(file))
        if text is None:
            if sys.stdin.isatty():
                print_note("The answer, one JSON object; Ctrl-D ends it:")
            text = read_stdin_bounded()
        parsed = parse_strict_json(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadArguments(f"The answer can't be read: {error}.", "Give one JSON object as UTF-8.") from error
    except Undecodable as error:
        raise BadArguments(f"The answer can't be used: {error.reason}.", 'As {"content": "..."}.') from error
    if not isinstance(parsed, dict):
        raise BadArguments("The answer is not a JSON object.", 'As {"content": "..."}.')
    return parsed
