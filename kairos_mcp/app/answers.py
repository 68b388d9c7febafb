"""Submit answers and decisions for what waits in a run, all or none of a request; list and remove remembered ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kairos_mcp.app.answer_checks import check_repeated_answer, make_answers, split_answers, to_stored_form
from kairos_mcp.app.dialogs import Dialogs
from kairos_mcp.app.redact_aside import count_chars, redact_aside
from kairos_mcp.core import redact_values
from kairos_mcp.core.decision_rights import Caller, Settlement, Verdict
from kairos_mcp.core.errors import AlreadyAnswered, ApprovalExpired, BadArguments, NotFound, NotWaiting, Stale
from kairos_mcp.core.input_checks import REPLY_BYTES, refuse_placeholders
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.routes import CALLER
from kairos_mcp.core.steps import Answer
from kairos_mcp.store import approvals, audit, decisions, ownership, queries, rules, settlements
from kairos_mcp.store.approvals import ApprovalRow, WaitingItems
from kairos_mcp.store.decisions import Decision
from kairos_mcp.store.foreign_files import ForeignFile, list_files, trust_file
from kairos_mcp.store.inbox import SubmittedAnswer
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode_answer
from kairos_mcp.store.rules import RuleRequest, RuleRow
from kairos_mcp.store.settlements import KEY_SUFFIX, SettlementRequest
from kairos_mcp.tools.files.safe_open import folder_identity
from kairos_mcp.views.waiting import decision_command, format_time

MAX_NAMED_KEYS = 8  # waiting keys in one refusal


@dataclass(frozen=True, slots=True)
class ListedRule:
    """A remembered approval: its rule, how old it is, and whether it still counts: not once another folder has the path
    of its workspace."""

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


class Answers(Dialogs):
    """Submit answers for open steps, decisions about approvals, and settlements of calls of unknown outcome.

    A client's user may also answer in a dialog (`Dialogs`). What people allowed from then on, by a rule, is listed and
    removed here; only a person removes one, by a command.
    """

    async def submit(self, run_id: str, answers: Mapping[str, object], caller: Caller, *, drive: bool = True) -> None:
        """Submit answers and decisions for what waits; all are checked before any is stored.

        `drive=False`: don't go on with the run here. Raises UnknownRun, NotWaiting, AlreadyAnswered, BadArguments, and
        for decisions ApprovalRequired, ApprovalMismatch, ApprovalExpired.
        """
        await self._context.register_use()
        refuse_placeholders(dict(answers))
        _refuse_large(answers)
        run = await self._context.find_run_to_move(run_id, caller)
        with queries.name_run_in_errors(run):
            found = await self._store.read(lambda session: self._read_answered(session, run, answers))
            open_steps = await self._context.open_steps(run, found.waits)
            recorded = {path: decode_answer(body) for path, body in found.bodies.items()}
            # First in the stored form: what a model wrote in a call is redacted less than other texts.
            stored = {
                key: to_stored_form(value, open_steps.get(key), recorded.get(key)) for key, value in answers.items()
            }
            answers = await redact_aside(_redact_answers, stored, self._factory.redactor)
            steps, decided, settled = split_answers(answers, found.approval_keys.__contains__, caller.actor)
            self._check_may_decide(run, decided, settled, caller)

            def make(steps: Mapping[str, object]) -> list[SubmittedAnswer]:
                unanswered = self._unanswered_steps(run, steps, recorded)
                return make_answers(unanswered, open_steps, found.approvals, run_id, self._settings.shown_chars)

            try:
                new_answers = await redact_aside(make, steps)  # a long result is looked through once more
            except (NotWaiting, AlreadyAnswered) as stale:
                raise type(stale)(stale.message, _describe_waiting(run, found.waits), run_id=run.id) from stale
        if new_answers and run.paused is not None and run.resume_at is None and run.outcome is None:
            raise Stale(
                f"The run is paused, and takes no answers: {run.paused}",
                'Go on with it first, by run_control action="resume"; then answer.',
                run_id=run.id,
            )
        if new_answers or decided or settled:
            await self._submit_responses(run, new_answers, decided, caller, drive=drive, settled=settled)

    async def keys_unmasked(self, answers: Mapping[str, object]) -> frozenset[str]:
        """Return the keys of the answers that are recorded as they were given, no word of them masked. Raises
        BadArguments for an answer that is too large."""
        _refuse_large(answers)
        plain = await redact_aside(_redact_answers, dict(answers), self._factory.redactor)
        return frozenset(key for key, value in answers.items() if plain[key] == value)

    async def decide(
        self,
        run_id: str,
        key: str,
        verdict: Verdict,
        feedback: str | None,
        caller: Caller,
        *,
        digest: str | None = None,
        rule: RuleRequest | None = None,
        files: Sequence[str] | None = None,
        drive: bool = True,
    ) -> ApprovalRow:
        """Record a person's decision about the approval under this key, and return that approval.

        `digest`: of what the person was shown. None: the whole key says what they mean, since nothing else can wait
        under it. `rule`: with an approval, allow such calls from now on (`ApprovalRow.shape` says which). `files`:
        approve these alone, of changes that can be approved by file. Raises
        UnknownRun, NotWaiting, ApprovalRequired, ApprovalMismatch, ApprovalExpired, AlreadyAnswered; for a rule that
        can't be made BadArguments, and nothing is decided then.
        """
        await self._context.register_use()
        run, found = await self._find_approval(run_id, key, caller)
        redacted = (await redact_aside(self._factory.redactor.redact_text, feedback)).text if feedback else None
        if rule is not None and verdict != "approve":
            raise BadArguments("A denial is not remembered.", "`gate` in the settings denies calls by rules.")
        chosen = None if files is None else tuple(dict.fromkeys(files))
        decision = Decision(key, verdict, digest or found.digest, caller.actor, redacted, rule, files=chosen)
        await self._submit_responses(run, [], [decision], caller, drive=drive)
        return found

    async def find_approval(self, run_id: str, key: str, caller: Caller) -> ApprovalRow:
        """Return the approval under this key, as a person is asked about it. Raises UnknownRun, NotWaiting."""
        return (await self._find_approval(run_id, key, caller))[1]

    async def _find_approval(self, run_id: str, key: str, caller: Caller) -> tuple[RunRow, ApprovalRow]:
        run = await self._context.find_run_to_move(run_id, caller)
        with queries.name_run_in_errors(run):
            found = await self._store.read(lambda session: approvals.find_by_key(session, run.n, key))
        if found is None:
            waits = await self._store.read(lambda session: approvals.read_waiting_items(session, run.n))
            waiting = ", ".join(waits.approvals) or "none"
            raise NotWaiting(f"No approval waits under {key[:120]!r}.", f"Waiting: {waiting}.", run_id=run.id)
        return run, found

    async def settle(
        self,
        run_id: str,
        key: str,
        settlement: Settlement,
        caller: Caller,
        *,
        note: str | None = None,
        digest: str | None = None,
        drive: bool = True,
    ) -> None:
        """Resolve a call whose outcome is unknown after a crash: make it again, or take it as done.

        `digest`: of what was shown. None: whatever waits under the key now is meant. Raises NotWaiting,
        ApprovalRequired, ApprovalMismatch, AlreadyAnswered.
        """
        await self._context.register_use()
        run, path = await self._context.find_run_to_move(run_id, caller), key.removesuffix(KEY_SUFFIX)
        with queries.name_run_in_errors(run):
            current = await self._store.read(lambda session: digest or settlements.current_digest(session, run, path))
            shown_digest = current or ""
        redacted = note and (await redact_aside(self._factory.redactor.redact_text, note)).text
        request = SettlementRequest(path, settlement, redacted, shown_digest)
        await self._submit_responses(run, [], [], caller, drive=drive, settled=[request])

    async def _submit_responses(
        self,
        run: RunRow,
        new_answers: Sequence[SubmittedAnswer],
        decided: Sequence[Decision],
        caller: Caller,
        *,
        drive: bool,
        settled: Sequence[SettlementRequest] = (),
    ) -> None:
        """Store answers and decisions, all or none, and make sure that somebody goes on with the run.

        Every decision that a command, the page or a tool brings passes here; those of dialogs pass
        `Dialogs.take_decisions`.
        """
        self._check_may_decide(run, decided, settled, caller)
        at, dead = self._clock(), (await self._context.check_server_runs(run)).dead
        drives_here = drive and not await self._context.is_served_elsewhere(run) and await self._context.can_drive(run)
        owner = await self._store.register_owner(at) if drives_here else ownership.ANY_SERVER
        route = CALLER.name if caller.via == "mcp" else caller.via

        try:
            with queries.name_run_in_errors(run):
                only_answers = bool(new_answers) and not (decided or settled)
                if only_answers and await self._context.pool.commit_answers(run, new_answers, route, owner):
                    return
                fence = await self._store.submit(
                    lambda session: decisions.record_responses(
                        session,
                        run,
                        new_answers,
                        decided,
                        route,
                        owner,
                        at,
                        dead=dead,
                        settlement_requests=settled,
                        actor=caller.actor,
                    ),
                    of_run=run.n if only_answers else None,  # what was decided may be a rule for further runs
                )
        except ApprovalExpired:  # also of the others that nobody decided in time; their steps wait for a resume
            at = self._clock()
            if await self._store.submit(lambda session: decisions.expire_overdue(session, at)):
                await self._context.register_use()
            raise
        await self._pool.continue_run(run, owner, fence)

    def _check_may_decide(
        self, run: RunRow, decided: Sequence[Decision], settled: Sequence[SettlementRequest], caller: Caller
    ) -> None:
        """Raise ApprovalRequired if this caller may not decide: it may be the very model that wants the call."""
        for decision in decided:
            self._context.check_may_decide("approval", caller, decision_command(run, decision.key), run_id=run.id)
            if decision.rule is not None:
                self._context.check_may_decide("rule", caller, decision_command(run, decision.key), run_id=run.id)
        for settlement in settled:
            command = decision_command(run, settlement.path + KEY_SUFFIX)
            self._context.check_may_decide("settlement", caller, command, run_id=run.id)

    def _unanswered_steps(
        self, run: RunRow, answers: Mapping[str, object], recorded: Mapping[str, Answer]
    ) -> dict[str, object]:
        """Return the answers for steps that have none recorded yet; one that repeats the recorded answer is dropped."""
        unanswered = {}
        for path, value in answers.items():
            if (known := recorded.get(path)) is None:
                unanswered[path] = value
            else:
                check_repeated_answer(path, value, known, run.id, self._settings.shown_chars)
        return unanswered

    def _read_answered(self, session: Session, run: RunRow, keys: Collection[str]) -> AnsweredKeys:
        waits = self._context.read_waits(session, run)
        others = [key for key in keys if key not in waits.steps]  # a step that waits is no approval, and has no answer
        approval_keys = frozenset(key for key in others if approvals.find_by_key(session, run.n, key) is not None)
        paths = [key for key in others if key not in approval_keys and not settlements.is_settlement_key(key)]
        was_asked = bool(paths) or any(step.has_approval for step in waits.steps.values())
        return AnsweredKeys(
            approval_keys,
            queries.answer_bodies_at(session, run.n, paths),
            approvals.newest_approvals(session, run.n) if was_asked else {},
            waits,
        )

    async def list_rules(self, caller: Caller, *, everywhere: bool = False) -> list[ListedRule]:
        """List the caller's rules, oldest first: in the workspaces at hand, or `everywhere`; without those of runs that
        have ended."""
        workspaces = None if everywhere else self._context.listed_workspaces
        found = await self._store.read(lambda session: rules.list_rules(session, caller.principal, workspaces))
        return [self._make_listed(rule) for rule in found]

    async def find_rule_made_with(self, run_id: str, key: str, caller: Caller) -> RuleRow | None:
        """Return the rule that was made with the approval under this key; None if it was not remembered."""
        run = await self._context.find_own_run(run_id, caller)
        return await self._store.read(lambda session: rules.find_made_with(session, run, key))

    async def remove_rule(self, rule: int, caller: Caller, *, everywhere: bool = False) -> ListedRule:
        """Remove a rule of this caller: from now on a person is asked again. Raises NotFound, ApprovalRequired;
        BadArguments for one of another workspace than those at hand, unless `everywhere`."""
        self._context.check_may_decide("rule", caller)
        at, workspaces = self._clock(), None if everywhere else self._context.listed_workspaces

        def remove(session: Session) -> RuleRow:
            removed = rules.remove_rule(session, rule, caller.principal, workspaces, at)
            audit.record(session, "rule", "remove", f"rule {rule}: {removed.tool}", caller.actor, at)
            return removed

        return self._make_listed(await self._store.submit(remove))

    async def list_foreign_files(self) -> dict[str, list[ForeignFile]]:
        """List the files that runs wrote from texts of others, by workspace: of those at hand."""
        workspaces = self._context.listed_workspaces

        def read(session: Session) -> dict[str, list[ForeignFile]]:
            return {each: [file for file in list_files(session, each) if file.trusted is None] for each in workspaces}

        return await self._store.read(read)

    async def trust_file(self, workspace: str, path: str, caller: Caller) -> None:
        """Take a file's words for the person's own from now on, whoever wrote them. Raises NotFound where it is not
        known to be of others, ApprovalRequired."""
        self._context.check_may_decide("rule", caller)
        if path not in [file.path for file in (await self.list_foreign_files()).get(workspace, [])]:
            raise NotFound(
                f"{path} is not known to hold texts of others.",
                "`kairos-mcp trust` without a file lists those that are.",
            )
        at = self._clock()
        await self._store.submit(lambda session: trust_file(session, workspace, path, at))

    def _make_listed(self, rule: RuleRow) -> ListedRule:
        counts = not rule.workspace or folder_identity(rule.workspace) == rule.folder
        return ListedRule(rule, (self._clock() - rule.at) / 1000, counts)


class AnsweredKeys(NamedTuple):
    """What the answers of a request are checked against: which of its keys are approvals; for those of steps, what was
    recorded (encoded), the run's newest approvals by path, and what it waits for."""

    approval_keys: frozenset[str]
    bodies: Mapping[str, str]
    approvals: Mapping[str, ApprovalRow]
    waits: WaitingItems


def _describe_waiting(run: RunRow, waits: WaitingItems) -> str:
    """Say what waits now, for a caller whose answer came too late."""
    if run.outcome is not None:
        return "The run has ended; run_status shows its result."
    open_steps = [path for path, row in waits.steps.items() if row.kind != "pause"]
    keys = [*open_steps, *waits.approvals, *(path + KEY_SUFFIX for path in waits.lost_calls)]
    more = f" and {len(keys) - MAX_NAMED_KEYS} more" if len(keys) > MAX_NAMED_KEYS else ""
    text = f"Waiting now: {', '.join(keys[:MAX_NAMED_KEYS])}{more}." if keys else "Nothing waits for an answer now."
    return f"{text} run_status shows where the run stands."


def _redact_answers(answers: Mapping[str, object], redactor: Redactor) -> dict[str, object]:
    return {key: redact_values.redact_answer(value, redactor) for key, value in answers.items()}


def _refuse_large(answers: Mapping[str, object]) -> None:
    """Raise BadArguments for an answer that is larger than is read, before anything looks for secrets in it."""
    for key, value in answers.items():
        if (size := count_chars(value)) > REPLY_BYTES:
            raise BadArguments(
                f"The answer for {key[:120]!r} has {size:,} characters; at most {REPLY_BYTES:,} are read.",
                "Write the long part into a file, and answer with its path.",
            )
