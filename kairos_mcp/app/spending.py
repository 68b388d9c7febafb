"""What is spent and left, account by account: a principal's day and the mandates on it, a run and its branches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from kairos_mcp.app.context import Operations, read_run
from kairos_mcp.budget.notes import clock_behind_reason
from kairos_mcp.budget.reservation import Account
from kairos_mcp.core.calendar import day_at, format_timestamp
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, UnknownMandate
from kairos_mcp.core.limits import CAPS, DAY_CAPS, NOTHING, Amount, Units
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.execution.accounting import DayToCharge, day_to_charge
from kairos_mcp.store import accounts, queries, spending_rows
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.report_queries import unpriced_models, unpriced_models_by_account
from kairos_mcp.store.rows import Session, read_each, read_together
from kairos_mcp.store.spending_rows import UsageShare

NEWEST_DAYS = 30
MANDATE_PREFIX = "mandate:"  # before the id, as a scope


class Spending(Operations):
    """Read what is spent and left, account by account."""

    async def read_spending(self, scope: str | None, caller: Caller) -> JsonObject:
        """Return what is spent and left.

        `scope`: the caller's `day` (the default), their newest `days`, `mandate:ID`, or a run's id. Raises UnknownRun,
        UnknownMandate.
        """
        if not self._store.exists and scope in (None, "day"):  # nothing is made for a look at an unused day
            today = DayToCharge(day_at(self._clock(), self._settings.time_zone))
            return self._unused_day(today, caller)
        return await self._store.read(lambda session: self._read_scope(session, scope, caller))

    def _read_scope(self, session: Session, scope: str | None, caller: Caller) -> JsonObject:
        match scope:
            case None | "day":
                return self._day_spending(session, caller)
            case "days":
                found, uncounted = read_together(
                    session,
                    lambda session: spending_rows.list_days(session, caller.principal, NEWEST_DAYS),
                    unpriced_models_by_account,
                )
                days = [
                    {"day": name, **_account_figures(account, DAY_CAPS), "unpriced": uncounted.get(account.id)}
                    for name, account in found.items()
                ]
                return {"scope": "days", "days": days}
            case str(named) if named.startswith(MANDATE_PREFIX):
                return self._mandate_spending(session, named.removeprefix(MANDATE_PREFIX), caller)
            case run_id:
                return _run_spending(session, read_run(session, run_id, caller))

    async def read_spending_by_day(self, principal: str | None, since: int | None, model: str | None) -> JsonObject:
        """Return what was spent on each day, of one principal or of all (None), on all models or on one: since this
        moment (milliseconds since 1970), or today."""
        first = day_at(self._clock() if since is None else since, self._settings.time_zone).name

        def read(session: Session) -> list[JsonObject]:
            found, uncounted = read_together(
                session,
                lambda session: spending_rows.list_day_accounts(session, first, principal),
                unpriced_models_by_account,
            )
            days = [
                {"day": day, "principal": name, **_account_figures(account, DAY_CAPS)}
                | {"unpriced": uncounted.get(account.id)}
                for day, name, account in found
            ]
            if model is None:
                return days
            shares = read_each(session, spending_rows.list_usage_shares, [account.id for _, _, account in found])
            return [
                {**day, "spent": limits_to_json(_sum_of_model(used, model), DAY_CAPS)}
                for day, used in zip(days, shares, strict=True)
                if any(share.model == model for share in used)
            ]

        days = await self._store.read(read) if self._store.exists else []
        return {"scope": "days", "since": first, "model": model, "days": days}

    async def read_days(self, caller: Caller) -> list[JsonObject]:
        """Return the caller's newest days, newest first: the figures of each, and who used what in which folder."""
        if not self._store.exists:
            return []

        def read(session: Session) -> list[JsonObject]:
            days, uncounted = read_together(
                session,
                lambda session: spending_rows.list_days(session, caller.principal, NEWEST_DAYS),
                unpriced_models_by_account,
            )
            list_shares = partial(spending_rows.list_usage_shares, by_workspace=True)
            shares = read_each(session, list_shares, [account.id for account in days.values()])
            return [
                {
                    "day": name,
                    **_account_figures(account, DAY_CAPS),
                    "by": _usage_shares(used, uncounted.get(account.id)),
                }
                for (name, account), used in zip(days.items(), shares, strict=True)
            ]

        return await self._store.read(read)

    def _unused_day(self, charged_day: DayToCharge, caller: Caller) -> JsonObject:
        account = Account(0, self._settings.day_of(caller.principal), NOTHING, NOTHING)
        fields = {"scope": "day", **self._period(charged_day, caller)}
        return {**fields, **_account_figures(account, DAY_CAPS), "unpriced": None, "by": [], "mandates": []}

    def _day_spending(self, session: Session, caller: Caller) -> JsonObject:
        charged_day = self._today(session, caller)
        used = accounts.find_day_account(session, caller.principal, charged_day.day.name)
        if used is None:
            return self._unused_day(charged_day, caller)
        fields = {"scope": "day", **self._period(charged_day, caller)}
        account = Account(used.id, self._settings.day_of(caller.principal), used.held, used.spent)
        uncounted, mandate_days, shares, lost = read_together(
            session,
            unpriced_models_by_account,
            lambda session: spending_rows.list_mandate_days(session, used.id),
            lambda session: spending_rows.list_usage_shares(session, used.id),
            lambda session: spending_rows.read_lost(session, used.id),
        )
        mandates = [
            {
                "mandate": mandate,
                "workspace": caller.visible_path(workspace) or None,
                **_account_figures(charged, DAY_CAPS),
                "unpriced": uncounted.get(charged.id),
            }
            for mandate, workspace, charged in mandate_days
        ]
        groups = self._settings.group_caps_of(caller.principal)
        sums = read_each(session, lambda session, name: _group_figures(session, name, charged_day.day.name), groups)
        own = {**_account_figures(account, DAY_CAPS), "unpriced": uncounted.get(account.id), **_lost_figures(lost)}
        own |= {"groups": [each for each in sums if each]} if groups else {}
        return {**fields, **own, "by": _usage_shares(shares, uncounted.get(used.id)), "mandates": mandates}

    def _mandate_spending(self, session: Session, mandate: str, caller: Caller) -> JsonObject:
        """Return what all runs of a mandate of this server's workspaces used today.

        Raises UnknownMandate, and BadArguments where two folders have a mandate of this id.
        """
        charged_day = self._today(session, caller)
        day = accounts.find_day_account(session, caller.principal, charged_day.day.name)
        used = spending_rows.list_mandate_days(session, day.id) if day is not None else []
        listed = self._context.listed_workspaces
        found = [(workspace, account) for name, workspace, account in used if name == mandate and workspace in listed]
        if not found:
            raise UnknownMandate(
                f"Nothing was used for a mandate {mandate[:64]!r} today.",
                "budget_status without a scope names those of today.",
            )
        if len(found) > 1:
            folders = " and ".join(caller.visible_path(workspace) or "no folder" for workspace, _ in found)
            raise BadArguments(f"There is a mandate {mandate} in {folders}.", "budget_status without a scope has each.")
        workspace, account = found[0]
        fields = {
            "scope": f"{MANDATE_PREFIX}{mandate}",
            "workspace": caller.visible_path(workspace) or None,
            **self._period(charged_day, caller),
        }
        shares, uncounted = read_together(
            session,
            lambda session: spending_rows.list_usage_shares(session, account.id),
            unpriced_models_by_account,
        )
        unpriced = uncounted.get(account.id)
        return {
            **fields,
            **_account_figures(account, DAY_CAPS),
            "unpriced": unpriced,
            "by": _usage_shares(shares, unpriced),
        }

    def _today(self, session: Session, caller: Caller) -> DayToCharge:
        return day_to_charge(session, caller.principal, self._clock(), self._settings.time_zone)

    def _period(self, charged_day: DayToCharge, caller: Caller) -> JsonObject:
        today = charged_day.day
        fields = {
            "day": today.name,
            "time_zone": self._settings.time_zone,
            "resets_at": format_timestamp(today.ends),
        }
        if charged_day.is_barred:
            return fields | {"note": clock_behind_reason(caller.principal)}
        if charged_day.is_ahead:
            return fields | {
                "note": "The clock shows an earlier day; this one was begun, and is charged until it has ended."
            }
        return fields


def _group_figures(session: Session, name: str, day: str) -> JsonObject:
    """Return what a group has used of the sum that its members share; nothing where they have used nothing."""
    account = accounts.find_day_account(session, name, day)
    return {} if account is None else {"group": name.partition(":")[2], **_account_figures(account, DAY_CAPS)}


def _run_spending(session: Session, run: RunRow) -> JsonObject:
    """Return the spending of a run and of its branches by path, outer ones first."""
    with queries.name_run_in_errors(run):
        account, unpriced, branches, lost = read_together(
            session,
            lambda session: read_account(session, run.account),
            lambda session: unpriced_models(session, run.n),
            lambda session: accounts.list_branches(session, run.account),
            lambda session: spending_rows.read_lost_of_run(session, run.n),
        )
        inner = [{"branch": path, **_account_figures(branch, CAPS)} for path, branch in branches.items()]
        whole = {**_account_figures(account, CAPS), "unpriced": list(unpriced) or None, **_lost_figures(lost)}
    return {"scope": run.id, **whole} | ({"branches": inner} if inner else {})


def _usage_shares(shares: Sequence[UsageShare], unpriced: Collection[str] | None) -> list[JsonObject]:
    """Show what each route, model, agent and mandate used on a day. `unpriced`: the day's models without a price."""
    return [
        {
            "route": each.route,
            "model": each.model,
            "agent": each.agent,
            "mandate": each.mandate,
            "attempts": each.attempts,
            **limits_to_json(each.spent, DAY_CAPS),
            "unpriced": [each.model] if each.model in (unpriced or ()) else None,
        }
        | ({} if each.workspace is None else {"workspace": each.workspace or None})
        for each in shares
    ]


def _lost_figures(lost: Units) -> JsonObject:
    """Show apart what is charged for attempts of unknown outcome; nothing where there are none."""
    return {"at_bound": limits_to_json(lost, DAY_CAPS)} if lost.model_calls else {}


def _sum_of_model(shares: Sequence[UsageShare], model: str) -> Units:
    return Units(*map(sum, zip(*(share.spent for share in shares if share.model == model), strict=True)))


def _account_figures(account: Account, units: tuple[str, ...]) -> JsonObject:
    amounts: dict[str, Amount[int] | Amount[int | None]] = {
        "limits": account.caps,
        "spent": account.spent,
        "held": account.held,
        "remaining": account.remaining,
    }
    return {name: limits_to_json(amount, units) for name, amount in amounts.items()}
