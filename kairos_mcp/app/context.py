"""The parts of an opened house, and what every act on a run needs of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kairos_mcp.app.client_memory import ClientStates
from kairos_mcp.app.command_text import CommandLine, for_this_terminal, program_words
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.app.run_pool import RunPool
from kairos_mcp.core.decision_rights import Kind, check_decision_right, decision_way
from kairos_mcp.core.errors import Busy, PathDenied, ReplayDiffers, Unreadable
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import RecordedStep, Step
from kairos_mcp.execution.worker import replay_mismatch
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import approvals, ownership, queries
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow, with_run_id


@dataclass(frozen=True, slots=True)
class AppContext:
    """Made by the host, who opens and closes it. `clock`: milliseconds since 1970; `by_hand`: a person's command."""

    settings: Settings
    store: Store
    factory: RunFactory
    pool: RunPool
    clock: Callable[[], int]
    new_id: Callable[[], str]
    by_hand: bool
    sessions: ClientStates = field(default_factory=ClientStates)

    async def register_use(self) -> None:
        """Something was asked of this server: it may own runs now, and looks for ownerless ones."""
        await self.factory.repair_texts()
        if not self.by_hand:
            self.pool.wake()
            if self.store.exists and self.store.owner_number < 0:
                await self.store.register_owner(self.clock())  # so that a command knows who goes on with what it leaves
            await self.pool.pick_up()

    def find_run(self, run_id: str, caller: Caller) -> RunRow:
        """The run, to be looked at: that may be done from anywhere. Raises UnknownRun."""
        return queries.run_by_id(self.store.reader, run_id, caller.principal)

    def find_run_to_move(self, run_id: str, caller: Caller) -> RunRow:
        """The run, to be answered or driven: by a person's command anywhere, by a caller of the protocol only where the
        run's folder is served, since nobody there sees another folder. Raises UnknownRun, PathDenied."""
        run = self.find_run(run_id, caller)
        if caller.via != "command" and not self.serves(run.workspace):
            folder, elsewhere = (
                caller.visible_path(run.workspace or ""),
                "It can be looked at, paused and cancelled here",
            )
            cure = (
                f"start one with --workspace {shlex.quote(folder)}" if caller.is_local else "ask whoever runs this one"
            )
            raise PathDenied(
                f"The run works in {folder}, which this server does not serve.",
                f"{elsewhere}; for all else use a server of that folder, or {cure}.",
                run_id=run.id,
            )
        return run

    def serves(self, workspace: str | None) -> bool:
        """Whether a workspace is one of this server's; what has none belongs everywhere."""
        return not workspace or Path(workspace) in self.settings.workspaces

    @property
    def listed_workspaces(self) -> tuple[str, ...]:
        """The workspaces whose runs and mandates are listed here: this server's folders, and '' for none."""
        return ("", *map(str, self.settings.workspaces))

    def check_may_decide(self, kind: Kind, caller: Caller, command: str = "", *, run_id: str | None = None) -> None:
        """Raises ApprovalRequired where this caller's way to decide is closed; `command` is how a person does."""
        check_decision_right(kind, decision_way(caller.via), self.settings.approvals, command, run_id=run_id)

    def open_steps(self, run: RunRow) -> dict[str, Step]:
        """What waits for somebody, by path; with what was asked. Not what a person has to give leave for first."""
        waiting = approvals.read_waiting_items(self.store.reader, run.n).steps if run.outcome is None else {}
        steps = self.pool.state_of(run).runner.waiting if waiting else {}
        return {path: steps[path] for path in waiting if path in steps}

    def steps(self, run: RunRow) -> Mapping[str, Step]:
        """What the flow of the run waits for, by path. Raises Stale, StoreCorrupt.

        A run may be looked at from anywhere: where its folder is not one of this server's, its flow is built from its
        rows alone, and nothing is opened.
        """
        if self.serves(run.workspace):
            return self.pool.state_of(run).runner.waiting
        self.factory.check_version(run)
        runner = Runner(self.factory.load_spec(run).flow())
        try:
            runner.replay_all(
                RecordedStep(row.path, row.digest, row.answer) for row in queries.read_record(self.store.reader, run.n)
            )
        except ReplayDiffers as differs:
            raise replay_mismatch(run.id, differs) from differs
        except Unreadable as damaged:
            raise with_run_id(run, damaged) from damaged
        return runner.waiting

    def may_drive(self, run: RunRow) -> bool:
        """A person's command acts on the run's own workspace, a server on those it was given; neither goes on with a
        run whose tools or route it does not have."""
        return next(self.factory.lacks(run, by_hand=self.by_hand), None) is None

    @property
    def commands(self) -> CommandLine:
        """How a command is worded for whoever owns the state folder: in their terminal as they called this one, by a
        server so that it works in any shell of theirs."""
        settings, usual = self.settings, self.settings.home / "kairos.toml"
        asked = ("flag",) if self.by_hand else ("flag", "environment")
        options = ["--home", str(settings.home)] if settings.origins.get("home") in asked else []
        if settings.config_file is not None and settings.config_file != usual:
            options += ["--config", str(settings.config_file)]
        return for_this_terminal(options) if self.by_hand else CommandLine(program_words(), tuple(options))

    def word_for(self, text: str, caller: Caller) -> str:
        """A text as it is shown to this caller: commands ready to paste for the person whose state folder it is."""
        return self.commands.complete_all(text) if caller.is_local else text

    def is_served(self, run: RunRow) -> bool:
        """Whether a server lives that goes on with runs of this one's folder: then no command does."""
        return self.by_hand and ownership.find_serving(self.store.reader, self.store.home, run.workspace)[1]

    def check_awake(self, run: RunRow) -> None:
        """Raises Busy where the run's server was stopped: it keeps its runs, and would take up nothing."""
        if (asleep := self.asleep(run)) is not None:
            raise asleep

    def asleep(self, run: RunRow) -> Busy | None:
        """That the run's server was stopped, and what a person can do about it; None where it was not."""
        if run.owner in (None, self.store.owner_number):
            return None
        server = ownership.stopped_owner(self.store.reader, self.store.home, run.owner or ownership.NOBODY)
        if server is None:
            return None
        return Busy(
            f"The run belongs to a server that was stopped (process {server.pid}).",
            f"Let it go on (kill -CONT {server.pid}), or take its runs from it: "
            f"`kairos-mcp status --release {server.number}`.",
            run_id=run.id,
        )

    def dead_owner(self, run: RunRow) -> list[int]:
        """The run's owner, if its server has ended: it may be taken by whoever brings something for it."""
        if run.owner is None or ownership.is_owner_alive(self.store.reader, self.store.home, run.owner):
            return []
        return [run.owner]
