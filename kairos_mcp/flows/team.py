"""A team: a planner splits the goal, agents do the tasks side by side, one answer is made of what they found.

Each task is a branch `task-N`, by its position in the plan; each try at it is a branch `task-N/try-M` of one agent, a
planner loop with that agent's tools and rounds. What failed is tried once by another agent, then replaced once by the
planner. Steps beside those of the loops: `plan`, `replan-1` with their repairs, `synthesis`, and in a stage `submit-1`.
Recorded runs are replayed through this file and the ones it calls: raise VERSION with any change in what they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import count
from typing import Any

from kairos_mcp.core.builtin_tools import REPORT_PLAN_PROBLEM
from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.messages import Completion, JsonObject, ToolResult
from kairos_mcp.core.outcomes import STOP_REASONS, EndStatus, Outcome, StopName, TaskStatus, make_outcome
from kairos_mcp.core.plan import Plan, PlannedTask
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Branch, CallTool, Failure, Flow, Gather, RequestCompletion
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.flows.plan import ask_planner, make_plan
from kairos_mcp.flows.planner import planner
from kairos_mcp.flows.planner_input import quote_model_text, render_prompt
from kairos_mcp.flows.structured_answer import PhaseFailure
from kairos_mcp.flows.submit import StageRecord, submit_rest
from kairos_mcp.flows.team_input import TeamInput

VERSION = 1

TRIES = 2  # the task's own agent, then another one
SHOWN_CHARS = 4_000  # of a result, in the prompt of a task that depends on it: half its head, half its tail
SYNTHESIS_CHARS = 16_000  # of all results together, in the prompt of the answer
SYNTHESIS_TOKENS = 2_048
SHORT_RESULT = 256  # bytes of each result, SHORT_ANSWER: tokens of the answer, for which there is room in any case
SHORT_ANSWER = 256
ANSWER_MARGIN = 1_056  # what may be read around its two messages, of which no cost is known yet
FOUND_CHARS = 300  # of a result, in the run's output

"""`stopped`: a guard ended its loop; what it found counts. `skipped`: a task before it failed."""

DECLINED = ("content_filter", "refusal")

_ENDS: Mapping[EndStatus, TaskStatus] = {"completed": "done", "stopped": "stopped"}


@dataclass(slots=True)
class TaskTry:
    """One attempt at a task: its agent, stop reason, last text and the step of that text.

    `is_said`: a model said the text; else it is the record of what was done. `notes`: of its loop. `problem`: what is
    wrong with the plan, as the agent reported it.
    """

    agent: str
    stop_reason: StopName | None = None
    text: str = ""
    is_said: bool = False
    ref: str | None = None
    notes: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def status(self) -> TaskStatus:
        if self.stop_reason is None:
            return "working"
        if self.problem is not None:
            return "failed"
        return _ENDS.get(STOP_REASONS[self.stop_reason].status, "failed")

    @property
    def left_open(self) -> str:
        """Say why the task is not done, in words; empty where it is."""
        if self.problem is not None:
            return f"the plan does not fit: {self.problem}"
        if self.stop_reason is None or self.status == "done":
            return ""
        reason = STOP_REASONS[self.stop_reason].words
        return f"{reason} ({truncate(' '.join(self.notes), FOUND_CHARS)})" if self.notes else reason


@dataclass(slots=True)
class TaskState:
    """A task of the plan and what became of it so far. `path`: its branch. `before`: the tasks that it depends on."""

    task: PlannedTask
    path: str
    before: tuple[TaskState, ...] = ()
    tries: list[TaskTry] = field(default_factory=list)
    skipped_for: str | None = None

    @property
    def status(self) -> TaskStatus:
        if self.skipped_for is not None:
            return "skipped"
        return self.tries[-1].status if self.tries else "waiting"

    @property
    def is_good(self) -> bool:
        """Whether its result counts."""
        return self.status in ("done", "stopped")

    @property
    def text(self) -> str:
        return self.tries[-1].text if self.tries else ""

    @property
    def is_said(self) -> bool:
        """Whether a model said the text."""
        return bool(self.tries) and self.tries[-1].is_said

    @property
    def ref(self) -> str | None:
        """The ref of its whole result, for read_result and run_trace."""
        return self.tries[-1].ref if self.tries else None

    @property
    def left_open(self) -> str:
        if self.skipped_for is not None:
            return f"it was not begun, since {self.skipped_for} failed"
        return self.tries[-1].left_open if self.tries else ""

    def as_output(self) -> JsonObject:
        """Return the task as the run's output has it."""
        return {
            "id": self.task.id,
            "path": self.path,
            "agent": self.tries[-1].agent if self.tries else self.task.agent,
            "kind": self.task.kind,
            "status": self.status,
            "found": truncate(self.text, FOUND_CHARS) if self.is_good else "",
            "open": self.left_open,
            "ref": self.ref,
            "tries": [{"agent": each.agent, "status": each.status} for each in self.tries],
        }


@dataclass(slots=True)
class TeamState:
    """What a team has come to: its tasks in the order of the plan, those that replace others at the end.

    It lives beside the flow's generator and is rebuilt with it by each replay.
    """

    tasks: list[TaskState] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stage: StageRecord = field(default_factory=StageRecord)

    def add(self, planned: Sequence[PlannedTask]) -> list[TaskState]:
        """Add the tasks of a plan; they may depend on each other and on those that are there."""
        known = {state.task.id: state for state in self.tasks}
        added = [TaskState(task, f"task-{number}") for number, task in enumerate(planned, len(self.tasks) + 1)]
        known |= {state.task.id: state for state in added}
        for state in added:
            state.before = tuple(known[name] for name in state.task.depends_on)
        self.tasks += added
        return added


def team(given: TeamInput, state: TeamState) -> Flow[Outcome]:
    """Run the whole team. `state` is a new one; it shows what the flow has come to."""
    made = yield from make_plan(given)
    if isinstance(made, PhaseFailure):
        return make_outcome(made.stop_reason, record=f"There is no plan, so nothing was begun. {made.reason}")
    state.notes += made.notes
    yield from _run_tasks(given, state, state.add(made.plan.tasks))
    replaced = yield from _replace_failed(given, state)
    remaining = [task for task in state.tasks if task not in replaced]
    answer: str | None
    if made.plan.strategy == "single_task" and len(state.tasks) == 1:
        (task,) = state.tasks
        answer, done = task.text if task.is_said else None, task.text or task.left_open
    else:
        answer = yield from _synthesize(given, state)
        done = "\n".join(
            f"- {task.task.id} ({task.status}): {truncate(task.text or task.left_open, FOUND_CHARS)}"
            for task in state.tasks
        )
    output = {"answer": done if answer is None else answer, "tasks": [task.as_output() for task in state.tasks]}
    record = done if answer is None else None
    outcome = make_outcome(_stop_reason(remaining), answer, output, tuple(state.notes), record=record)
    return (yield from submit_rest(state.stage, outcome))[0] if given.submits else outcome


def _stop_reason(tasks: Sequence[TaskState]) -> StopName:
    """Return why a team of these tasks ended: a task that ended well makes it a success."""
    if any(task.status == "done" for task in tasks):
        return "team_done"
    stopped = next((task for task in tasks if task.status == "stopped"), None)
    return (stopped.tries[-1].stop_reason or "tasks_failed") if stopped is not None else "tasks_failed"


# -- tasks -----------------------------------------------------------------------------------------------------------


def _run_tasks(given: TeamInput, state: TeamState, tasks: Sequence[TaskState]) -> Flow[None]:
    """Run tasks as soon as those that they depend on have ended."""
    here = {task.task.id: task.path for task in tasks}
    yield from Gather(
        {
            task.path: Branch(partial(_run_task, given, state, task), UNLIMITED, about=task.task.description)
            for task in tasks
        },
        {task.path: tuple(here[name] for name in task.task.depends_on if name in here) for task in tasks},
        given.max_parallel,
        _watch_answer_needs(given, tasks) if len(tasks) > 1 else UNLIMITED,
        keeps_share=len(tasks) > 1,
    )


def _watch_answer_needs(given: TeamInput, tasks: Sequence[TaskState]) -> Callable[[], Limits]:
    """Return what tells how much is set aside for the answer: one call which reads of each task what it was and a short
    result; less, once tasks have ended with results that are shorter still.

    What this costs, and how long it takes, is not known here.
    """
    heads = "\n\n".join(_describe(given, task, 0) for task in tasks)
    most = given.synthesis_conversation(heads).size + SHORT_RESULT * len(tasks)

    def find_needs() -> Limits:
        found = "\n\n".join(_describe(given, task, SYNTHESIS_CHARS // len(tasks)) for task in tasks)
        unended = sum(task.status in ("waiting", "working") for task in tasks)
        read = min(most, given.synthesis_conversation(found).size + SHORT_RESULT * unended) + ANSWER_MARGIN
        total = read + SHORT_ANSWER
        return Limits(
            rounds=0,
            tool_calls=int(given.submits),
            model_calls=1,
            input_tokens=read,
            output_tokens=SHORT_ANSWER,
            total_tokens=total,
        )

    return find_needs


def _run_task(given: TeamInput, state: TeamState, task: TaskState, _ended: Mapping[str, Any]) -> Flow[None]:
    """Run the task's loop, by another agent once more where the first one's failed.

    It begins once the tasks before it have ended: its prompt is made of what they found.
    """
    failed = next((before for before in task.before if not before.is_good), None)
    if failed is not None and task.task.on_failed_dependency == "skip":
        task.skipped_for = failed.task.id
        return
    results = "\n\n".join(_describe(given, before, SHOWN_CHARS) for before in task.before)
    agent, earlier = task.task.agent, ""
    for number in count(1):
        assert agent is not None, "a plan that was parsed names the agent of each task"
        attempt = TaskTry(agent)
        task.tries.append(attempt)
        loop = planner(given.task_loop(agent, task.task.description, results, earlier), state.stage)
        limits = Limits(rounds=given.agents[agent].max_rounds)
        name = f"try-{number}"
        yield from Gather({name: Branch(_watch(loop, attempt, f"{task.path}/{name}"), limits, agent)})
        another = given.next_agent(task.task)
        if attempt.status != "failed" or attempt.problem is not None or number == TRIES or another is None:
            return
        earlier = f"The agent {agent} tried it before: {attempt.left_open}."
        if attempt.text:
            earlier += f"\n\n{quote_model_text(given.loop.prompts.quoted, attempt.text)}"
        agent = another


def _watch(loop: Flow[Outcome], attempt: TaskTry, path: str) -> Flow[None]:
    """Run a loop, and keep of it which step's text is its result; end it where the agent reports a wrong plan."""
    answer: Any = None
    while True:
        try:
            request = loop.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            attempt.stop_reason, attempt.text, attempt.notes = outcome.stop_reason, outcome.text, outcome.notes
            attempt.is_said = outcome.summary is not None
            return
        answer = yield request
        match request, answer:
            case RequestCompletion(name=name, purpose=purpose), Completion(content=said):
                if said.strip() and purpose != "compact":
                    attempt.ref = f"{path}/{name}"
            case CallTool() | Gather(), _:
                attempt.problem = _reported_problem(request, answer)
                if attempt.problem is not None:
                    attempt.stop_reason = "assistant_stop"
                    loop.close()
                    return
            case _:
                pass


def _reported_problem(request: CallTool | Gather[Any], answer: Any) -> str | None:
    """Return what the agent reports of the plan by one of these calls; None where it reports nothing."""
    answered = [(request, answer)] if isinstance(request, CallTool) else list(_answered_calls(request, answer))
    for step, result in answered:
        if step.call.name == REPORT_PLAN_PROBLEM.name and isinstance(result, ToolResult) and not result.is_error:
            return str(step.call.arguments["problem"])
    return None


def _answered_calls(gather: Gather[Any], answers: Mapping[str, Any]) -> Iterator[tuple[CallTool, Any]]:
    for name, step in gather.branches.items():
        if isinstance(step, CallTool):
            yield step, answers[name]


# -- what failed -----------------------------------------------------------------------------------------------------


def _replace_failed(given: TeamInput, state: TeamState) -> Generator[Any, Any, list[TaskState]]:
    """Have the planner replace the tasks that failed and those that were held back because of them, once.

    Returns those that were replaced: none where nothing failed, or where the planner named nothing.
    """
    failed = [task for task in state.tasks if not task.is_good]
    if not failed:
        return []
    results = "\n\n".join(_describe(given, task, SHOWN_CHARS) for task in state.tasks if task.is_good)
    reasons = "\n".join(f"- {task.task.id}: {task.task.description}\n  {task.left_open}" for task in failed)
    earlier = {task.task.id: task.is_good for task in state.tasks}
    made = yield from ask_planner("replan-1", given, given.replan_conversation(results, reasons), earlier)
    match made:
        case Plan(tasks=(_, *_)):
            whose = "its" if len(failed) == 1 else "their"
            state.notes.append(
                f"{count_of(len(failed), 'task')} failed or could not begin; the planner put others in {whose} place."
            )
            yield from _run_tasks(given, state, state.add(made.tasks))
            return failed
        case PhaseFailure(reason=reason):
            state.notes.append(f"The planner gave no tasks in place of those that failed: {reason}")
        case _:
            state.notes.append("The planner has no tasks in place of those that failed.")
    return []


# -- the answer ------------------------------------------------------------------------------------------------------


def _synthesize(given: TeamInput, state: TeamState) -> Flow[str | None]:
    """Ask for one answer made of all results; None where no model gave a usable one."""
    if not any(task.text for task in state.tasks):
        return None
    most = SYNTHESIS_CHARS // len(state.tasks)
    results = "\n\n".join(_describe(given, task, most) for task in state.tasks)
    answer = yield from RequestCompletion(
        "synthesis", "closing", given.synthesis_conversation(results), max_tokens=SYNTHESIS_TOKENS
    )
    match answer:
        case Completion(unreadable=None, finish=finish, content=said) if said.strip() and finish not in DECLINED:
            if finish == "length":
                state.notes.append("The answer was cut off at its length limit.")
            return said
        case other:
            why = f" ({other.code}: {other.message})" if isinstance(other, Failure) else ""
            state.notes.append(f"No model wrote the answer{why}: it lists what each task came to.")
            return None


def _describe(given: TeamInput, task: TaskState, most: int) -> str:
    """Describe a task and its result for a model: head and tail of a long one, with the ref of the whole."""
    head = f"### {task.task.id}: {truncate(' '.join(task.task.description.split()), 200)}\nStatus: {task.status}."
    if task.left_open:
        head += f" Open: {task.left_open}."
    if not task.text:
        return head
    return f"{head}\n{quote_model_text(given.loop.prompts.quoted, _shorten_result(given, task, most))}"


def _shorten_result(given: TeamInput, task: TaskState, most: int) -> str:
    text, half = task.text, most // 2
    if len(text) <= most:
        return text
    marker = render_prompt(given.prompts.left_out, left=len(text) - 2 * half, ref=task.ref or "")
    return f"{text[:half]}\n{marker}\n{text[-half:]}"
