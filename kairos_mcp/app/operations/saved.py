"""Operations on what outlives a run: mandates, the definitions of tools, remembered approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kairos_mcp.app.operations.operation import Absent, Folder, Id, Operation, OperationKind, OperationResult
from kairos_mcp.app.operations.responses import Digest
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.core.decision_rights import Caller

BY_A_PERSON = Absent("A person decides it, and the caller of a tool may be a model.")
OF_A_PERSON = Absent("A person changes what they were shown; mandate_save saves a mandate again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMandate(Operation):
    """Save a mandate under its id."""

    kind = OperationKind("mandate_save", tool="mandate_save", command="mandate save", button="mandates.js")

    mandate: JsonObject

    async def do(self, app: App, caller: Caller) -> OperationResult:
        saved = await app.mandates.save(self.mandate, caller)
        return OperationResult(" ".join([f"Saved as {saved['mandate_id']}.", *saved["degraded"]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EditMandate(Operation):
    """Change a mandate. `digest`: of the mandate as it was shown."""

    kind = OperationKind("mandate_edit", tool=OF_A_PERSON, command="mandate edit", button="mandates.js")

    id: Id
    workspace: Folder | None = None
    digest: Digest
    mandate: JsonObject

    async def do(self, app: App, caller: Caller) -> OperationResult:
        saved = await app.mandates.edit(self.id, self.mandate, caller, workspace=self.workspace, shown=self.digest)
        return OperationResult(" ".join(["Saved." if saved["changed"] else "Nothing changed.", *saved["degraded"]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMandate(Operation):
    """Remove a mandate; its runs stay. `digest`: of the mandate as it was shown."""

    kind = OperationKind("mandate_remove", tool=OF_A_PERSON, command="mandate remove", button="mandates.js")

    id: Id
    workspace: Folder | None = None
    digest: Digest

    async def do(self, app: App, caller: Caller) -> OperationResult:
        await app.mandates.remove(self.id, caller, workspace=self.workspace, shown=self.digest)
        return OperationResult("Removed; its runs stay.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveTool(Operation):
    """Approve a tool, or a server's definition, as it was shown: `pin`."""

    kind = OperationKind(
        "tool_approve", tool=BY_A_PERSON, command="tools approve", button="tools.js", who="registration"
    )

    address: Id
    pin: Digest

    async def do(self, app: App, caller: Caller) -> OperationResult:
        await app.tools.decide(self.address, "approved", self.pin, caller)
        return OperationResult("Approved: runs that begin from now on find it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTool(Operation):
    """Remove a tool, or a server's definition, as it was shown: `pin`."""

    kind = ApproveTool.kind._replace(name="tool_remove", command="tools remove")

    address: Id
    pin: Digest

    async def do(self, app: App, caller: Caller) -> OperationResult:
        await app.tools.decide(self.address, "removed", self.pin, caller)
        return OperationResult("Removed: no run may call it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRule(Operation):
    """Remove a remembered approval: from now on a person is asked again."""

    kind = OperationKind("rule_remove", tool=BY_A_PERSON, command="rules remove", button="tools.js", who="rule")

    rule: Annotated[int, Field(ge=1)]

    async def do(self, app: App, caller: Caller) -> OperationResult:
        await app.answers.remove_rule(self.rule, caller, everywhere=True)
        return OperationResult("Removed: a person is asked again.")
