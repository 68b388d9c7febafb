"""Anything that may befall runs, in any order: starts, answers, control, two servers that are killed and come again.

The apps are processes of their own, a crash is a SIGKILL, and what is held is read from the file by a connection of
its own: no answer is ever lost or changed, the books add up, fences rise, no effect is made twice.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support.app import Books, place_in
from support.forked_apps import Apart, Forks

from kairos_mcp.core.limits import NOTHING
from kairos_mcp.core.messages import Completion, ToolResult
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.store import ownership, queries
from kairos_mcp.store.inbox import SubmittedAnswer, insert_submitted_answers

APPS = st.sampled_from((0, 1))
PICKS = st.integers(0, 2**16)
ANSWERS = st.sampled_from(("reads", "asks", "makes", "ends", "nothing"))
ENDED = ("completed", "stopped", "failed", "cancelled")
FEW = settings(
    max_examples=4,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # with real processes a search for less takes minutes
)
MANY = settings(FEW, max_examples=80, stateful_step_count=60)


class Servers(RuleBasedStateMachine):
    """Two servers on one folder, and runs of two principals that everything happens to.

    Which rule may come next follows from those before alone, never from how far a server is: else a search that repeats
    a beginning would find other rules there.
    """

    forks: Forks
    base: Path

    def __init__(self) -> None:
        super().__init__()
        self.place = place_in(Path(tempfile.mkdtemp(dir=self.base)))
        self.apps: dict[int, Apart] = {}
        self.runs: dict[str, str] = {}  # run -> principal
        self.recorded: dict[int, tuple[Any, ...]] = {}  # mark -> its answer, as it was first seen
        self.given: dict[tuple[str, str], Any] = {}  # (run, key) -> the answer that was taken
        self.fences: dict[str, int] = {}
        self.again: set[str] = set()  # calls that a person said are to be made once more
        self.numbers = itertools.count(1)

    def app(self, number: int) -> Apart:
        """The server of that number; one that was killed comes again."""
        if number not in self.apps:
            self.apps[number] = self.forks.app(self.place.root)
        return self.apps[number]

    def pick_run(self, pick: int) -> tuple[str, str]:
        return sorted(self.runs.items())[pick % len(self.runs)]

    def report(self, number: int, run: str) -> dict[str, Any]:
        result: dict[str, Any] = self.app(number)("rest", run=run, principal=self.runs[run])["ok"]
        return result

    def answer_of(self, kind: str, said: str) -> dict[str, Any]:
        if kind != "completion":
            return {"content": f"result {next(self.numbers)}"}
        line = f"echo {next(self.numbers)} >> made.txt; sleep 0.1"
        calls = {
            "reads": [("read_file", {"path": "a.txt"}), ("read_file", {"path": "missing.txt"})],
            "asks": [("ask_person", {"question": "why"}), ("read_file", {"path": "b.txt"})],
            "makes": [("run_command", {"argv": ["sh", "-c", line]})],
        }.get(said)
        if calls is not None:
            return {"content": "", "tool_calls": [{"name": name, "arguments": given} for name, given in calls]}
        return {"content": "the end" if said == "ends" else "", "finish": "stop"}

    # -- what may happen ---------------------------------------------------------------------------------------------

    @rule(number=APPS, principal=st.sampled_from(("local", "other")), key=st.sampled_from((None, "k", "l")))
    def start(self, number: int, principal: str, key: str | None) -> None:
        goal = f"goal {key or next(self.numbers)}"
        result = self.app(number)("start", goal=goal, principal=principal, key=key, route="caller")
        self.runs[result["ok"]] = principal

    @precondition(lambda self: self.runs)
    @rule(number=APPS, pick=PICKS, said=ANSWERS)
    def answer(self, number: int, pick: int, said: str) -> None:
        """What waits is answered, or settled as a person would who looks; a run that was paused takes no answer."""
        run, principal = self.pick_run(pick)
        report = self.report(number, run)
        ((is_paused,),) = self.place.rows("select paused is not null from run where id = ?", run)
        for item in report["waiting"]:
            if item["kind"] == "settle":
                self.settle(number, run, item)
                continue
            value = self.answer_of(item["kind"], said)
            result = self.app(number)("answer", run=run, principal=principal, answers={item["key"]: value})
            if is_paused:
                assert result == {"code": "stale"}, (item, result)
                return
            assert result == {"ok": None}, (item, result)
            self.given[run, item["key"]] = value
            if said != "reads":
                return  # one of several: the others wait on

    def settle(self, number: int, run: str, item: dict[str, Any]) -> None:
        line = item["arguments"]["argv"][2].split()[1]
        said = "already_done" if line in self.read_effects() else "reattempt"
        if said == "reattempt":
            self.again.add(line)
        result = self.app(number)("settle", run=run, principal=self.runs[run], key=item["key"], settlement=said)
        assert result == {"ok": None}

    @precondition(lambda self: self.runs)
    @rule(number=APPS, pick=PICKS)
    def answer_again(self, number: int, pick: int) -> None:
        """The same answer is no error and no second one; another one is refused."""
        if not self.given:
            return
        (run, key), value = sorted(self.given.items())[pick % len(self.given)]
        principal = self.runs[run]
        assert self.app(number)("answer", run=run, principal=principal, answers={key: value}) == {"ok": None}
        other = {"content": "something else"}
        result = self.app(number)("answer", run=run, principal=principal, answers={key: other})
        assert result == {"code": "already_answered"}

    @precondition(lambda self: self.runs)
    @rule(number=APPS, pick=PICKS)
    def answer_what_does_not_wait(self, number: int, pick: int) -> None:
        run, principal = self.pick_run(pick)
        result = self.app(number)("answer", run=run, principal=principal, answers={"round-99": {"content": "x"}})
        assert result == {"code": "not_waiting"}

    @precondition(lambda self: self.runs)
    @rule(number=APPS, pick=PICKS, action=st.sampled_from(("answer", "control")))
    def act_as_another(self, number: int, pick: int, action: str) -> None:
        run, principal = self.pick_run(pick)
        stranger = "local" if principal == "other" else "other"
        given = {"answers": {"round-1": {"content": "x"}}} if action == "answer" else {"action": "cancel"}
        assert self.app(number)(action, run=run, principal=stranger, **given) == {"code": "unknown_run"}

    @precondition(lambda self: self.runs)
    @rule(pick=PICKS, said=st.sampled_from(("reads", "ends")))
    def deposit_from_elsewhere(self, pick: int, said: str) -> None:
        """A process that can't drive leaves an answer in the file: whoever is there goes on, or comes to."""
        run, _ = self.pick_run(pick)
        with self.place.store().write_session() as session:
            row = queries.run_by_id(session, run)
            found = queries.open_steps(session, row.n) if row.outcome is None else {}
            waits = {
                path: step
                for path, step in found.items()
                if step.kind in ("round", "call") and not step.needs_settlement
            }
            for path, step in list(waits.items())[:1]:
                brought = Completion("brought", finish="stop") if step.kind == "round" else ToolResult("brought")
                submitted = [SubmittedAnswer(path, brought)]
                insert_submitted_answers(session, row, submitted, "caller", ownership.ANY_SERVER, 1)

    @precondition(lambda self: self.runs)
    @rule(
        number=APPS,
        pick=PICKS,
        action=st.sampled_from(("pause", "resume", "resume", "extend", "reroute", "reroute", "cancel")),
        route=st.sampled_from(("scripted", "caller")),
    )
    def control(self, number: int, pick: int, action: str, route: str) -> None:
        run, principal = self.pick_run(pick)
        given = {"route": route} if action == "reroute" else {}
        result = self.app(number)("control", run=run, principal=principal, action=action, **given)
        assert result.get("code") in (None, "stale"), result

    @precondition(lambda self: self.runs)
    @rule(number=APPS, pick=PICKS)
    def rest(self, number: int, pick: int) -> None:
        """A run in peace: its report says what its rows do, and it replays."""
        run, principal = self.pick_run(pick)
        report = self.report(number, run)
        self.assert_consistent(run, report)
        assert self.app(number)("replay", run=run, principal=principal) == {"ok": None}

    @precondition(lambda self: self.runs)
    @rule(number=APPS)
    def crash(self, number: int) -> None:
        if number in self.apps:
            self.apps.pop(number).kill()

    @precondition(lambda self: self.runs)
    @rule(number=APPS, pick=PICKS)
    def crash_in_the_middle_of_an_effect(self, number: int, pick: int) -> None:
        before = len(self.read_effects())
        self.answer(number, pick, "makes")
        until = time.monotonic() + 0.3
        while len(self.read_effects()) == before and time.monotonic() < until:
            time.sleep(0.01)
        self.crash(number)

    @precondition(lambda self: self.runs)
    @rule(number=APPS)
    def close_in_order(self, number: int) -> None:
        if number in self.apps:
            self.apps.pop(number).end()

    # -- what holds at any moment ------------------------------------------------------------------------------------

    @invariant()
    def the_record_holds(self) -> None:
        if not self.runs:
            return
        found = self.place.rows("select step, at, body, spent from answer")
        now = {mark: rest for mark, *rest in found}
        assert self.recorded.items() <= now.items(), "an answer was lost or changed"
        self.recorded = now
        for run in self.runs:
            books = Books.of(self.place, run)
            assert (books.spent, books.held) == (books.spent_by_rows, NOTHING if books.ended else books.held_by_rows)

    @invariant()
    def fences_rise(self) -> None:
        if not self.runs:
            return
        for run, fence in self.place.rows("select id, fence from run"):
            assert fence >= self.fences.get(run, 0)
            self.fences[run] = fence
        marks = self.place.rows(
            "select step.run, step.fence, run.fence from step join run on run.n = run order by step.id"
        )
        for _, group in itertools.groupby(marks, key=lambda each: each[0]):
            fences = [(fence, most) for _, fence, most in group]
            assert all(one[0] <= two[0] for one, two in itertools.pairwise(fences))
            assert all(fence <= most for fence, most in fences)

    @invariant()
    def no_effect_is_made_twice(self) -> None:
        made = self.read_effects()
        assert len(made) == len(set(made)), made

    def read_effects(self) -> list[str]:
        file = self.place.workspace / "made.txt"
        return file.read_text().split() if file.exists() else []

    def assert_consistent(self, run: str, report: dict[str, Any]) -> None:
        statement = (
            "select path, step.kind from step join run on run.n = run left join answer on answer.step = step.id"
            " where run.id = ? and answer.step is null and outcome is null and kind <> 'pause'"
        )
        unanswered = {path for path, _ in self.place.rows(statement, run)}
        keys = {item["key"].removesuffix("/settle") for item in report["waiting"]}
        assert keys == unanswered or report["status"] == "paused", report
        ((outcome, rounds),) = self.place.rows(
            "select outcome, spent_rounds + held_rounds from run join account on account.id = account where run.id = ?",
            run,
        )
        assert (outcome is not None) == (report["status"] in ENDED)
        assert report["rounds"] == rounds
        assert (report["status"] == "input_required") == bool(report["waiting"] and report["status"] != "paused")

    def teardown(self) -> None:
        """In the end somebody brings each run to its end, and all of it replays."""
        try:
            if self.runs:
                self.brought_to_an_end()
        finally:
            for app in self.apps.values():
                app.kill()
            shutil.rmtree(self.place.root, ignore_errors=True)

    def brought_to_an_end(self) -> None:
        until = time.monotonic() + 60
        for run, principal in self.runs.items():
            while (report := self.report(0, run))["status"] not in ENDED:
                assert time.monotonic() < until, report
                if report["status"] == "paused":
                    self.app(0)("control", run=run, principal=principal, action="resume")
                self.answer(0, sorted(self.runs).index(run), "ends")
            self.assert_consistent(run, report)
            assert self.app(0)("replay", run=run, principal=principal) == {"ok": None}
        self.the_record_holds()
        self.no_effect_is_made_twice()
        assert self.place.store().find_damage(Outcome) == []


def assert_nothing_is_lost(base: Path, examples: settings) -> None:
    forks = Forks(base)
    try:
        machine = type("OnThisFolder", (Servers,), {"forks": forks, "base": base})
        run_state_machine_as_test(machine, settings=examples)
    finally:
        forks.close()


def test_whatever_befalls_runs_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    assert_nothing_is_lost(tmp_path, FEW)


@pytest.mark.slow
def test_whatever_befalls_runs_nothing_is_lost_or_doubled_many_times(tmp_path: Path) -> None:
    assert_nothing_is_lost(tmp_path, MANY)
