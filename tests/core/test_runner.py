"""The law of replay: whatever order answers come in, the same steps are asked and the same outcome comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.core.errors import ReplayDiffers
from kairos_mcp.core.limits import UNLIMITED, BranchShare, Limits
from kairos_mcp.core.messages import ToolCall, ToolResult
from kairos_mcp.core.replay import RecordedStep, Runner
from kairos_mcp.core.steps import Branch, CallTool, Failed, Flow, Gather, GiveUp, Pause, Resumed, Step


@dataclass(frozen=True)
class Plan:
    """A branch in the abstract: how many steps it takes, what it gathers after them, whether it gives up."""

    steps: int
    inner: Group | None = None
    gives_up: bool = False


@dataclass(frozen=True)
class Group:
    """A Gather in the abstract: plans by name, a bare call where there is none, who waits for whom."""

    plans: dict[str, Plan | None]
    after: dict[str, tuple[str, ...]]
    limit: int


def call(name: str, says: str = "") -> CallTool:
    return CallTool(name, ToolCall(name, "tool", {"says": says}))


def branch(plan: Plan, result: Any = None) -> Flow[Any]:
    heard = [result]
    for number in range(1, plan.steps + 1):
        answer = yield from call(f"call-{number}", repr(heard))
        heard.append(answer.content)
    if plan.inner is not None:
        heard.append((yield from gather_group(plan.inner)))
    if plan.gives_up:
        raise GiveUp(f"after {len(heard)}")
    return heard


def gather_group(group: Group) -> Flow[Any]:
    branches: dict[str, Branch[Any] | CallTool] = {}
    for name, plan in group.plans.items():
        branches[name] = call(name) if plan is None else Branch(_branch_after(plan))
    outcomes = yield from Gather(branches, group.after, group.limit)
    return [(name, getattr(outcome, "content", outcome)) for name, outcome in outcomes.items()]


def _branch_after(plan: Plan) -> Callable[[Any], Flow[Any]]:
    return lambda before: branch(plan, sorted((name, repr(outcome)) for name, outcome in before.items()))


def whole(group: Group) -> Flow[Any]:
    first = yield from call("first")
    outcome = yield from gather_group(group)
    last = yield from call("last", repr(outcome))
    return [first.content, outcome, last.content]


def groups(depth: int = 1) -> st.SearchStrategy[Group]:
    inner = st.none() if depth == 0 else st.none() | groups(depth - 1)
    plans = st.none() | st.builds(Plan, st.integers(0, 3), inner, st.booleans())

    @st.composite
    def group(draw: Any) -> Group:
        names = [f"b-{number}" for number in range(1, draw(st.integers(1, 5)) + 1)]
        after = {}
        for number, name in enumerate(names):
            after[name] = tuple(
                draw(st.lists(st.sampled_from(names[:number]), max_size=2, unique=True)) if number else []
            )
        return Group({name: draw(plans) for name in names}, after, draw(st.integers(1, 4)))

    return group()


def begin_all(runner: Runner) -> dict[str, Step]:
    """Begin every waiting step that may begin; return those that have."""
    return {path: step for path, step in runner.waiting.items() if runner.try_begin(path)}


def answer_to(path: str) -> ToolResult:
    return ToolResult(f"answer of {path}")


def in_some_order(group: Group, choose: Callable[[int], int]) -> tuple[Any, dict[str, bytes], list[RecordedStep]]:
    """Drive the flow, answering what has begun in the order that is chosen: outcome, digests, the record."""
    runner, asked, record = Runner(whole(group)), {}, {}
    while not runner.finished:
        begun = begin_all(runner)
        for path, step in begun.items():
            asked[path] = step.digest
            record.setdefault(path, RecordedStep(path, step.digest, None))
        path = list(begun)[choose(len(begun))]
        record[path] = RecordedStep(path, asked[path], answer_to(path))
        runner.answer(path, answer_to(path))
    return runner.outcome, asked, list(record.values())


def test_a_branch_that_waits_for_another_is_given_its_outcome() -> None:
    def later(before: Any) -> Flow[str]:
        answer = yield from call("call-1")
        return f"{before['b-1'].content} then {answer.content}"

    def flow() -> Flow[Any]:
        return (yield from Gather({"b-1": call("b-1"), "b-2": Branch(later)}, {"b-2": ("b-1",)}))

    runner = Runner(flow())
    assert list(runner.waiting) == ["b-1"]
    runner.answer("b-1", ToolResult("one"))
    assert list(runner.waiting) == ["b-2/call-1"]
    runner.answer("b-2/call-1", ToolResult("two"))
    assert runner.outcome == {"b-1": ToolResult("one"), "b-2": "one then two"}


def test_a_branch_that_gives_up_leaves_its_siblings_alone() -> None:
    def quits() -> Flow[str]:
        yield from call("call-1")
        raise GiveUp("no more")

    def flow() -> Flow[Any]:
        return (yield from Gather({"b-1": Branch(quits()), "b-2": call("b-2")}))

    runner = Runner(flow())
    runner.answer("b-1/call-1", ToolResult(""))
    assert list(runner.waiting) == ["b-2"]
    runner.answer("b-2", ToolResult("two"))
    assert runner.outcome == {"b-1": Failed("no more"), "b-2": ToolResult("two")}


def test_a_bug_in_a_branch_stays_loud() -> None:
    def breaks() -> Flow[None]:
        yield from call("call-1")
        raise ZeroDivisionError

    def flow() -> Flow[Any]:
        return (yield from Gather({"b-1": Branch(breaks())}))

    runner = Runner(flow())
    with pytest.raises(ZeroDivisionError):
        runner.answer("b-1/call-1", ToolResult(""))


def test_giving_up_outside_of_a_gather_is_a_bug_too() -> None:
    def flow() -> Flow[None]:
        yield from call("call-1")
        raise GiveUp("nobody is there to take this")

    runner = Runner(flow())
    with pytest.raises(GiveUp):
        runner.answer("call-1", ToolResult(""))


def test_branches_that_wait_for_each_other_are_refused_at_once() -> None:
    def flow() -> Flow[Any]:
        return (yield from Gather({"a": call("a"), "b": call("b")}, {"a": ("b",), "b": ("a",)}))

    with pytest.raises(RuntimeError):
        Runner(flow())


def test_branches_that_wait_for_each_other_are_refused_also_behind_one_that_runs() -> None:
    def flow() -> Flow[Any]:
        branches = {name: call(name) for name in ("free", "a", "b")}
        return (yield from Gather(branches, {"a": ("b",), "b": ("a",)}))

    runner = Runner(flow())
    with pytest.raises(RuntimeError):
        runner.answer("free", ToolResult(""))


def test_a_branch_that_waits_for_itself_is_refused_also_where_it_is_the_last_one() -> None:
    def flow() -> Flow[Any]:
        return (yield from Gather({name: call(name) for name in ("free", "a")}, {"a": ("a",)}))

    runner = Runner(flow())
    with pytest.raises(RuntimeError):
        runner.answer("free", ToolResult(""))


def test_a_branch_that_waits_for_another_holds_none_back_that_is_declared_after_it() -> None:
    group = Group(dict.fromkeys(("a", "b", "c"), None), {"b": ("a",)}, 2)
    runner = Runner(gather_group(group))
    assert list(begin_all(runner)) == ["a", "c"]
    runner.answer("c", answer_to("c"))
    assert list(begin_all(runner)) == ["a"]
    runner.answer("a", answer_to("a"))
    assert list(begin_all(runner)) == ["b"]


def test_what_was_begun_goes_on_when_the_record_is_folded_though_others_could_begin_before_it() -> None:
    """`a` ended last, but stands first in the record: what waits for it must not take the place of `x`."""
    group = Group(dict.fromkeys(("a", "b", "y1", "y2", "x"), None), {"y1": ("a",), "y2": ("a",)}, 2)
    runner, record, answers = Runner(gather_group(group)), dict[str, bytes](), {}
    for answered in ("b", "a"):
        record |= {path: step.digest for path, step in begin_all(runner).items() if path not in record}
        answers[answered] = answer_to(answered)
        runner.answer(answered, answers[answered])
    record |= {path: step.digest for path, step in begin_all(runner).items() if path not in record}
    assert list(record) == ["a", "b", "x", "y1"]

    again = Runner(gather_group(group))
    again.replay_all([RecordedStep(path, digest, answers.get(path)) for path, digest in record.items()])
    assert begin_all(again).keys() == begin_all(runner).keys() == {"x", "y1"}


def test_a_name_used_twice_is_refused() -> None:
    def flow() -> Flow[None]:
        yield from call("call-1")
        yield from call("call-1")

    runner = Runner(flow())
    with pytest.raises(RuntimeError):
        runner.answer("call-1", ToolResult(""))


def test_an_empty_gather_is_answered_at_once() -> None:
    def flow() -> Flow[Any]:
        nothing = yield from Gather({})
        yield from Pause("pause-1", repr(nothing))
        return nothing

    runner = Runner(flow())
    assert list(runner.waiting) == ["pause-1"]
    runner.answer("pause-1", Resumed())
    assert (runner.finished, runner.outcome) == (True, {})


def test_steps_belong_to_the_agent_of_the_nearest_branch_that_has_one_and_else_to_that_of_the_run() -> None:
    def leaf() -> Flow[None]:
        yield from call("call-1")

    def inner() -> Flow[Any]:
        return (yield from Gather({"mine": Branch(leaf()), "other": Branch(leaf(), agent="general")}))

    def flow() -> Flow[Any]:
        return (yield from Gather({"call-1": call("call-1"), "task-1": Branch(inner())}))

    owners = {"call-1": "reader", "task-1/mine/call-1": "reader", "task-1/other/call-1": "general"}
    runner, unowned = Runner(flow(), "reader"), Runner(flow())
    assert {path: runner.agent_of(path) for path in runner.waiting} == owners
    assert [unowned.agent_of(path) for path in owners] == [None, None, "general"]


def test_a_step_that_does_not_wait_can_not_be_answered() -> None:
    def flow() -> Flow[None]:
        yield from call("call-1")

    with pytest.raises(KeyError):
        Runner(flow()).answer("call-2", ToolResult(""))


@pytest.mark.parametrize("digest", [b"other", b""])
def test_a_row_that_asks_something_else_is_named_by_its_path(digest: bytes) -> None:
    def flow() -> Flow[None]:
        yield from call("call-1")
        yield from call("call-2")

    first = RecordedStep("call-1", call("call-1").digest, ToolResult("one"))
    with pytest.raises(ReplayDiffers) as differs:
        Runner(flow()).replay_all([first, RecordedStep("call-2", digest, None)])
    assert differs.value.path == "call-2"
    assert (differs.value.recorded, differs.value.asked) == (digest.hex(), call("call-2").digest.hex())


@pytest.mark.parametrize("digest", [b"x", b""])
def test_a_row_for_which_no_step_waits_is_named_by_its_path(digest: bytes) -> None:
    def flow() -> Flow[None]:
        yield from call("call-1")

    with pytest.raises(ReplayDiffers) as differs:
        Runner(flow()).replay_all([RecordedStep("call-9", digest, None)])
    assert (differs.value.path, differs.value.asked) == ("call-9", "")


def test_a_branch_has_its_limits_while_it_runs_and_what_divides_around_it_is_counted_anew_for_each() -> None:
    """Of four branches two run; as one ends, the next divides what is left with the other, and with those to come."""
    asked, aside = Limits(rounds=3), Limits(total_tokens=7)

    def flow() -> Flow[Any]:
        names = ("a", "b", "c", "d")
        return (
            yield from Gather({name: Branch(branch(Plan(1)), asked) for name in names}, max_parallel=2, reserved=aside)
        )

    runner = Runner(flow())
    assert list(begin_all(runner)) == ["a/call-1", "b/call-1"]
    assert [share() for share in runner.branches.values()] == [
        BranchShare(asked, 4, aside, 2, siblings=siblings) for siblings in (("b",), ("a",))
    ]
    runner.answer("a/call-1", ToolResult(""))
    assert list(begin_all(runner)) == ["b/call-1", "c/call-1"]
    assert [share() for share in runner.branches.values()] == [
        BranchShare(asked, 3, aside, 2, siblings=siblings) for siblings in (("c",), ("b",))
    ]
    for path in ("b/call-1", "c/call-1", "d/call-1"):
        assert runner.try_begin(path)
        runner.answer(path, ToolResult(""))
    assert (runner.finished, runner.branches) == (True, {})


def test_what_comes_after_the_branches_may_keep_a_share_as_large_as_one_of_theirs() -> None:
    def flow() -> Flow[Any]:
        branches = {name: Branch(branch(Plan(1)), Limits()) for name in ("a", "b")}
        return (yield from Gather(branches, keeps_share=True))

    runner = Runner(flow())
    begin_all(runner)
    assert [(share().keeps_share, share().reserved) for share in runner.branches.values()] == [(True, UNLIMITED)] * 2


def test_a_step_is_charged_to_the_nearest_branch_with_limits_of_its_own() -> None:
    def inner() -> Flow[Any]:
        yield from call("call-1")
        limited = Branch(branch(Plan(1)), Limits(rounds=1))
        return (yield from Gather({"deep": limited, "free": Branch(branch(Plan(1)))}))

    def flow() -> Flow[Any]:
        return (yield from Gather({"task": Branch(inner(), Limits(rounds=9)), "bare": call("bare")}))

    runner = Runner(flow())
    begin_all(runner)
    assert [runner.branch_of(path) for path in ("task/call-1", "bare", "task")] == ["task", "", ""]
    runner.answer("task/call-1", ToolResult(""))
    begin_all(runner)
    assert runner.branch_of("task/deep/call-1") == "task/deep"
    assert runner.branch_of("task/free/call-1") == "task"
    runner.answer("task/deep/call-1", ToolResult(""))
    assert list(runner.branches) == ["task"]


def test_a_step_belongs_to_the_agent_of_the_nearest_branch_that_names_one() -> None:
    def inner() -> Flow[Any]:
        inherits, names_its_own = Branch(branch(Plan(1))), Branch(branch(Plan(1)), agent="deep")
        return (yield from Gather({"inherits": inherits, "own": names_its_own, "bare": call("bare")}))

    def flow() -> Flow[Any]:
        named, unnamed = Branch(inner(), agent="outer"), Branch(branch(Plan(1)))
        return (yield from Gather({"named": named, "unnamed": unnamed, "bare": call("bare")}))

    runner = Runner(flow())
    assert {path: runner.agent_of(path) for path in runner.waiting} == {
        "named/inherits/call-1": "outer",
        "named/own/call-1": "deep",
        "named/bare": "outer",
        "unnamed/call-1": None,
        "bare": None,
    }


def test_a_step_is_about_what_the_nearest_branch_says_that_says_anything() -> None:
    def inner() -> Flow[Any]:
        inherits, says_its_own = Branch(branch(Plan(1))), Branch(branch(Plan(1)), about="a try")
        return (yield from Gather({"inherits": inherits, "own": says_its_own, "bare": call("bare")}))

    def flow() -> Flow[Any]:
        task, silent = Branch(inner(), about="a task"), Branch(branch(Plan(1)))
        return (yield from Gather({"task": task, "silent": silent, "bare": call("bare")}))

    runner = Runner(flow())
    assert {path: runner.about_of(path) for path in runner.waiting} == {
        "task/inherits/call-1": "a task",
        "task/own/call-1": "a try",
        "task/bare": "a task",
        "silent/call-1": None,
        "bare": None,
    }


@law
@given(groups(), st.data())
def test_every_order_of_answering_asks_the_same_and_gives_the_same_outcome(group: Group, data: Any) -> None:
    first = in_some_order(group, lambda _: 0)
    other = in_some_order(group, lambda waiting: data.draw(st.integers(0, waiting - 1)))
    assert other[:2] == first[:2]


@law
@given(groups(), st.data())
def test_a_record_cut_off_anywhere_folds_to_a_flow_that_goes_on_to_the_same_outcome(group: Group, data: Any) -> None:
    runner, marked, answers = Runner(whole(group)), {}, {}
    for _ in range(data.draw(st.integers(0, 20))):
        if runner.finished:
            break
        begun = begin_all(runner)
        marked |= {path: step.digest for path, step in begun.items() if path not in marked}
        path = data.draw(st.sampled_from(sorted(begun)))
        answers[path] = answer_to(path)
        runner.answer(path, answers[path])

    again = Runner(whole(group))
    again.replay_all([RecordedStep(path, digest, answers.get(path)) for path, digest in marked.items()])

    assert set(again.waiting) == set(runner.waiting)
    assert marked.keys() & again.waiting.keys() <= begin_all(again).keys()
    while not again.finished:
        path = next(iter(begin_all(again)))
        again.answer(path, answer_to(path))
    assert again.outcome == in_some_order(group, lambda _: 0)[0]


@law
@given(groups(), st.data())
def test_never_more_branches_run_than_the_limit_allows(group: Group, data: Any) -> None:
    flat = Group({name: Plan(2) for name in group.plans}, group.after, group.limit)
    runner = Runner(gather_group(flat))
    while not runner.finished:
        begun = begin_all(runner)
        assert 0 < len(begun) <= flat.limit
        path = data.draw(st.sampled_from(sorted(begun)))
        runner.answer(path, answer_to(path))
