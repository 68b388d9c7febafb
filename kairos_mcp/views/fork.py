"""Fork a run: what a new run begins with that goes on at one of its steps, and what changed since.

The run's flow is replayed from its rows up to that step. At a round of a planner loop its next request shows the
conversation: of a task's loop as well as of a run's own, shortened where it had been shortened by then. At a step of a
plan, a team or a phase the new run takes over the answers before it, and has the same flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kairos_mcp.core.errors import BadArguments, ReplayDiffers
from kairos_mcp.core.file_changes import changed_files
from kairos_mcp.core.forked_flow import ForkPoint, fork_flow
from kairos_mcp.core.messages import Completion, Message, ToolResult, ToolSet, add_discovered_tools
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import CallTool, RequestCompletion, enclosing_path, first_parts, last_part, task_of
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.flows.planner_input import Prompts, render_prompt
from kairos_mcp.flows.tool_calls import AnsweredCall, result_message
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.queries import StepRow
from kairos_mcp.views.transcript import answers_by_path, calls_by_path

NAMED_LOOPS = 8  # whose rounds a refusal names
NAMED_STEPS = 24
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


def fork_at_step(
    loaded: LoadedSpec, record: Sequence[StepRow], path: str
) -> tuple[ForkPoint, ToolSet, tuple[str, ...]]:
    """Take over the answers of a run before its step `path`, or before the first step of that name, as `cycle-2`.

    Returns where a new run of the same flow begins, the tools that it may call by then, and notes on what changed
    since. Raises BadArguments where there is no such step or more was under way than it, ReplayDiffers where a row
    before it does not fit the flow.
    """
    found = next((row for row in record if row.path == path or row.path.startswith(f"{path}/")), None)
    if found is None:
        raise BadArguments(f"from: that run has no step {truncate(path, 80)!r}.", _describe_steps(record))
    before = [row for row in record if row.id < found.id]
    offered, runner = loaded.offered_tools, Runner(loaded.flow())
    for row in before:
        step = runner.replay(row.path, row.digest, row.answer)
        if isinstance(step, CallTool):
            offered = add_discovered_tools(offered, [(step.call.name, row.answer)])
    runner.replay(found.path, found.digest, None)
    answers = {
        row.path: replace(row.answer, private=None)  # the new run may have another provider
        if isinstance(row.answer, Completion)
        else row.answer
        for row in before
        if row.answer is not None
    }
    point = ForkPoint(found.path, answers)
    try:
        Runner(fork_flow(loaded.flow(), point))
    except ReplayDiffers:
        raise BadArguments(
            f"from: more was under way at {found.path} than this step, so it is not clear what came before it.",
            _describe_steps(record),
        ) from None
    return point, offered, tuple(_change_notes(loaded, record, found))


def _describe_steps(record: Sequence[StepRow]) -> str:
    """Name the steps outside of tasks, each phase of a cycle as one."""
    names = dict.fromkeys(first_parts(row.path, 2) for row in record if not task_of(row.path))
    shown = ", ".join(list(names)[:NAMED_STEPS])
    more = f" and {len(names) - NAMED_STEPS} more" if len(names) > NAMED_STEPS else ""
    rounds = describe_rounds(record)
    steps = f"Its steps: {shown or 'none yet'}{more}." if names or not rounds else ""
    return f"{steps} {f'Its rounds: {rounds}.' if rounds else ''}".strip()


def describe_rounds(record: Sequence[StepRow]) -> str:
    """Name the rounds that there are, as `round-1 to round-7`, by loop; empty where there are none."""
    loops: dict[str, list[int]] = {}
    for row in record:
        if row.kind == "round":
            loops.setdefault(enclosing_path(row.path), []).append(last_part(row.path).ordinal)
    named: list[str] = []
    for prefix, numbers in list(loops.items())[:NAMED_LOOPS]:
        first = f"{prefix}/round-{min(numbers)}".removeprefix("/")
        named.append(first if len(numbers) == 1 else f"{first} to round-{max(numbers)}")
    left_out = len(loops) - len(named)
    return ", ".join(named) + (f" and those of {count_of(left_out, 'more loop')}" if left_out else "")


def _unknown_round(flow: str, record: Sequence[StepRow], path: str) -> BadArguments:
    rounds = describe_rounds(record)
    if kind_of(flow).is_call:
        return BadArguments("from: that run is one call of a tool.", "registry_call makes the call again.")
    if not rounds:
        return BadArguments("from: that run has begun no round.", "Start without `from`.")
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
    asked = calls_by_path(record, answers)
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
    calls = calls_by_path(record, answers)
    files: dict[str, None] = {}
    others: Counter[str] = Counter()
    for row in record:
        came_after = row.id > since.id or row.answered_at is None or row.answered_at > since.at
        if row.kind != "call" or not came_after:
            continue
        name = calls[row.path].name
        spec = loaded.offered_tools.find(name) or loaded.searchable_tools.find(name)
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
