"""Laws of cycles over answers that nobody would write: replay, counts, and no effect that was not decided."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.cycle_inputs import EDIT, JUDGED, NOOP, ORIENTED, SURE, Simulation, gives, order, run_flow, simulation_of
from support.flow_runner import Fed

from kairos_mcp.core.input_checks import Undecodable, decode_object
from kairos_mcp.core.messages import Completion, ToolCall, ToolResult
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Answer, Failure, RecordedStep, Refused, RequestCompletion, Step
from kairos_mcp.flows.ooda.act import make_call
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.cycles import mandate_flow
from kairos_mcp.flows.ooda.decision import parse_decision

READING = {"file_tree", "read_file", "search_files", "read_mandate", "check_file"}
_tools = st.sampled_from(["read_file", "search_files", "edit_file", "run_command", "apply_edits", "tidy", "nonsense"])
_paths = st.sampled_from(["a.md", "b.md", "AGENTS.md", ".git/config", "../x", "./a.md"])
_arguments = st.fixed_dictionaries({"path": _paths})
_texts = st.sampled_from(["broken", "b1", "one", "", "e", "long " * 2_000])
_edits = st.fixed_dictionaries({"path": _paths, "old_string": _texts, "new_string": _texts})
_decisions: st.SearchStrategy[Any] = st.one_of(
    st.just(EDIT),
    st.just(NOOP),
    st.builds(lambda e, r: {**e, "target": e["path"], "action": "code_edit", "intent": "i", "risk": r}, _edits,
              st.sampled_from(["low", "high", "none"])).map(lambda d: {k: v for k, v in d.items() if k != "path"}),
    st.builds(lambda es: {"action": "edit_plan", "edits": es, "intent": "i"}, st.lists(_edits, max_size=3)),
    st.builds(lambda p, c: {"action": "create_file", "target": p, "content": c, "intent": "i"}, _paths, _texts),
    st.builds(lambda t, n: {"action": "run_tool", "tool": t, "arguments": {"argv": n}, "intent": "i"}, _tools,
              st.sampled_from([["ls"], "ls", 3])),
    st.sampled_from([{"action": "delete"}, {}, [], "text"]),
)  # fmt: skip
_said = st.one_of(_decisions, st.sampled_from([ORIENTED, ORIENTED | {"files": [{"path": "a.md"}]}, JUDGED, SURE]))
_completions = st.builds(
    lambda value, calls, finish, unreadable: Completion(gives(value).content, calls, finish, unreadable=unreadable),
    _said,
    st.lists(
        st.builds(ToolCall, st.just("x"), _tools, _arguments, st.sampled_from([None, "bad"])),
        max_size=3,
    ).map(tuple) | st.just(()),
    st.sampled_from([None, "stop", "stop", "stop", "tool_calls", "length", "refusal"]),
    st.sampled_from([None, None, None, None, "unreadable"]),
)  # fmt: skip
_unusable: list[Answer] = [Failure("timeout", "late"), Refused("nano_usd", 1, 1)]
_thoughts = st.lists(
    st.one_of(_completions, _completions, _completions, st.sampled_from(_unusable)),
    max_size=30,
)  # fmt: skip
_endings: list[Answer] = [
    ToolResult("no", True, code="denied"),
    ToolResult("no", True),
    Refused("tool_calls", 1, 1),
]
_results = st.dictionaries(
    st.integers(0, 40),
    st.sampled_from(_endings),
    max_size=4,
)  # fmt: skip
_orders = st.builds(
    lambda actions, risk, every, acceptance, edit_bytes: order(
        allowed_actions=sorted(actions), risk_budget=risk, checkpoint_every=every, acceptance=acceptance,
        decide_hints={"max_edit_bytes": edit_bytes},
    ),
    st.sets(st.sampled_from(["code_edit", "edit_plan", "create_file", "run_tool", "noop"]), min_size=1),
    st.sampled_from(["low", "medium"]),
    st.integers(1, 3),
    st.sampled_from([[], [{"check": "file_contains", "path": "a.md", "text": "b1"}]]),
    st.sampled_from([4, 4_096]),
)  # fmt: skip


class _Chaos:
    """Half of the thinking is what hypothesis gives, the rest sensible; some calls end in what it gives."""

    def __init__(self, place: Simulation, thoughts: list[Answer], results: dict[int, Answer]) -> None:
        self.place, self.thoughts, self.results, self.asked = place, list(thoughts), results, 0

    def __call__(self, step: Step) -> Answer:
        self.asked += 1
        if isinstance(step, RequestCompletion):
            return self.thoughts.pop(0) if self.thoughts and self.asked % 3 else self.place(step)
        if step.kind == "tool_call" and self.asked in self.results:
            return self.results[self.asked]
        try:
            return self.place(step)
        except KeyError:
            return ToolResult("There is no such file.", is_error=True, code="not_found")


def _ran(of: CycleContext, thoughts: list[Answer], results: dict[int, Answer]) -> Fed:
    return run_flow(mandate_flow(of, 3), _Chaos(simulation_of(of), thoughts, results))


_cases = st.tuples(_orders, _thoughts, _results)


@given(_cases, st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_interrupted_anywhere_and_fed_again_it_asks_and_ends_the_same(case: Any, at: int) -> None:
    of, thoughts, results = case
    whole = _ran(of, thoughts, results)
    record = [RecordedStep(path, step.digest, answer) for path, step, answer in whole.asked]
    again = Runner(mandate_flow(of, 3))
    again.replay_all(record[:at])
    assert list(again.waiting)[:1] == whole.paths[at : at + 1]
    again.replay_all(record[at:])
    assert (again.finished, again.outcome) == (True, whole.outcome)


@given(_cases)
@settings(max_examples=50, deadline=None)
def test_no_text_of_a_model_leads_to_an_effect_that_the_decision_did_not_state(case: Any) -> None:
    of, thoughts, results = case
    fed = _ran(of, thoughts, results)
    for step in fed.calls:
        if step.name.endswith("/act/call-1"):
            cycle = step.name.split("/", maxsplit=1)[0]
            decided = [(p, a) for p, _, a in fed.asked if p.startswith(f"{cycle}/decide") and isinstance(a, Completion)]
            stated = decode_object(decided[-1][1].content)
            assert decided[-1][1].finish != "length"
            assert not decided[-1][1].tool_calls
            _matches(step.call, stated)
        else:
            assert step.call.name in READING


def _matches(call: ToolCall, stated: dict[str, Any]) -> None:
    """The call says what the text says; only what was read is added, under `base`."""
    base = call.arguments.get("base", {})
    rest = {name: value for name, value in call.arguments.items() if name != "base"}
    match stated["action"]:
        case "code_edit":
            assert call.name == "edit_file"
            target = stated["target"].removeprefix("./")
            assert rest == {"path": target, "old_string": stated["old_string"], "new_string": stated["new_string"]}
            assert base.keys() == {target}
        case "edit_plan":
            assert call.name == "apply_edits"
            assert rest == {"edits": [{**edit, "path": edit["path"].removeprefix("./")} for edit in stated["edits"]]}
        case "create_file":
            assert (call.name, base) == ("write_file", {stated["target"].removeprefix("./"): None})
            assert rest["content"] == stated["content"]
        case "run_tool":
            assert (call.name, call.arguments) == (stated["tool"], stated["arguments"])
        case other:
            raise AssertionError(f"{other} has an effect")


@given(_cases)
@settings(max_examples=40, deadline=None)
def test_counts_hold_in_every_cycle(case: Any) -> None:
    of, thoughts, results = case
    fed = _ran(of, thoughts, results)
    cycles = fed.outcome.output["cycles"]
    assert len(cycles) <= 3
    assert [each["cycle"] for each in cycles] == list(range(1, len(cycles) + 1))
    for number in range(1, 4):
        inside = [path for path in fed.paths if path.startswith(f"cycle-{number}/")]
        assert sum("/read-" in path for path in inside) <= 20
        assert sum("/act/call-" in path for path in inside) <= 1
        for phase in ("orient", "decide", "reflect"):
            assert sum(path.startswith(f"cycle-{number}/{phase}/repair-") for path in inside) <= 2
    status = {"applied", "noop", "denied", "unsupported", "failed", "parse_error", "interrupted"}
    assert {each["status"] for each in cycles} <= status


@given(_cases)
@settings(max_examples=40, deadline=None)
def test_nothing_above_the_risk_budget_or_outside_the_mandate_is_ever_called(case: Any) -> None:
    of, thoughts, results = case
    allowed = {"code_edit": "edit_file", "edit_plan": "apply_edits", "create_file": "write_file"}
    for step in _ran(of, thoughts, results).calls:
        if not step.name.endswith("/act/call-1"):
            continue
        changes = {allowed[action] for action in of.mandate.allowed_actions if action in allowed}
        may = {spec.name for spec in of.runnable} if "run_tool" in of.mandate.allowed_actions else set()
        assert step.call.name in changes | may
        assert step.call.name != "run_command", "it is high, and no budget is"
        assert step.call.name != "apply_edits" or of.mandate.risk_budget == "medium"
        paths = [e["path"] for e in step.call.arguments.get("edits", [step.call.arguments]) if "path" in e]
        assert not any(path.startswith((".git", "..", "/")) for path in paths)
        new = [
            e.get("new_string", e.get("content", "")) for e in step.call.arguments.get("edits", [step.call.arguments])
        ]
        assert sum(len(text.encode()) for text in new) <= of.mandate.max_edit_bytes


@given(_decisions)
@settings(max_examples=40, deadline=None)
def test_a_decision_that_can_be_taken_is_given_back_as_it_was(value: Any) -> None:
    with_base = value | {"base": {"a.md": "0" * 64}} if isinstance(value, dict) and "risk" not in value else value
    for given_value in (value, with_base):
        try:
            decision = parse_decision(given_value if isinstance(given_value, dict) else {})
        except Undecodable:
            continue
        call = make_call(decision, "act/call-1")
        assert (call is None) == (given_value["action"] == "noop")
