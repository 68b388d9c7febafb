"""Find what a person at a terminal means and is wanted for: a run by a short name, and all that waits for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kairos_mcp.app.context import Operations
from kairos_mcp.core.decision_rights import LOCAL, Caller
from kairos_mcp.core.errors import BadArguments, UnknownRun
from kairos_mcp.core.text import truncate
from kairos_mcp.store import find_runs, queries
from kairos_mcp.store.find_runs import FoundRun
from kairos_mcp.store.rows import Session, read_each
from kairos_mcp.tools.selection import withhold_more_rounds

LAST = "last"
"""The name by which a person means the newest run of the workspaces at hand."""

_ID_PREFIX = "run-"
SHORT_ID_CHARS = len(_ID_PREFIX) + 4  # of an id in a list; more where others begin alike
_BEGINNING = re.compile(r"[a-z0-9-]{1,40}")
_NAMED_RUNS = 4  # of those that begin alike


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


class Inbox(Operations):
    """Find the run that a person means, and the runs that wait for a person."""

    async def find_run(self, name: str, principal: str | None) -> tuple[FoundRun, bool]:
        """Return the run of this id, whose id begins so (`run-` may be left out), or the newest (LAST); and whether
        that is its whole id.

        `principal`: whose it has to be; without one a whole id finds any run, and a short name the local principal's.
        Raises UnknownRun; BadArguments where several begin so.
        """
        found: list[FoundRun] = []
        is_exact = False
        if self._store.exists:
            found, is_exact = await self._store.read(lambda session: self._find(session, name, principal))
        if not found or (principal is not None and found[0].principal != principal):
            where = "runs` lists those of this workspace" if name == LAST else "runs --all` lists what there is"
            raise UnknownRun(f"There is no run {truncate(name, 40)!r} here.", f"`kairos-mcp {where}.")
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

    def _find(self, session: Session, name: str, principal: str | None) -> tuple[list[FoundRun], bool]:
        """Return the runs that may be meant, and whether that is certain."""
        whole, whose = find_runs.find_by_id(session, name), principal or LOCAL
        if whole is not None:
            return [whole], True
        if name == LAST:
            workspaces = self._context.listed_workspaces if self._settings.workspaces else None
            newest = queries.newest_run_ids(session, whose, workspaces, 1)
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
        offered = loaded.offered if agent is None else withhold_more_rounds(loaded.offered)  # its loop has it anyway
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

    async def list_waiting(self, caller: Caller, *, everywhere: bool = False) -> list[str]:
        """Return the ids of the caller's runs that wait for a person: in the workspaces at hand, or `everywhere`."""
        if not self._store.exists:
            return []
        workspaces = None if everywhere else self._context.listed_workspaces
        return await self._store.read(
            lambda session: find_runs.list_waiting_for_person(session, caller.principal, workspaces)
        )
