"""Who did what, through what, and what they were shown: decisions, control requests, rules, tools, tokens, settings.

Nearly all of it stands in rows that are there for other reasons. The table `audit` holds what no other row says. What
was pruned with its run is gone, so whoever needs it for longer reads it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kairos_mcp.core.calendar import format_timestamp
from kairos_mcp.core.decision_rights import BY_OWNER, LOCAL, Actor
from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.store.approvals import DialogView
from kairos_mcp.store.inbox import CONTROL
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.store.rows import Session, decode, decode_fields, read_each


class AuditEntry(NamedTuple):
    """One act. `id`: never used twice. `at`: milliseconds since 1970. `what` is acted on, `act` what is done: an
    approval is approved, denied or expires, a run is paused. `who`: the principal, None where nobody is known.
    `about`: which one. `principal`: whose run it is. `shown`: how much a dialog showed before the choice."""

    at: int
    id: str
    what: str
    act: str
    who: str | None
    through: str | None
    client: str | None
    about: str
    run: str | None = None
    principal: str | None = None
    digest: str | None = None
    shown: str | None = None
    note: str | None = None

    def as_json(self) -> JsonObject:
        """Return it as it is exported, without what is not known."""
        kept: Mapping[str, Any] = {name: value for name, value in self._asdict().items() if value is not None}
        return {**kept, "at": format_timestamp(self.at)}


def record(session: Session, what: str, act: str, about: str, actor: Actor, at: int, note: str | None = None) -> None:
    """Record an act that no other row tells."""
    session.rows(
        "insert into audit(at, what, act, about, principal, via, client, note) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (at, what, act, about, *actor, note),
    )


def list_entries(session: Session, since: int) -> list[AuditEntry]:
    """List what was done since this moment (milliseconds since 1970), oldest first."""
    parts: Sequence[list[AuditEntry]] = read_each(
        session, lambda session, read: list(read(session, since)), (_approvals, _requests, _rules, _tools, _noted_acts)
    )
    entries = [entry for part in parts for entry in part]
    return sorted([*entries, *_changed_settings(session, since)])


def _approvals(session: Session, since: int) -> Iterator[AuditEntry]:
    found = session.rows(
        "select decided_at, step, approval.n, verdict, by, through, approval.client, tool, approval.key, run.id,"
        " run.principal, digest, shown, feedback from approval join run on run.n = approval.run"
        " where verdict is not null and verdict <> 'withdrawn' and decided_at >= ?",
        (since,),
    )
    for at, step, n, verdict, by, through, client, tool, key, run, principal, digest, shown, note in found:
        try:
            dialog = None if shown is None else decode(DialogView, shown).describe()
        except Unreadable:
            dialog = None
        about = f"{tool} at {key}"
        name = f"approval-{step}-{n}"
        who = _who(by, through)
        yield AuditEntry(
            at, name, "approval", verdict, who, through, client, about, run, principal, digest, dialog, note
        )


def _who(principal: str, through: str | None) -> str | None:
    """Return who did it: for whomever, a command or the page is used by whoever owns the store, an operator perhaps."""
    return LOCAL if through in BY_OWNER else principal or None


_SHOWN_REQUESTS = CONTROL.keys() - {"verdict"}  # which approvals tell of


def _requests(session: Session, since: int) -> Iterator[AuditEntry]:
    found = session.rows(
        "select inbox.id, kind, body, inbox.principal, inbox.via, inbox.client, inbox.at, run.id, run.principal"
        " from inbox join run on run.n = inbox.run where inbox.at >= ?",
        (since,),
    )
    for number, kind, body, who, via, client, at, run, principal in found:
        if kind not in _SHOWN_REQUESTS:
            continue
        about, act, note = run, kind, None
        if kind == "settle":
            fields = decode_fields(body)
            about, act, note = str(fields.get("path")), str(fields.get("settlement")), fields.get("note")
        what = "call" if kind == "settle" else "run"
        yield AuditEntry(
            at, f"request-{number}", what, act, _who(who, via), via, client, about, run, principal, note=note
        )


def _rules(session: Session, since: int) -> Iterator[AuditEntry]:
    found = session.rows(
        "select id, at, tool, by, through, client, principal, approved_in from rule where at >= ?", (since,)
    )
    for number, at, tool, by, through, client, principal, run in found:
        about = f"rule {number}: {tool}"
        who = _who(by, through)
        yield AuditEntry(at, f"rule-{number}", "rule", "add", who, through, client, about, run, principal)


def _tools(session: Session, since: int) -> Iterator[AuditEntry]:
    found = session.rows(
        "select source, name, hash, state, at, by from definition where at >= ? and state <> 'pending' and name <> ''",
        (since,),
    )
    for source, name, hashed, state, at, by in found:
        name_of_entry = f"tool-{source}-{name}-{hashed[:12]}-{state}"
        yield AuditEntry(at, name_of_entry, "tool", state, by, None, None, f"{name} of {source}", digest=hashed)


def _noted_acts(session: Session, since: int) -> Iterator[AuditEntry]:
    found = session.rows(
        "select id, at, what, act, about, principal, via, client, note from audit where at >= ?", (since,)
    )
    for number, at, what, act, about, who, via, client, note in found:
        yield AuditEntry(at, f"act-{number}", what, act, _who(who, via), via, client, about, note=note)


def _changed_settings(session: Session, since: int) -> Iterator[AuditEntry]:
    """Yield which settings a server began with that the one before it, of the same settings file, had otherwise; never
    a value."""
    known: dict[str | None, dict[str, str]] = {}
    found = session.rows("select id, via, started_at, serves from owner where serves is not null order by id")
    for number, via, at, text in found:
        try:
            served: ServedRuns = decode(ServedRuns, text)
        except Unreadable:
            continue
        before, now = known.get(served.config), served.settings
        known[served.config] = now
        changed = [] if before is None else [n for n in {**before, **now} if before.get(n) != now.get(n)]
        if changed and at >= since:
            about = f"{', '.join(sorted(changed))} in {served.config or 'no file'}"
            yield AuditEntry(at, f"settings-{number}", "settings", "change", None, via, None, about)
