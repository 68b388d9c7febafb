"""What a client's user decides about in a dialog, approvals and calls of unknown outcome: find, ask, store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from kairos_mcp.app.client_requests import new_ask
from kairos_mcp.app.context import Operations
from kairos_mcp.app.redact_aside import redact_aside
from kairos_mcp.core.decision_rights import Actor, Caller, DecisionKind, Verdict
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import CallTool
from kairos_mcp.execution.authorization import format_preview
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store import approvals, client_questions, runs, settlements
from kairos_mcp.store.approvals import ApprovalRow, DialogView, WaitingItems
from kairos_mcp.store.client_questions import AskRow
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.queries import RunRow, WaitingRow
from kairos_mcp.store.settlements import SettlementRequest
from kairos_mcp.tools.tool import format_call

TOO_SOON = "a dialog was answered before anybody can have read it; nothing was decided by that."


@dataclass(frozen=True, slots=True)
class UnsettledCall:
    """A call of unknown outcome, as a person is asked about it: what it was (`preview`), and the digest of that."""

    key: str
    path: str
    tool: str
    preview: str
    digest: str


Question = ApprovalRow | UnsettledCall
"""What a client's user may be asked in a dialog; each has `key`, `preview` and `digest`."""


@dataclass(frozen=True, slots=True)
class UserDecision:
    """The decision of a client's user in a dialog about an approval, and how much of it the dialog showed."""

    verdict: Verdict
    feedback: str | None = None
    shown: DialogView | None = None


class Dialogs(Operations):
    """Ask a client's user what only a person may decide."""

    async def open_questions(
        self, run: RunRow, waiting: WaitingItems, caller: Caller, skipped_keys: Collection[str]
    ) -> list[Question]:
        """Return what a client's user may decide about.

        Left out are `skipped_keys`, what a client may not see before it is decided about, and what only the command may
        decide by the configuration.
        """
        if not self._factory.has_folder(run):  # the client's user sees another folder
            return []
        at, found = self._clock(), list[Question]()
        if self._decides_by_dialog("approval", caller):
            rows = waiting.approvals.values()
            found += [row for row in rows if row.expires_at > at and row.private_preview is None]
        if waiting.lost_calls and self._decides_by_dialog("settlement", caller):
            found += self._unsettled_calls(run, waiting.lost_calls, await self._pool.state_of(run))
        ignored = self._context.client_states.state_of(caller.session).ignored_dialogs
        return [
            each for each in found if each.key not in skipped_keys and (run.n, each.key, each.digest) not in ignored
        ]

    def _unsettled_calls(self, run: RunRow, lost: Mapping[str, WaitingRow], state: RunState) -> Iterator[UnsettledCall]:
        for path, row in lost.items():
            match state.runner.waiting.get(path):
                case CallTool(call=call):
                    spec = state.executor.tool_access.find_spec(call.name)
                    text = call.name if spec is None else format_call(spec, call.arguments)
                    preview = format_preview(text, self._factory.redactor)
                    yield UnsettledCall(
                        path + settlements.KEY_SUFFIX,
                        path,
                        call.name,
                        preview,
                        settlements.settlement_digest(run, path, row),
                    )
                case _:
                    pass

    def _decides_by_dialog(self, kind: DecisionKind, caller: Caller) -> bool:
        return caller.decides and self._context.may_decide(kind, "dialog")

    async def create_ask(
        self, run: RunRow, found: Sequence[Question], caller: Caller, *, stale_after_s: float | None
    ) -> AskRow | None:
        """Ask a client that answers by calling again, likewise for its user.

        None: an earlier ask stayed unanswered, so nobody is there to be asked.
        """
        asking = new_ask([each.key for each in found], caller, self._clock(), stale_after_s, None)
        return await self._store.submit(
            lambda session: client_questions.create_ask_once(session, run, asking), of_run=run.n
        )

    async def take_decisions(
        self,
        run_id: str,
        decisions: Mapping[str, UserDecision | SettlementRequest],
        caller: Caller,
        *,
        nonce: str | None = None,
    ) -> None:
        """Store what users decided in dialogs, by key; the `nonce` of an ask makes its answer count once.

        What comes too late, or may not be decided in a dialog, stores nothing.
        """
        run, at = await self._context.find_run_to_move(run_id, caller), self._clock()
        keys = [key for key, word in decisions.items() if isinstance(word, UserDecision)]
        shown = await self._store.read(
            lambda session: {key: approvals.find_by_key(session, run.n, key) for key in keys}
        )
        who = Actor(caller.principal, "elicitation", caller.client)
        decided: list[Decision] = []
        settled: list[SettlementRequest] = []
        for key, word in decisions.items():
            match word:
                case UserDecision() if self._decides_by_dialog("approval", caller):
                    if (row := shown[key]) is not None:
                        feedback = await self._redact(word.feedback)
                        decided.append(Decision(key, word.verdict, row.digest, who, feedback, shown=word.shown))
                case SettlementRequest() if self._decides_by_dialog("settlement", caller):
                    settled.append(replace(word, note=await self._redact(word.note)))
                case _:
                    pass
        mine = await self._context.owner_for(run)
        fence = await self._store.submit(
            lambda session: client_questions.record_ask_decisions(
                session, run, nonce, decided, settled, who, owner=mine, at=at
            )
        )
        await self._pool.continue_run(run, mine, fence)

    async def _redact(self, text: str | None) -> str | None:
        return (await redact_aside(self._factory.redactor.redact_text, text or "")).text or None

    async def mark_ignored(self, run_id: str, key: str, digest: str, caller: Caller, *, too_soon: bool = False) -> None:
        """Remember that nobody answered a dialog in this session: it is not shown there again, unless somebody asks.

        `too_soon`: an answer came, but before anybody can have read the dialog; that is noted in the run.
        """
        run = await self._context.find_run(run_id, caller)
        self._context.client_states.state_of(caller.session).ignore(run.n, key, digest)
        if too_soon:
            await self._store.submit(lambda session: runs.add_note(session, run, TOO_SOON), of_run=run.n)

    async def forget_ignored(self, run_id: str, caller: Caller) -> None:
        """Let this session be shown the run's dialogs again that nobody has answered in it."""
        run = await self._context.find_run(run_id, caller)
        self._context.client_states.state_of(caller.session).forget_ignored(run.n)
