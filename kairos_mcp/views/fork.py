"""Fork a run: the conversation of one of its planner loops as the model was asked in a round, and what changed since.

The run's flow is replayed from its rows up to that round, and its next request shows the conversation: of a task's loop
as well as of a run's own, shortened where it had been shortened by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kairos_mcp.core.errors import BadArguments, ReplayDiffers
from kairos_mcp.core.file_changes import changed_files
from kairos_mcp.core.messages import Message, ToolResult
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import RequestCompletion, last_part
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.flows.planner_input import Prompts, render_prompt
from kairos_mcp.flows.tool_calls import AnsweredCall, result_message
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.queries import StepRow
from kairos_mcp.views.transcript import answers_by_path, calls_by_path

NAMED_LOOPS = 8  # whose rounds a refusal names
NAMED_FILES = 12


@dataclass(frozen=True, slots=True)
class Fork:
    """What a new run begins with: the conversation without its system prompt, the user prompt in it that says the goal,
    and notes on what changed since."""

    conversation: tuple[Message, ...]
    user: str
    notes: tuple[str, ...]


def fork_run(loaded: LoadedSpec, record: Sequence[StepRow], path: str) -> Fork:
    """Cut the conversation of a planner loop at its round `path`: what was asked there, without the answer.

    Raises BadArguments where the run has no such round, ReplayDiffers where a row before it does not fit the flow.
    """
    found = next((row for row in record if row.path == path and row.kind == "round"), None)
    if found is None:
        raise _unknown_round(loaded.spec.flow, record, path)
    asked = _request_at(loaded, record, found)
    messages = [message for message in asked.conversation if message.role != "system"]
    loop = loaded.team.team_input.loop if loaded.team is not None else loaded.planner_input
    if loop is not None:
        messages = list(_without_refs(messages, record, path.removesuffix(asked.name), loop.prompts))
    own = loaded.planner_input
    user = own.user if own is not None else messages[0].content  # the loop of a task begins with its prompt
    return Fork(tuple(messages), user, tuple(_change_notes(loaded, record, found)))


def describe_rounds(record: Sequence[StepRow]) -> str:
    """Name the rounds that there are, as `round-1 to round-7`, by loop; empty where there are none."""
    loops: dict[str, list[int]] = {}
    for row in record:
        if row.kind == "round":
            loops.setdefault(row.path.rpartition("/")[0], []).append(last_part(row.path).ordinal)
    named = [_describe_loop(prefix, numbers) for prefix, numbers in list(loops.items())[:NAMED_LOOPS]]
    left_out = len(loops) - len(named)
    return ", ".join(named) + (f" and those of {count_of(left_out, 'loop')} more" if left_out else "")


def _describe_loop(prefix: str, numbers: Sequence[int]) -> str:
    first = f"{prefix}/round-{min(numbers)}".removeprefix("/")
    return first if len(numbers) == 1 else f"{first} to round-{max(numbers)}"


_NO_ROUNDS = {
    "call": ("it is one call of a tool", "registry_call makes the call again."),
    "plan": (
        "it only made a plan",
        "team_run carries out its output, changed as you like; planner_plan makes another.",
    ),
    "team": ("none of its tasks has begun one", "team_run carries out its plan, changed as you like."),
    "ooda": (
        "its phases have no conversation that goes on",
        "ooda_run begins the next cycle; each phase after observe runs alone on the output of the one before.",
    ),
}
"""Why a run of a flow has no round, and what to call instead."""


def _unknown_round(flow: str, record: Sequence[StepRow], path: str) -> BadArguments:
    rounds, part = describe_rounds(record), last_part(path).name
    if not rounds:
        why, cure = _NO_ROUNDS.get(flow.partition("_")[0], ("it has not begun one", "Start without `from`."))
        return BadArguments(f"from: that run has no round of a planner loop: {why}.", cure)
    if flow == "team" and part in ("plan", "replan", "synthesis"):
        what, cure = (
            ("answer", "Give the output of the run as the context of a new one")
            if part == "synthesis"
            else ("plan", "team_run carries out its plan, changed as you like")
        )
        return BadArguments(
            f"from: the {what} of a team is no round of a planner loop.", f"{cure}; or take a round: {rounds}."
        )
    return BadArguments(f"from: that run has no round {truncate(path, 80)!r}.", f"Its rounds: {rounds}.")


def _request_at(loaded: LoadedSpec, record: Sequence[StepRow], wanted: StepRow) -> RequestCompletion:
    """Replay the run until it asks for this step, and return the request."""
    runner = Runner(loaded.flow())
    for row in record:
        if row.id == wanted.id:
            break
        runner.replay(row.path, row.digest, row.answer)
    match runner.replay(wanted.path, wanted.digest, None):
        case RequestCompletion() as request:
            return request
        case other:
            raise ReplayDiffers(wanted.path, wanted.digest.hex(), other.digest.hex())


def _without_refs(
    messages: Sequence[Message], record: Sequence[StepRow], prefix: str, prompts: Prompts
) -> Iterator[Message]:
    """Yield the messages; where a result was left out under a ref of that run, which would be another result's in a new
    one, it is said without the ref."""
    answers = answers_by_path(record)
    asked = calls_by_path(answers)
    for message in messages:
        ref = message.tool_call_id
        call, answer = asked.get(f"{prefix}{ref}"), answers.get(f"{prefix}{ref}")
        if ref is not None and call is not None and isinstance(answer, ToolResult):
            chars = len(result_message(prompts, AnsweredCall(replace(call, id=ref), answer)).content)
            if message.content == render_prompt(prompts.shrunk, chars=chars, ref=ref):
                yield replace(message, content=render_prompt(prompts.shrunk_earlier, chars=chars))
                continue
        yield message


def _change_notes(loaded: LoadedSpec, record: Sequence[StepRow], since: StepRow) -> Iterator[str]:
    """Yield what the run has changed since a round was asked, as its results say; in whichever branch."""
    answers = answers_by_path(record)
    asked = calls_by_path(answers)
    files: dict[str, None] = {}
    others: Counter[str] = Counter()
    for row in record:
        if row.kind != "call" or row.path not in asked or not _came_after(row, since):
            continue
        name = asked[row.path].name
        spec = loaded.offered.find(name) or loaded.searchable.find(name)
        effect = spec.effect if spec is not None else "irreversible"
        match answers.get(row.path):
            case _ if effect == "read":
                pass
            case ToolResult() as result if changed := changed_files(result):
                files |= {file.path: None for file in changed}
            case ToolResult(code="denied"):
                pass
            case ToolResult(is_error=is_error) if row.sent.route is not None:
                others[name] += not (is_error and effect == "checked")
            case None:
                others[name] += row.is_begun_unanswered
            case _:
                pass
    if files:
        more = f" and {len(files) - NAMED_FILES} more" if len(files) > NAMED_FILES else ""
        yield f"Changed by that run since {since.path}: {', '.join(list(files)[:NAMED_FILES])}{more}."
    called = [f"{name} ({count_of(number, 'call')})" for name, number in others.items() if number]
    if called:
        yield f"Called by that run since {since.path}, which may have changed more: {', '.join(called)}."


def _came_after(row: StepRow, since: StepRow) -> bool:
    """Whether a call was begun after this round was asked, or ended after that."""
    return row.id > since.id or row.answered_at is None or row.answered_at > since.at
