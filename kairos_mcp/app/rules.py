"""List and remove remembered approvals; they are made with an approval (app/answers.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kairos_mcp.app.context import Operations
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store import rules
from kairos_mcp.store.rules import RuleRow
from kairos_mcp.tools.files.safe_open import folder_identity
from kairos_mcp.views.waiting import format_time


@dataclass(frozen=True, slots=True)
class ListedRule:
    """A rule, how old it is, and whether it still counts: not once another folder has the path of its workspace."""

    rule: RuleRow
    age_s: float
    counts: bool

    def as_json(self) -> JsonObject:
        rule, covered = self.rule, self.rule.covered
        calls: JsonObject = {"argv": list(covered.argv), "cwd": covered.cwd} if covered.argv else {}
        calls |= {} if covered.path is None else {"path": covered.path}
        calls |= {} if covered.arguments is None else {"arguments": json.loads(covered.arguments)}
        return {
            "rule": rule.id,
            "tool": rule.tool,
            **calls,
            "principal": rule.principal,
            "workspace": rule.workspace or None,
            "run_id": rule.run_id,
            "approved_in": {"run_id": rule.approved_in, "key": rule.key},
            "by": rule.by,
            "client": rule.client,
            "at": format_time(rule.at),
            "counts": self.counts,
        }


class Rules(Operations):
    """What people allowed from then on. Every operation is a person's alone, by a command."""

    async def list_all(self, caller: Caller, *, everywhere: bool = False) -> list[ListedRule]:
        """List the caller's rules, oldest first: in the workspaces at hand, or `everywhere`; without those of runs that
        have ended."""
        workspaces = None if everywhere else self._context.listed_workspaces
        found = await self._store.read(lambda session: rules.list_rules(session, caller.principal, workspaces))
        return [self._make_listed(rule) for rule in found]

    async def find_made_with(self, run_id: str, key: str, caller: Caller) -> RuleRow | None:
        """Return the rule that was made with the approval under this key; None if it was not remembered."""
        run = await self._context.find_run(run_id, caller)
        return await self._store.read(lambda session: rules.find_made_with(session, run, key))

    async def remove(self, rule: int, caller: Caller, *, everywhere: bool = False) -> ListedRule:
        """Remove a rule of this caller: from now on a person is asked again. Raises NotFound, ApprovalRequired;
        BadArguments for one of another workspace than those at hand, unless `everywhere`."""
        self._context.check_may_decide("rule", caller)
        at, workspaces = self._clock(), None if everywhere else self._context.listed_workspaces
        return self._make_listed(
            await self._store.submit(lambda session: rules.remove_rule(session, rule, caller.principal, workspaces, at))
        )

    def _make_listed(self, rule: RuleRow) -> ListedRule:
        counts = not rule.workspace or folder_identity(rule.workspace) == rule.folder
        return ListedRule(rule, (self._clock() - rule.at) / 1000, counts)
