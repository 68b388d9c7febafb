"""Runs as a person looks at them: in a list, alone, by a short name, and all that waits.

Whoever owns the state folder owns all in it, so the page shows every run, whoever's it is; to an observer too, as to
somebody who may look and nothing else. What a look gives is a
function of the rows; entries of runs that have ended are kept in memory, since they don't change.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from kairos_mcp.app.context import AppContext, Operations
from kairos_mcp.app.runs import Runs
from kairos_mcp.core.builtin_tools import withhold_more_rounds
from kairos_mcp.core.command_patterns import format_pattern
from kairos_mcp.core.decision_rights import LOCAL, OBSERVER, Caller, person_on_page
from kairos_mcp.core.errors import BadArguments, NotFound, NotWaiting, UnknownRun
from kairos_mcp.core.limits_table import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import truncate
from kairos_mcp.store import approvals, find_runs, queries, run_changes
from kairos_mcp.store.find_runs import Decided, FoundRun
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, read_each
from kairos_mcp.store.rules import RuleRequest
from kairos_mcp.store.run_changes import ListedRun
from kairos_mcp.views.run_report import make_report
from kairos_mcp.views.shown_run import DECIDED_BY_PERSONS, show_row, show_run
from kairos_mcp.views.steps import ShownSteps

LAST = "last"
"""The name by which a person means the newest run of the workspaces at hand."""

_ID_PREFIX = "run-"
SHORT_ID_CHARS = len(_ID_PREFIX) + 4  # of an id in a list; more where others begin alike
_BEGINNING = re.compile(r"[a-z0-9-]{1,40}")
_NAMED_RUNS = 4  # of those that begin alike
EXCERPT_CHARS = 160  # around what was searched for
SEARCHED_RUNS = 1_000
MAX_KEPT = 1_000  # rows of ended runs in memory
MAX_FOUND = 100


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, by its newest run: its folder, and whether that run has ended.

    `tools`: those that it was offered, as far as they are still there; None for the usual ones, which only read.
    `agent`: whose run it was.
    """

    run_id: str
    workspace: str | None
    has_ended: bool
    tools: tuple[str, ...] | None
    agent: str | None = None


class Overview(Operations):
    """Look at the runs of the state folder."""

    def __init__(self, context: AppContext, runs: Runs) -> None:
        super().__init__(context)
        self._runs = runs
        self._ended: OrderedDict[str, JsonObject] = OrderedDict()

    def _viewer(self, principal: str) -> Caller:
        """Return who looks at this principal's runs."""
        return person_on_page(principal)

    async def read_version(self) -> int:
        """Return a number that changes with every commit; 0 for an empty store."""
        return await self._store.read(lambda session: session.read_version()) if self._store.exists else 0

    async def newest(self, limit: int, before: str | None = None) -> list[ListedRun]:
        """Return the newest runs, or those older than the run `before`."""
        if not self._store.exists:
            return []
        return await self._store.read(lambda session: run_changes.newest_of_all(session, limit, before))

    async def row(self, run_id: str) -> JsonObject:
        """Return the run's row in a list. Raises UnknownRun."""
        if (known := self._ended.get(run_id)) is not None:
            return known
        run = await self._find(run_id)
        looked = await self._runs.look(run, self._viewer(run.principal), "keys")
        waits = await self._store.read(lambda session: find_runs.waits_for_person(session, run.n))
        row = show_row(*looked, waits_for_person=waits)
        if run.outcome is not None:
            self._ended[run_id] = row
            while len(self._ended) > MAX_KEPT:
                self._ended.popitem(last=False)
        return row

    async def search(self, text: str) -> JsonObject:
        """Return the rows of the newest runs whose goal or summary holds all words of a text, with where they do."""
        words = text.casefold().split()
        if not words or not self._store.exists:
            return {"rows": [], "searched": 0}
        texts = await self._store.read(lambda session: run_changes.newest_texts(session, SEARCHED_RUNS))
        rows: list[JsonObject] = []
        for run_id, goal, summary in texts:
            for place, whole in (("goal", goal), ("summary", summary)):
                if whole is not None and all(word in whole.casefold() for word in words) and len(rows) < MAX_FOUND:
                    plain = " ".join(whole.split())
                    at = max(0, plain.casefold().find(words[0]) - EXCERPT_CHARS // 3)
                    excerpt = ("…" if at else "") + truncate(plain[at:], EXCERPT_CHARS)
                    rows.append({**await self.row(run_id), "found": place, "excerpt": excerpt})
                    break
        return {"rows": rows, "searched": len(texts)}

    async def find_caller(self, run_id: str) -> Caller:
        """Return who looks, acting on whose run it is. Raises UnknownRun."""
        return self._viewer((await self._find(run_id)).principal)

    async def watch_steps(self, run_id: str) -> ShownSteps:
        """Return the steps of a run, none of which were read yet. Raises UnknownRun."""
        return ShownSteps(await self._find(run_id))

    async def read_steps(self, shown: ShownSteps) -> None:
        """Read what is new of a run's steps. Raises Unreadable."""
        await self._store.read(shown.read, one_state=True)

    async def read_run(self, run_id: str) -> JsonObject:
        """Return a run as it is shown beside its steps, with its limits. Raises UnknownRun, Unreadable."""
        run = await self._find(run_id)
        facts, viewer = await self._runs.look_beside_steps(run, self._viewer(run.principal))
        shown = show_run(facts, viewer)
        offered = await self._store.read(partial(_add_offers, run=run, items=shown["waiting"]))
        return {**shown, "waiting": offered, "limits": limits_to_json(facts.account.caps), "principal": run.principal}

    async def read_item(self, run_id: str, key: str) -> JsonObject:
        """Return what waits under this key, whole: of a completion the conversation. Raises UnknownRun, NotFound."""
        report = await self._runs.report(run_id, await self.find_caller(run_id))
        for item in report.waiting:
            if item["key"] == key:
                return item
        raise NotFound(f"Nothing waits under {key[:120]!r}.", "Look at the run again.", run_id=run_id)

    async def count_waiting(self) -> int:
        """Count the runs that wait for a person."""
        return len(await self._list_waiting())

    async def list_waiting(self) -> list[JsonObject]:
        """Return the runs that wait for a person, oldest first: each with what is to be decided about, whole, and with
        why it stands still."""
        found: list[JsonObject] = []
        for run_id in await self._list_waiting():
            run = await self._find(run_id)
            looked = await self._runs.look(run, self._viewer(run.principal), "all")
            report, row = make_report(*looked), show_row(*looked, waits_for_person=True)
            items = [item for item in report.waiting if item["kind"] in DECIDED_BY_PERSONS]
            offered = await self._store.read(partial(_add_offers, run=run, items=items))
            found.append({"run": row, "items": offered, "next": report.next, "held_up_by": list(report.held_up_by)})
        return found

    async def _list_waiting(self) -> list[str]:
        if not self._store.exists:
            return []
        return await self._store.read(lambda session: find_runs.list_waiting_for_person(session, None, None))

    async def _find(self, run_id: str) -> RunRow:
        return await self._store.read(lambda session: queries.run_by_id(session, run_id))

    # -- what a person at a terminal means, and is wanted for -----------------------------------------------------

    async def find_run(
        self, name: str, principal: str | None, waits_for: Decided | None = None
    ) -> tuple[FoundRun, bool]:
        """Return the run of this id, whose id begins so (`run-` may be left out), or the newest (LAST), with
        `waits_for` of those that wait for such a decision; and whether that is its whole id.

        `principal`: whose it has to be; without one a whole id finds any run, and a short name the local principal's.
        Raises UnknownRun; NotWaiting where none waits so; BadArguments where several begin so.
        """
        found: list[FoundRun] = []
        is_exact = False
        if self._store.exists:
            found, is_exact = await self._store.read(
                lambda session: self._find_named(session, name, principal, waits_for)
            )
        if not found and name == LAST and waits_for is not None:
            what = "an approval" if waits_for == "approval" else "a settlement"
            raise NotWaiting(f"No run here waits for {what}.", "`kairos-mcp inbox` lists what waits.")
        if not found or (principal is not None and found[0].principal != principal):
            whose = "" if principal is None else f" of {truncate(principal, 60)}"
            raise UnknownRun(f"There is no run {truncate(name, 40)!r}{whose} here.", _where_runs_are(name, principal))
        if len(found) > 1:
            more = " and more" if len(found) > _NAMED_RUNS else ""
            named = ", ".join(run.run_id for run in found[:_NAMED_RUNS])
            raise BadArguments(f"Several runs begin with {name!r}: {named}{more}.", "Give more of the id.")
        return found[0], is_exact

    async def shorten_ids(self, run_ids: Sequence[str], caller: Caller) -> dict[str, str]:
        """Return for each of the caller's runs a beginning of its id that no other run of theirs has."""

        def shorten(session: Session, run_id: str) -> str:
            lengths = range(SHORT_ID_CHARS, len(run_id))
            beginnings = (run_id[:length] for length in lengths)
            found = (each for each in beginnings if find_runs.is_unique_beginning(session, each, caller.principal))
            return next(found, run_id)

        short = await self._store.read(lambda session: read_each(session, shorten, run_ids))
        return dict(zip(run_ids, short, strict=True))

    def _find_named(
        self, session: Session, name: str, principal: str | None, waits_for: Decided | None
    ) -> tuple[list[FoundRun], bool]:
        """Return the runs that may be meant, and whether that is certain."""
        whole, whose = find_runs.find_by_id(session, name), principal or LOCAL
        if whole is not None:
            return [whole], True
        if name == LAST:
            workspaces = self._context.listed_workspaces if self._settings.workspaces else None
            if waits_for is None:
                newest = queries.newest_run_ids(session, whose, workspaces, 1)
            else:
                newest = find_runs.newest_waiting(session, whose, workspaces, waits_for)
            return [FoundRun(run_id, whose) for run_id in newest], False
        if not _BEGINNING.fullmatch(name):
            return [], False
        beginning = name if name.startswith(_ID_PREFIX) else _ID_PREFIX + name
        return find_runs.find_by_beginning(session, beginning, whose, _NAMED_RUNS + 1), False

    async def newest_conversation(self, caller: Caller) -> str | None:
        """Return the id of the newest planner run that a command started in the workspaces at hand, or None."""
        if not self._store.exists:
            return None
        workspaces = self._context.listed_workspaces[1:]
        return await self._store.read(
            lambda session: find_runs.newest_conversation(session, caller.principal, workspaces)
        )

    async def read_conversation(self, run_id: str, caller: Caller, from_round: str | None = None) -> Conversation:
        """Return the conversation that this run is the newest of; or that of the loop of its round `from_round`, which
        may be a team's task. Raises UnknownRun, StoreCorrupt."""
        run = await self._context.find_run(run_id, caller)
        with queries.name_run_in_errors(run):
            loaded = await self._factory.specs.load(run)
            if loaded.team is not None and from_round is not None:
                step = await self._store.read(lambda session: queries.step_at(session, run.n, from_round))
                agent = None if step is None else step.sent.agent
                return Conversation(run.id, run.workspace, run.outcome is not None, None, agent)
            if loaded.planner_input is None:  # a fork at a step of it has its tools anyway
                return Conversation(run.id, run.workspace, run.outcome is not None, None)
        agent = loaded.spec.agent
        offered = loaded.offered_tools
        if agent is not None:
            offered = withhold_more_rounds(offered)  # its loop has it anyway
        registry = await self._factory.registry(run.workspace if self._factory.has_folder(run) else None)
        tools = tuple(spec.name for spec in offered if registry.find(spec.name) is not None)
        is_usual = agent is None and all(spec.effect == "read" for spec in offered)
        return Conversation(run.id, run.workspace, run.outcome is not None, None if is_usual else tools, agent)

    async def count_waiting_for_caller(self, caller: Caller, *, everywhere: bool = False) -> int:
        """Count the caller's runs that wait for an answer in the place of a model: in the workspaces at hand, or
        `everywhere`."""
        if not self._store.exists:
            return 0
        workspaces = None if everywhere else self._context.listed_workspaces
        return await self._store.read(
            lambda session: find_runs.count_waiting_for_caller(session, caller.principal, workspaces)
        )

    async def list_waiting_ids(self, caller: Caller, *, everywhere: bool = False) -> list[str]:
        """Return the ids of the caller's runs that wait for a person: in the workspaces at hand, or `everywhere`."""
        if not self._store.exists:
            return []
        workspaces = None if everywhere else self._context.listed_workspaces
        return await self._store.read(
            lambda session: find_runs.list_waiting_for_person(session, caller.principal, workspaces)
        )


class ObservedRuns(Overview):
    """Look at the runs of the state folder as somebody who decides nothing."""

    def _viewer(self, principal: str) -> Caller:
        return OBSERVER


def _where_runs_are(name: str, principal: str | None) -> str:
    """Say how a run is found that is not among those of the local principal, or of another one."""
    if principal is not None:
        return "`kairos-mcp runs --everyone` lists whose each run is."
    listed = "runs" if name == LAST else "runs --all"
    return (
        f"`kairos-mcp {listed}` lists yours; another principal's is found by its whole id, which"
        " `kairos-mcp runs --everyone` lists, or with --principal NAME."
    )


def _add_offers(session: Session, run: RunRow, items: Sequence[JsonObject]) -> list[JsonObject]:
    """Return items with what may be remembered of an approval: {covers, pattern}, or null where nothing may."""
    return [
        {**item, "always": _describe_offer(session, run, item["key"])} if item["kind"] == "approval" else item
        for item in items
    ]


def _describe_offer(session: Session, run: RunRow, key: str) -> JsonObject | None:
    """Return which calls a rule would allow that is made with the approval under this key; None where none may be."""
    row = approvals.find_by_key(session, run.n, key)
    if row is None or row.shape is None:
        return None
    covers = RuleRequest("run").cover(row.shape)
    pattern = format_pattern(row.shape.pattern) if row.shape.pattern else None
    return {"covers": covers.describe(row.tool), "pattern": pattern}
