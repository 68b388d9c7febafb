"""Operations that answer what a run waits for: approve, deny, settle, answer.

A decision names the digest of what was on the screen, so that it is about nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kairos_mcp.app.operations.operation import (
    RUN_CONTROL,
    Argument,
    Id,
    OperationKind,
    OperationResult,
    RunOperation,
    Text,
)
from kairos_mcp.core.builtin_tools import MAX_SUBMITTED_FILES
from kairos_mcp.core.command_patterns import parse_pattern
from kairos_mcp.core.decision_rights import Settlement
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.rules import RuleRequest

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.core.decision_rights import Caller

Key = Annotated[
    str,
    Field(min_length=1, max_length=400),
    Argument("the key of the waiting item, which ends in `/settle`."),
]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), Argument("the digest of the waiting item.", "the item's")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve(RunOperation):
    """Approve what a run asks permission for. `name`: of the tool, typed to approve what can't be undone."""

    kind = OperationKind(
        "approve",
        tool="run_continue",
        command="approve",
        button="waiting.js",
        who="approval",
        request="verdict",
        moves=True,
    )

    key: Key
    digest: Digest
    feedback: Text | None = None
    name: Id | None = None
    always: Literal["run", "project"] | None = None
    files: Annotated[list[str], Field(min_length=1, max_length=MAX_SUBMITTED_FILES)] | None = None  # None: all
    pattern: Text | None = None

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        if self.pattern is not None and self.always is None:
            raise BadArguments("A pattern needs a remembered approval.", "Say for how long to remember it.")
        argv = parse_pattern(self.pattern) if self.pattern is not None else None
        rule = None if self.always is None else RuleRequest(self.always, argv)
        asked = await app.answers.find_approval(self.run, self.key, caller)
        if asked.effect == "irreversible" and self.name != asked.tool:
            raise BadArguments("This can't be undone, and the tool's name was not typed.", f"Type {asked.tool}.")
        await app.answers.decide(
            *(self.run, self.key, "approve", self.feedback or None, caller),
            digest=self.digest,
            rule=rule,
            files=self.files,
            drive=drive,
        )
        return OperationResult("Approved." if rule is None else "Approved, and allowed from now on.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny(RunOperation):
    """Deny what a run asks permission for."""

    kind = Approve.kind._replace(name="deny", command="deny")

    key: Key
    digest: Digest
    feedback: Text | None = None

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        feedback = self.feedback or None
        await app.answers.decide(self.run, self.key, "deny", feedback, caller, digest=self.digest, drive=drive)
        return OperationResult("Denied.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle(RunOperation):
    """Resolve a tool call whose outcome is unknown after a crash: try it again, or mark it as done."""

    kind = OperationKind(
        "settle",
        tool=RUN_CONTROL,
        command="settle",
        button="waiting.js",
        who="settlement",
        request="settle",
        moves=True,
        action="a call whose outcome is unknown after a crash",
        subject="call",
    )

    key: Key
    settlement: Annotated[
        Settlement, Argument("make the call again (`reattempt`), or take it as carried out (`already_done`).")
    ]
    digest: Digest
    note: Text | None = None

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        note = self.note or None
        await app.answers.settle(
            self.run, self.key, self.settlement, caller, note=note, digest=self.digest, drive=drive
        )
        return OperationResult("Settled.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(RunOperation):
    """Answer what a run waits for."""

    kind = OperationKind("answer", tool="run_continue", command="answer", button="acts.js", moves=True)

    answers: Annotated[dict[str, JsonObject], Field(min_length=1, max_length=64)]

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        await app.answers.submit(self.run, self.answers, caller, drive=drive)
        return OperationResult("Answered.")
