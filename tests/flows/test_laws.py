"""Laws of the loop over scripts that nobody would write."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from support.flow_runner import Fed, feed
from support.planner_inputs import ANSWER_SCHEMA, brief, conversation_faults

from kairos_mcp.core.messages import Completion, ToolCall, ToolResult, Usage
from kairos_mcp.core.steps import Answer, CallTool, Extended, Failure, Mechanical, Refused, Step
from kairos_mcp.flows.planner import planner
from kairos_mcp.flows.planner_input import PlannerInput

_calls = st.lists(
    st.builds(
        ToolCall,
        st.just("outside"),
        st.sampled_from(["look", "find", "write", "rm"]),
        st.fixed_dictionaries({"n": st.integers(0, 2)}),
        st.sampled_from([None, None, None, "no JSON"]),
    ),
    max_size=5,
).map(tuple)
_completions = st.builds(
    Completion,
    st.sampled_from(["", "Text.", '{"answer": 3}', "long " * 300]),
    _calls,
    st.sampled_from([None, "stop", "tool_calls", "tool_calls", "tool_calls", "length", "refusal"]),
    st.none() | st.builds(Usage, st.integers(0, 5_000), st.just(1)),
    st.none() | st.integers(2_000, 9_000),
    st.sampled_from([None, None, None, None, "unreadable"]),
)
_answers = st.lists(
    st.one_of(
        _completions,
        _completions,
        _completions,
        st.sampled_from([Mechanical(), Failure("timeout", "late"), Extended()]),
    ),
    max_size=12,
)
_results = st.lists(
    st.one_of(
        st.builds(ToolResult, st.sampled_from(["same", "other", "big " * 700]), st.booleans()),
        st.builds(ToolResult, st.sampled_from(["same", "other", "big " * 700]), st.booleans()),
        st.just(Refused("tool_calls", 1, 1)),
    ),
    min_size=1,
    max_size=9,
)
_briefs = st.builds(
    lambda schema, context: brief(output_schema=schema, context_tokens=context),
    st.sampled_from([None, ANSWER_SCHEMA]),
    st.sampled_from([3_000, 100_000]),
)


class _Ending(list[Answer]):
    """Answers that end in refusals, as every run does at last."""

    def __iter__(self) -> Iterator[Answer]:
        yield from super().__iter__()
        while True:
            yield Refused("rounds", 1, 1)


def _fed(start: PlannerInput, answers: list[Answer], results: list[Answer]) -> Fed:
    def tools(step: CallTool) -> Answer:
        return results[sum(map(ord, step.name)) % len(results)]

    return feed(planner(start), _Ending(answers), tools)


_runs = st.builds(_fed, _briefs, _answers, _results)


@given(_runs)
@settings(max_examples=75, deadline=None)
def test_a_request_that_names_its_predecessor_adds_to_it_and_changes_nothing(run: Fed) -> None:
    """Whoever answered that one, and is shown what was added, has read all that the model is asked with."""
    before = {step.name: step for step in run.requests}
    for step in run.requests:
        if step.predecessor is None:
            assert (
                step.name in ("round-1", "closing") or step.purpose == "compact" or f"{step.name}/compact" in run.paths
            )
            continue
        known = before[step.predecessor.name]
        assert (step.predecessor.messages, step.predecessor.tools) == (len(known.conversation), known.tools)
        assert step.conversation.digest_at(len(known.conversation)) == known.conversation.digest
        assert not step.tools or step.tools[: len(known.tools)] == known.tools[:]
        assert (step.output_schema, step.max_tokens) == (known.output_schema, known.max_tokens)
        assert len(step.conversation) > len(known.conversation)


@given(_runs)
@settings(max_examples=75, deadline=None)
def test_every_call_in_every_request_has_exactly_one_result_in_order(run: Fed) -> None:
    assert [path for path in run.requests if conversation_faults(path.conversation)] == []


@given(_briefs, _answers, _results)
@settings(max_examples=50, deadline=None)
def test_the_same_answers_give_the_same_steps_digests_and_outcome(
    start: PlannerInput, answers: list[Answer], results: list[Answer]
) -> None:
    first = _fed(start, answers, results)
    again = feed(planner(start), first.answers)
    assert (again.digests, again.outcome) == (first.digests, first.outcome)


@given(_runs)
@settings(max_examples=50, deadline=None)
def test_a_run_always_ends_with_a_summary_or_a_record_and_names_are_used_once(run: Fed) -> None:
    assert (run.outcome.summary is None) != (run.outcome.record is None)
    assert run.outcome.text
    assert len(set(run.paths)) == len(run.paths)


@given(_runs)
@settings(max_examples=50, deadline=None)
def test_a_turn_that_was_cut_off_or_unreadable_executes_nothing(run: Fed) -> None:
    rounds = {step.name.rpartition("/")[0] for step in run.calls}
    assert [name for name in rounds if _is_flawed(run.answers[name])] == []


@given(_runs)
@settings(max_examples=50, deadline=None)
def test_the_schema_travels_with_every_request_but_a_compaction(run: Fed) -> None:
    assert len({r.output_schema is None for r in run.requests if r.purpose != "compact"}) <= 1
    assert {len(r.tools) for r in run.requests if r.purpose != "round"} <= {0}


def _is_flawed(answer: Answer | Step) -> bool:
    return not isinstance(answer, Completion) or answer.finish == "length" or answer.unreadable is not None
