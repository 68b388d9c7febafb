"""What a flow yields, what it is sent, and the paths of its steps.

A flow is a generator: it yields a Step or a Gather and is sent the answer. `yield from step` gives the answer typed. It
knows no route, no limit, no clock.

A step has a name that is unique in its flow. Its path, that name behind the names of the branches around it, is the key
of the recorded answer. Only this file takes paths apart: parts between slashes, the outermost first, each a name, and
mostly an ordinal from 1.

    round-3             the third turn of a planner
    round-3/call-2      its second call
    cycle-1/act/call-1  the call of an act, in a run of cycles; in a run of one phase it is act/call-1
    closing             the last call of the model, after a limit
    submit-1            what a stage holds at the end, submitted
    task-2/try-1/round-3  a round of a loop in a branch
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.messages import (
    Completion,
    Conversation,
    JsonObject,
    ToolCall,
    ToolResult,
    ToolSet,
    Usage,
    canonical_json,
    digest_of,
)
from kairos_mcp.core.paths import Risk
from kairos_mcp.core.quick_dataclass import dataclass

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Purpose = Literal["round", "phase", "repair", "compact", "closing"]
DialectName = Literal["native", "text"]  # with the protocol's own tool calls, or in words (models/dialects.py)


@dataclass(frozen=True, slots=True)
class Refused:
    """A limit forbids the step. `used` and `allowed` are in the limit's own unit; `scope` names the account."""

    limit: str
    used: int
    allowed: int
    scope: str = "run"
    kind: Literal["refused"] = "refused"


CONTEXT_FULL = "context_full"  # the code of a Failure: the conversation is longer than the model takes


@dataclass(frozen=True, slots=True)
class Failure:
    """The model gave no completion: its route failed, or a script ended too soon.

    `retry_after_s`: how long the provider asks to wait. `unknown_end`: the request was sent and its outcome is unknown,
    so the attempt stays charged with all that it held.
    """

    code: str
    message: str
    retryable: bool = False
    retry_after_s: float | None = None
    unknown_end: bool = False
    usage: Usage | None = None
    kind: Literal["failure"] = "failure"


@dataclass(frozen=True, slots=True)
class Mechanical:
    """No model is available; the flow shortens the conversation by itself."""

    kind: Literal["mechanical"] = "mechanical"


@dataclass(frozen=True, slots=True)
class Extended:
    """A limit was raised while a closing waited for its answer: it is taken back, and the loop goes on."""

    kind: Literal["extended"] = "extended"


@dataclass(frozen=True, slots=True)
class Resumed:
    """A person or the caller let a paused flow go on."""

    kind: Literal["resumed"] = "resumed"


Answer = Completion | ToolResult | Refused | Failure | Mechanical | Extended | Resumed
CompletionAnswer = Completion | Refused | Failure | Mechanical | Extended
CallAnswer = ToolResult | Refused


@dataclass(frozen=True, slots=True)
class Sent:
    """What the server adds to a step to make an attempt: never digested, stored with the attempt.

    `max_tokens`: how many of the wanted tokens were granted. `tail`: the status line shown to the model. `line`: which
    line of a script answers this step. `temperature`: as the caller asked for. `dialect`: how the request was worded;
    None for a script, and for a client's model until it has answered, since the next client may be asked in another
    dialect. `agent`: the agent of the step, for the spending report. `unpriced`: this server pays an unknown price.
    """

    route: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    tail: str | None = None
    line: int | None = None
    temperature: float | None = None
    dialect: DialectName | None = None
    agent: str | None = None
    unpriced: bool | None = None

    def with_grant(self, max_tokens: int | None, tail: str | None) -> Sent:
        """Return it with the tokens that were granted, and the status line that the model is shown."""
        return Sent(
            self.route,
            self.model,
            max_tokens,
            tail,
            self.line,
            self.temperature,
            self.dialect,
            self.agent,
            self.unpriced,
        )


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The completion whose conversation another one goes on with: the name of its step, and with how many messages and
    which tools it was asked. Its answer and what came of it are the messages after those. `before`: its own one."""

    name: str
    messages: int
    tools: ToolSet
    before: Predecessor | None = None

    def newest_of(self, names: Container[str], within: str) -> Predecessor | None:
        """Return the newest completion of this conversation whose path, `within` and its name, is one of these."""
        found: Predecessor | None = self
        while found is not None and within + found.name not in names:
            found = found.before
        return found


@dataclass(frozen=True, slots=True)
class RequestCompletion:
    """Ask the model. `max_tokens` is what the flow wants; what it gets is decided when the step is executed.

    A `reminder` is digested with the step and shown at the tail of the newest turn; it never joins the conversation.
    `predecessor`: so that whoever answered that one, or one before it, need be shown only what is new; None where the
    conversation was begun or changed since. It follows from the conversation, so it is neither digested nor compared.
    """

    name: str
    purpose: Purpose
    conversation: Conversation
    tools: ToolSet = field(default_factory=ToolSet)
    output_schema: JsonObject | None = None
    max_tokens: int = 4096
    reminder: str | None = None
    predecessor: Predecessor | None = field(default=None, compare=False)
    kind: Literal["completion"] = "completion"

    @property
    def digest(self) -> bytes:
        schema = canonical_json(self.output_schema).encode() if self.output_schema is not None else b""
        asked = f"{self.purpose} {self.max_tokens}".encode()
        return digest_of(asked, self.conversation.digest, self.tools.digest, schema, (self.reminder or "").encode())

    def __iter__(self) -> Generator[RequestCompletion, CompletionAnswer, CompletionAnswer]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call that no turn of a model contains; the row of its step contains it."""

    tool: str
    arguments: JsonObject

    def at(self, path: str) -> ToolCall:
        """Return the call, with the step's path as its id."""
        return ToolCall(path, self.tool, self.arguments)


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call one tool once. `declared`: the risk that the model itself states; it can only raise the gate's own estimate.
    `is_of_turn`: the completion at the path of its turn (`turn_of`) contains the call, so its row need not."""

    name: str
    call: ToolCall
    declared: Risk = "low"
    is_of_turn: bool = field(default=False, compare=False)
    kind: Literal["tool_call"] = "tool_call"

    @property
    def stored_call(self) -> StoredCall | None:
        """What the row of the step stores of the call; None if a turn contains it."""
        return None if self.is_of_turn else StoredCall(self.call.name, self.call.arguments)

    @property
    def digest(self) -> bytes:
        return self.call.digest if self.declared == "low" else digest_of(self.call.digest, self.declared.encode())

    def __iter__(self) -> Generator[CallTool, CallAnswer, CallAnswer]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until somebody who may do so resumes the flow. Where a person is asked whether to, the answer of one who
    denies it is Refused.

    `progress`: the result of the flow so far, shown while the run waits. It follows from the earlier answers, so it is
    neither digested nor compared.
    """

    name: str
    reason: str
    progress: JsonObject = field(default_factory=dict, compare=False)
    kind: Literal["pause"] = "pause"

    @property
    def digest(self) -> bytes:
        return digest_of(self.reason.encode())

    def __iter__(self) -> Generator[Pause, Resumed | Refused, Resumed | Refused]:
        return (yield self)


Step = RequestCompletion | CallTool | Pause


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One row of the record: what was asked at a path (its digest) and the answer, if there is one."""

    path: str
    digest: bytes
    answer: Answer | None


@dataclass(frozen=True, slots=True)
class Branch(Generic[R_co]):
    """A flow that may run beside others.

    `flow`: a generator. If the branch depends on others (`Gather.depends_on`), a function that takes their outcomes by
    name and returns a generator.
    With `limits` the branch has an account of its own, and a limit of it refuses steps of this branch alone. Its caps
    are these limits, but at most its share of what the enclosing account has left (`open_branch` in
    budget/reservation.py); UNLIMITED: that share.
    `agent`: the agent of its steps, for rules of the gate and for reports; None: that of the flow around it.
    `about`: the purpose of its steps, for whoever answers them; None: that of the flow around it.
    """

    flow: Generator[Any, Any, R_co] | Callable[[Mapping[str, Any]], Generator[Any, Any, R_co]]
    limits: Limits | None = None
    agent: str | None = None
    about: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a branch that gave up, in place of its result."""

    reason: str


class GiveUp(Exception):
    """The one exception by which a branch gives up; any other is a bug and stays loud."""


@dataclass(frozen=True, slots=True)
class Gather(Generic[R]):
    """Branches that may run side by side. Answered with {name: outcome or Failed}, in declared order.

    A branch is a Branch, whose steps get the prefix `name/`, or a bare step, whose path is the name itself.
    `depends_on[name]`: the branches that must have ended before that branch starts. `max_parallel`: how many branches
    run at once; `alone`: those that run beside no other, in the declared order. Neither changes a path or an outcome:
    every step waits from the start, so that a person can be asked about several together.
    `reserved`: amounts that branches with limits can't use, set aside for the steps after them. A function is called
    again once a branch has ended. `keeps_share`: in units that `reserved` does not name, the share of one branch is set
    aside.
    """

    branches: Mapping[str, Branch[R] | CallTool]
    depends_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_parallel: int = 8
    reserved: Limits | Callable[[], Limits] = UNLIMITED
    keeps_share: bool = False
    alone: Collection[str] = ()
    kind: Literal["gather"] = "gather"

    def __iter__(self) -> Generator[Gather[R], dict[str, R | Failed], dict[str, R | Failed]]:
        return (yield self)


Flow = Generator[Step | Gather[Any], Any, R]


def gather_calls(calls: Iterable[CallTool], limit: int = 10, alone: Collection[str] = ()) -> Gather[CallAnswer]:
    """Gather calls; those that do more than read are made `alone`. Results come back in the order of the calls."""
    return Gather({step.name: step for step in calls}, max_parallel=limit, alone=alone)


MAX_DIGITS = 9  # of an ordinal; a longer number, in a path from outside, is part of the name
_ORDER = {"round": 1, "output": 2, "closing": 3, "submit": 4}  # of a planner's parts; all other parts sort as rounds do

_BRANCHES = ("task-", "try-", "cycle-")  # how the parts of a path begin that name flows inside the run's own


class PathPart(NamedTuple):
    """`round-3`: name and ordinal. A part without an ordinal has 0, and all of it is its name."""

    name: str
    ordinal: int


def split_path(path: str) -> tuple[PathPart, ...]:
    """Split a path into its parts, the outermost first. Any text can be split."""
    return tuple(_split_part(part) for part in path.split("/"))


def first_parts(path: str, count: int) -> str:
    """Return the path of the outermost `count` parts."""
    return "/".join(path.split("/")[:count])


def last_part(path: str) -> PathPart:
    """Return the innermost part of a path."""
    return _split_part(path.rpartition("/")[2])


def enclosing_path(path: str) -> str:
    """Return the path that a step or branch stands in; empty for the outermost."""
    return path.rpartition("/")[0]


def call_path(turn: str, number: int) -> str:
    """Return the path of a turn's call, numbered from 1. It is the call's id as well."""
    return f"{turn}/call-{number}"


def turn_of(path: str) -> tuple[str, int]:
    """Return the path of the turn that a step belongs to, and the number of its call there; 0: it is no call."""
    turn, _, part = path.rpartition("/")
    name, number = _split_part(part)
    return (turn, number) if name == "call" and number else (path, 0)


def enclosing_paths(path: str) -> Iterator[str]:
    """Yield the paths that a step stands in, the nearest first: `a/b` and `a` for `a/b/c`."""
    while path := enclosing_path(path):
        yield path


def task_of(path: str) -> str:
    """Return the path of the task that a step belongs to: `task-2` of `task-2/try-1/round-3`; empty for none.

    Tasks may run beside each other; the tries of one come one after the other.
    """
    if "task-" not in path:
        return ""  # as in nearly all runs
    names = path.split("/")
    count = next((n for n, name in enumerate(names, 1) if _split_part(name)[0] == "task" and n < len(names)), 0)
    return "/".join(names[:count])


def conversation_of(path: str) -> str:
    """Return the path of the flow whose conversation a step belongs to: `task-1/try-1` of
    `task-1/try-1/round-2/compact`; empty for the run's own."""
    if not path.startswith(_BRANCHES):
        return ""
    return "/".join(part for part in path.split("/") if part.startswith(_BRANCHES))


def round_of(path: str) -> int:
    """Return the number of the round that a step belongs to, 0 for none."""
    return next((part.ordinal for part in split_path(path) if part.name == "round"), 0)


def loop_of(path: str) -> str:
    """Return the path of the branch whose planner loop a step belongs to: `task-2/try-1` of
    `task-2/try-1/round-3/call-1`; empty for the run's own loop, and for a step outside any loop."""
    parts = path.split("/")
    return next(("/".join(parts[:at]) for at, part in enumerate(parts) if _split_part(part).name in _ORDER), "")


def sort_key(path: str) -> tuple[tuple[int, str, int], ...]:
    """Order paths as their steps come: round-2 before round-10, a turn before its calls, the closing last."""
    return tuple((_ORDER.get(name, 1), name, ordinal) for name, ordinal in split_path(path))


def _split_part(part: str) -> PathPart:
    name, _, number = part.rpartition("-")
    if name and number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS:
        return PathPart(name, int(number))
    return PathPart(part, 0)
