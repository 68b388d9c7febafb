"""What the steps of a run need of its tools: who decides about a call, who makes it, and the results of decisions.

`authorization.py` implements `CallRights`, `tool_caller.py` implements `CallMaker`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kairos_mcp.budget.reservation import Reservation
from kairos_mcp.core.decision_rights import decision_way
from kairos_mcp.core.errors import Denied, KairosError
from kairos_mcp.core.messages import ToolCall, ToolResult, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import Answer, CallTool
from kairos_mcp.core.tool import ProbeResult, Tool, ToolMemory, error_result
from kairos_mcp.store.approvals import ApprovalRequest, ApprovalRow, BaseHashes, ReusedApproval
from kairos_mcp.store.commit import StepResult
from kairos_mcp.store.queries import StepRow
from kairos_mcp.store.settlements import SettlementRequest

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

    async def authorize(self, path: str, step: CallTool) -> Authorization:
        """Decide whether the call may be made, with a look at its files."""

    def can_probe(self, step: CallTool) -> bool:
        """Whether the tool can find out what became of this call in a crash."""

    async def probe(self, path: str, step: CallTool, base: BaseHashes | None) -> ProbeResult:
        """Have the tool find out what became of a call in a crash."""

    def call(
        self, path: str, step: CallTool, reservation: Reservation, base: BaseHashes | None, is_alone: bool
    ) -> StepResult | Awaitable[StepResult]:
        """Make the call: return its result, or what has to be awaited for it."""

    def restore_changes(self, calls: Iterable[tuple[StepRow, CallTool]]) -> None:
        """Take over what the calls of a team's tasks did to files, from the record."""

    def record_change(self, path: str, call: ToolCall, answer: Answer) -> None:
        """Remember what a call of a team's task did to files."""


def denial_result(row: ApprovalRow) -> ToolResult:
    """Return the result of a call that a person denied, with their comment."""
    comment = f' They say: "{row.feedback}".' if row.feedback else ""
    return error_result(
        Denied(f"A person denied {row.tool}; nothing was changed.{comment}", "Do it otherwise, or go on without.")
    )


def reviewer_comment(row: ApprovalRow) -> str | None:
    """Return a person's comment on the call that they approved, as the model is shown it beside the result."""
    if row.verdict != "approve" or not row.feedback:
        return None
    return f"A person approved {row.tool}. They say: {row.feedback}"


def settlement_result(settlement: SettlementRequest, via: str) -> ToolResult:
    """Return the result of a call that was made before a crash, as somebody says; its real result is not known.

    `via`: how they said it, as the record has it.
    """
    who = "Whoever called this server says" if decision_way(via) == "argument" else "A person looked"
    comment = f" They say: {settlement.note}" if settlement.note else ""
    return ToolResult(f"The server ended during this call. {who}: it was carried out.{comment}")
