"""Find the saved mandate that a request means, and save one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kairos_mcp.app.context import Operations
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, Stale, UnknownMandate
from kairos_mcp.core.mandate import Mandate, parse_mandate
from kairos_mcp.core.run_spec import MandateRef
from kairos_mcp.execution.accounting import day_to_charge
from kairos_mcp.store import accounts, mandates
from kairos_mcp.store.mandates import MandateRow
from kairos_mcp.store.rows import Session, encode

ID_CHARS = 12  # of the digest, where a mandate has no id of its own
MAX_SHOWN_IDS = 20


class SavedMandates(Operations):
    """Find mandates and save them."""

    async def save_parsed(
        self, mandate: Mandate, workspace: str | None, caller: Caller, shown: str | None = None
    ) -> bool:
        """Save a mandate; its limits per day hold from now on, today included. Raises Stale where `shown` is not the
        digest of the text that is replaced."""
        self._context.require_writing("mandate_save")
        row = MandateRow(
            caller.principal,
            folder := workspace or "",
            mandate.id or "",
            encode(mandate.as_json()),
            mandate.digest,
            mandate.goal_hash,
            self._clock(),
            place=self._settings.place if folder else None,
        )
        at, zone = self._clock(), self._settings.time_zone

        def save(session: Session) -> bool:
            known = None if shown is None else mandates.find(session, row.principal, folder, row.id)
            if shown is not None and (known is None or known.digest != shown):
                raise changed_since(row.id)
            changed = mandates.save(session, row)
            today = day_to_charge(session, caller.principal, at, zone).day.name
            day = accounts.find_day_account(session, caller.principal, today) if changed else None
            if day is not None and accounts.find_mandate_account(session, day.id, folder, row.id) is not None:
                accounts.ensure_mandate_account(session, day.id, folder, row.id, mandate.day)
            return changed

        return await self._store.submit(save)

    async def find_named(self, mandate_ref: MandateRef, caller: Caller) -> tuple[Mandate, str | None]:
        """Find the mandate that a request names, which was redacted; return it and its workspace."""
        match mandate_ref:
            case MandateRef(mandate_id=str(), mandate=None, goal=None):
                row = await self.find_saved(mandate_ref, caller)
                return row.parse(), row.workspace or None
            case MandateRef(mandate_id=None, mandate=dict(given), goal=None):
                mandate = parse_mandate(given)
            case MandateRef(mandate_id=None, mandate=None, goal=str(goal)):
                mandate = parse_mandate({"goal": goal})
            case _:
                raise BadArguments(
                    "Which mandate is meant?", "Give just one: mandate_id, mandate, or for a phase goal."
                )
        workspace = self._factory.find_workspace(
            mandate_ref.workspace if mandate.workspace is None else mandate.workspace
        )
        if mandate_ref.workspace is not None and self._factory.find_workspace(mandate_ref.workspace) != workspace:
            raise BadArguments(
                "The mandate names another workspace than the call.", "Leave `workspace` out of the call."
            )
        return mandate, workspace

    async def find_saved(self, mandate_ref: MandateRef, caller: Caller) -> MandateRow:
        """Find the saved mandate of this id in the named folder, else in any of this server's folders.

        Raises UnknownMandate; BadArguments where two folders have one.
        """
        mandate_id = mandate_ref.mandate_id or ""
        workspaces = (
            self._context.listed_workspaces
            if mandate_ref.workspace is None
            else (self._factory.find_workspace(mandate_ref.workspace) or "",)
        )

        def find(session: Session) -> MandateRow:
            rows = mandates.find_by_id(session, caller.principal, mandate_id)
            found = [row for row in rows if row.workspace in workspaces and self._factory.is_at(row.place)]
            if len(found) == 1:
                return found[0]
            if found:
                raise ambiguous_mandate(found, caller)
            raise self.unknown_mandate(session, mandate_id, caller)

        return await self._store.read(find)

    def unknown_mandate(self, session: Session, mandate_id: str, caller: Caller) -> UnknownMandate:
        """Make the error for an unknown mandate. Another principal's looks unknown too; the caller's own mandate in
        another folder is named with that folder."""
        principal = caller.principal
        elsewhere = [row.workspace for row in mandates.find_by_id(session, principal, mandate_id) if row.workspace]
        if elsewhere:
            folders = " and ".join(map(caller.visible_path, elsewhere))
            return UnknownMandate(
                f"The mandate {mandate_id} belongs to {folders}, which is not served here.",
                "Run it where that folder is served.",
            )
        ids = dict.fromkeys(
            row.id
            for row in mandates.list_page(session, principal, self._context.listed_workspaces, limit=MAX_SHOWN_IDS)
        )
        saved = ", ".join(ids) or "none"
        return UnknownMandate(f"There is no mandate {mandate_id[:64]!r}.", f"mandate_save makes one. Saved: {saved}.")


def with_id(mandate: Mandate) -> Mandate:
    """Return the mandate with its id, or with one made of its digest."""
    return replace(mandate, id=mandate.id or f"m-{mandate.digest[:ID_CHARS]}")


def changed_since(mandate_id: str) -> Stale:
    """Make the error for a mandate that is another one by now."""
    return Stale(f"The mandate {mandate_id} was changed since it was shown.", "Look at it again.")


def ambiguous_mandate(rows: Sequence[MandateRow], caller: Caller) -> BadArguments:
    """Make the error for an id under which several folders have a mandate."""
    folders = " and ".join(caller.visible_path(row.workspace) if row.workspace else "no folder" for row in rows)
    return BadArguments(f"There is a mandate {rows[0].id} in {folders}.", "Say which by `workspace`.")
