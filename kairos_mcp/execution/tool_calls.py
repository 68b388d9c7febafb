"""What the steps of a run need of its tools: who decides about a call, and who makes it.

`tool_access.py` implements `CallRights`, `tool_caller.py` implements `CallMaker`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import ToolCall, ToolResult, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import Answer, CallTool
from kairos_mcp.core.tool import ProbeResult, Tool, ToolMemory
from kairos_mcp.store.approvals import ApprovalRequest, BaseHashes, ReusedApproval
from kairos_mcp.store.commit import StepResult
from kairos_mcp.store.queries import StepRow

CHANGE_GRACE_S = 5.0  # for a call that changes files: one is written and synced within it, also on a slow disk


@dataclass(frozen=True, slots=True)
class Allowed:
    """The call may be made. `reused`: because a person approved this call, or such calls, before."""

    reused: ReusedApproval | None = None


Authorization = Allowed | ToolResult | ApprovalRequest
"""The call may be made; its result without being made; or what a person is to be asked."""


class CallRights(Protocol):
    """Says which tools a run may call, and when. `mandate`: the id of the run's mandate."""

    mandate: str | None

    def agent_of(self, path: str, /) -> str | None:
        """The agent that a step's call is made for."""

    def set_agent_lookup(self, agent_of: Callable[[str], str | None]) -> None:
        """Let `agent_of` ask this function from now on."""

    def find_spec(self, name: str) -> ToolSpec | None:
        """The tool as a model was shown it; None if none of this name was offered to any agent."""

    def find_offered(self, path: str, name: str) -> ToolSpec | None:
        """The tool that a call at this path names; None if it was not offered there."""

    def find_tool(self, name: str) -> Tool | None:
        """The tool that performs a call."""

    def check_call(self, path: str, call: ToolCall, spec: ToolSpec | None, at: int) -> KairosError | None:
        """The error of a call that can't be made, or None."""

    def authorize_at_once(self, path: str, step: CallTool, spec: ToolSpec | None) -> Authorization | None:
        """What is known of permission for a call without a look at files; None: `CallMaker.authorize` has to decide.
        `spec`: of the tool, as it was offered there."""

    def record_call(self, spec: ToolSpec | None, at: int) -> None:
        """Count a call towards the limit per minute."""

    def record_search(self, name: str, answer: Answer) -> None:
        """Offer from now on what a search found."""

    def reset(self) -> None:
        """Forget all calls, before the record is read again."""


class CallMaker(Protocol):
    """Makes the calls of a run.

    `memory`: the run's, while a worker drives the run. `late_results`: results, by path, of calls that were cancelled
    while they changed files.
    """

    memory: ToolMemory
    late_results: dict[str, StepResult]

    @property
    def redactor(self) -> Redactor:
        """What masks the texts that a call keeps."""

    async def authorize(
        self, path: str, step: CallTool, behind: Sequence[tuple[str, CallTool]]
    ) -> dict[str, Authorization]:
        """Decide whether the call may be made, with a look at its files; by path, also what a person is asked about the
        calls behind it together with this one."""

    def take_judgement(self, path: str) -> str | None:
        """How the call at this path was judged by what it takes along, to be stored; None: it was not."""

    def foreign_files(self, step: CallTool, result: ToolResult) -> tuple[str, ...]:
        """The files of the workspace that the call wrote from texts of others."""

    def can_probe(self, step: CallTool) -> bool:
        """Whether the tool can find out what became of this call in a crash."""

    async def probe(self, path: str, step: CallTool, base: BaseHashes | None, begun_ms_ago: int) -> ProbeResult:
        """Have the tool find out what became of a call in a crash, which was begun first so long ago."""

    def call(
        self, path: str, step: CallTool, reservation: Reservation, base: BaseHashes | None, is_alone: bool
    ) -> StepResult | Awaitable[StepResult]:
        """Make the call: return its result, or what has to be awaited for it."""

    def restore_changes(self, calls: Iterable[tuple[StepRow, CallTool]]) -> None:
        """Take over what the calls of a team's tasks did to files, from the record."""

    def record_change(self, path: str, call: ToolCall, answer: Answer) -> None:
        """Remember what a call of a team's task did to files."""
