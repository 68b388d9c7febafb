"""What was done in a run, item by item, for somebody who watches it: its calls, and what the model says beside them.

Also signs of life, for somebody who waits.
"""

from __future__ import annotations

from collections.abc import Collection

from kairos_mcp.core.messages import Completion, JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import loop_of, round_of
from kairos_mcp.core.text import count_of
from kairos_mcp.store import report_queries
from kairos_mcp.store.accounts import read_account
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode_answer, read_each, read_together
from kairos_mcp.views.calls import call_entries, newest_calls
from kairos_mcp.views.team_view import TeamView


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One sign of life for somebody who waits: `round 3/12 · search_files · $0.04`.

    `team`: what a team is at, which then stands in place of the round.
    """

    run_id: str
    round: int
    rounds: int | None
    text: str
    nano_usd: int
    team: TeamView | None = None

    @property
    def place(self) -> str:
        """Say how far the run is: `round 3/12`; of a team `2/5 tasks · code_analyzer round 3`."""
        if self.team is None:
            return f"round {self.round}" + (f"/{self.rounds}" if self.rounds is not None else "")
        if not self.team.tasks:
            return "planning"
        ended = sum(task.status not in ("waiting", "working") for task in self.team.tasks)
        parts = [f"{ended}/{count_of(len(self.team.tasks), 'task')}"]
        if self.team.phase != "tasks":
            parts.append(self.team.phase or "ended")
        elif (newest := self.team.newest_try) is not None:
            parts.append(f"{newest.agent} round {round_of(self.team.newest or '')}")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class ProgressItem:
    """A step that was done, by its path (`ref`): a call, as a report shows it, or what the model said beside calls.

    Neither: a round of which there is nothing to show beside its calls, or beside the run's output.
    """

    ref: str
    call: JsonObject | None = None
    said: str | None = None


def read_progress(session: Session, run: RunRow, known: Collection[str], limit: int) -> list[ProgressItem]:
    """Return what is done and not among the `known` refs, of the newest `limit` steps, oldest first."""
    new = [step for step in report_queries.newest_done(session, run.n, limit) if step.path not in known]
    return read_each(session, lambda session, step: _read_item(session, run, step), reversed(new))


def _read_item(session: Session, run: RunRow, step: report_queries.DoneStep) -> ProgressItem:
    row = report_queries.read_done(session, step)
    if step.kind == "call":
        return ProgressItem(step.path, call=call_entries(session, run, [row])[0])
    match decode_answer(row.body):
        case Completion(content=said, tool_calls=(_, *_)) if said.strip():
            return ProgressItem(step.path, said=said)
        case _:
            return ProgressItem(step.path)


def read_heartbeat(session: Session, run: RunRow, team: TeamView | None = None) -> Heartbeat:
    """Return a sign of life of the run."""
    account, last = read_together(
        session,
        lambda session: read_account(session, run.account),
        lambda session: newest_calls(session, run, 1).entries,
    )
    number = account.spent.rounds + account.held.rounds
    if team is not None and last and loop_of(last[0]["ref"]) != loop_of(team.newest or ""):
        last = []  # the newest call is of another task than the newest round
    text = last[0]["name"] if last else ""
    return Heartbeat(run.id, number, account.caps.rounds, text, account.spent.nano_usd, team)
