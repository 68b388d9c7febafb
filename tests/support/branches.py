"""An app whose every run is a flow of branches, each a planner loop with limits of its own, and the books of these."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from kairos_mcp.app.app import App
from kairos_mcp.app.run_factory import RunFactory
from kairos_mcp.core.limits import UNITS, UNLIMITED, Limits, Units
from kairos_mcp.core.messages import Completion, Conversation, Message
from kairos_mcp.core.outcomes import Outcome, make_outcome
from kairos_mcp.core.steps import Branch, Flow, Gather, RequestCompletion
from kairos_mcp.flows.planner import planner
from kairos_mcp.flows.planner_input import PlannerInput
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.store.database import Store
from support.app import Place, assert_all_lawful, total
from support.daily_accounts import Clock, assert_days_add_up, by_steps, usage_of
from support.other_flow import OtherFlow


@dataclass(frozen=True)
class Team:
    """So many tasks beside each other, each tried so often one after the other; None: without limits of their own."""

    tasks: int = 2
    tries: int = 0
    limits: Limits | None = UNLIMITED
    tried: Limits | None = UNLIMITED
    side_by_side: int = 16
    aside: Limits = UNLIMITED
    synthesis: bool = True
    agent: str | None = None
    about: str | None = None  # of each task, before its number
    goals: tuple[str, ...] = ()  # of each task its own, in place of the run's

    def flow(self, brief: PlannerInput) -> Flow[Outcome]:
        """Its tasks, then one call that is made of what they found."""
        branches = {f"task-{n}": self._branch(n, brief) for n in range(1, self.tasks + 1)}
        found: Mapping[str, Any] = yield from Gather(branches, max_parallel=self.side_by_side, reserved=self.aside)
        parts = [f"{name}: {getattr(outcome, 'stop_reason', outcome)}" for name, outcome in found.items()]
        if self.synthesis:
            talk = Conversation((Message("user", "\n".join(parts)),))
            answer = yield from RequestCompletion("synthesis", "phase", talk, max_tokens=1_000)
            parts.append(answer.content if isinstance(answer, Completion) else answer.kind)
        return make_outcome("assistant_stop", "\n".join(parts))

    def _branch(self, n: int, brief: PlannerInput) -> Branch[Any]:
        about = None if self.about is None else f"{self.about} {n}"
        brief = replace(brief, user=self.goals[n - 1]) if self.goals else brief
        return Branch(self._task(brief), self.limits, self.agent, about)

    def _task(self, brief: PlannerInput) -> Flow[Any]:
        if not self.tries:
            return (yield from planner(brief))
        outcomes = []
        for n in range(1, self.tries + 1):
            name = f"try-{n}"
            tried: Mapping[str, Any] = yield from Gather({name: Branch(planner(brief), self.tried)})
            outcomes.append(tried[name].stop_reason)
        return make_outcome("assistant_stop", ", ".join(outcomes))


DEEP = Team(tasks=2, tries=2)


def looks(n: int, read: int = 1_500, **more: Any) -> dict[str, Any]:
    """A turn that reads something that no other one reads."""
    asked = {"name": "read_file", "arguments": {"path": "a.txt", "start_line": n + 1}}
    return {"content": "look", "tool_calls": [asked], **usage_of(read), **more}


def lines(count: int = 400, read: int = 1_500) -> list[dict[str, Any]]:
    return [looks(n, read) for n in range(count)]


class Teams(OtherFlow):
    """A wiring whose every run is this team's."""

    team = Team()

    def change(self, loaded: LoadedSpec) -> LoadedSpec:
        assert loaded.planner_input is not None
        brief = loaded.planner_input
        return replace(loaded, flow=lambda: self.team.flow(brief))


def team_app(settings: Settings, team: Team, clock: Callable[[], int], new_id: Callable[[], str]) -> App:
    def make_factory(settings: Settings, store: Store) -> RunFactory:
        factory = Teams(settings, store)
        factory.team = team
        return factory

    return App(settings, "mcp", clock, new_id, make_factory=make_factory)


@asynccontextmanager
async def open_team_app(settings: Settings, team: Team, clock: Callable[[], int] | None = None) -> AsyncIterator[App]:
    """An app of this team; its runs, branches and days are held against their rows when the block ends."""
    app = team_app(settings, team, clock or Clock(), lambda: f"run-{secrets.token_hex(6)}")
    try:
        yield app
        await assert_all_lawful(app)
        assert_books_agree(Place(settings.home.parent))
    finally:
        await app._close()


def put_reader(place: Place, max_rounds: int) -> None:
    """Write the user's agent `reader`."""
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    head = f"name: reader\ndescription: Reads.\ntools: [read_file]\nmax_rounds: {max_rounds}\n"
    (folder / "reader.md").write_text(f"---\n{head}---\nYou read.\n")


@dataclass(frozen=True)
class BranchBook:
    """What the account of a branch says."""

    caps: Limits
    held: Units
    spent: Units


def branches_of(place: Place, run_id: str) -> dict[str, BranchBook]:
    """The accounts of a run's branches by path, outer ones first."""
    columns = ", ".join(f"account.{kind}_{unit}" for kind in ("cap", "held", "spent") for unit in Units._fields)
    found = place.rows(
        "with recursive inside(id) as (select account from run where id = ? union all select account.id from account"
        f" join inside on parent = inside.id) select name, {columns} from account join inside on inside.id = account.id"
        " where scope = 'branch' order by account.id",
        run_id,
    )
    one = len(UNITS)
    return {
        path: BranchBook(Limits(*figures[:one]), Units(*figures[one : 2 * one]), Units(*figures[2 * one :]))
        for path, *figures in found
    }


def assert_books_agree(place: Place) -> None:
    """Each account is the sum of its rows: days, mandates, branches; `assert_lawful` looks at the runs' own."""
    assert_days_add_up(place)
    for (run_id,) in place.rows("select id from run"):
        spent, held = by_steps(place, run_id)
        for path, book in branches_of(place, run_id).items():
            inside = f"{path}/"
            assert book.spent == total([units for step, units in spent if step.startswith(inside)]), path
            assert book.held == total([units for step, units in held if step.startswith(inside)]), path
