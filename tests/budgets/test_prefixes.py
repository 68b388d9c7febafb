"""A prompt that begins like one whose cost was reported is bounded by that report, however tokens are counted."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.app import law

from kairos_mcp.core.messages import Completion, Conversation, Message, ToolSet, ToolSpec, Usage
from kairos_mcp.core.steps import RequestCompletion
from kairos_mcp.execution.accounting import InputEstimator, Prefix, PrefixReports, prefix_of

pytestmark = pytest.mark.unreplayed  # no run

TOOLS = ToolSet([ToolSpec("look", "Looks.", {"type": "object"})])
texts = st.text(max_size=300)


def asks(system: str, *turns: str, tools: ToolSet = TOOLS, reminder: str | None = None) -> RequestCompletion:
    talk = Conversation((Message("system", system), *(Message("user", turn) for turn in turns)))
    return RequestCompletion("round-1", "round", talk, tools, reminder=reminder)


def prefix(step: RequestCompletion, model: str = "small") -> Prefix | None:
    return prefix_of(step, "server", model)


def says_it_read(tokens: int, exactness: str = "reported") -> Completion:
    return Completion("done", usage=Usage(tokens, 1, exactness=exactness))  # type: ignore[arg-type]


@law
@example("You look.", ["at a"], ["at b" * 500], 1.0, 3_000, None)
@given(
    texts,
    st.lists(texts, min_size=1, max_size=4),
    st.lists(texts, min_size=1, max_size=4),
    st.floats(0.1, 1),
    st.integers(0, 5_000),
    st.none() | texts,
)
def test_no_request_costs_more_than_its_bound(
    system: str, first: list[str], second: list[str], density: float, around: int, reminder: str | None
) -> None:
    """`density`: tokens a byte. `around`: what a model counts of tools and of its own, as for any request with them."""

    def cost(step: RequestCompletion) -> int:
        parts = [*(message.content for message in step.conversation), step.reminder or ""]
        return 1 + around + sum(int(len(part.encode()) * density) for part in parts)

    reports, asked, other = PrefixReports(), asks(system, *first), asks(system, *second, reminder=reminder)
    assert reports.bound(other, prefix(other)) is None
    reports.learn(prefix(asked), says_it_read(cost(asked)))
    bound = reports.bound(other, prefix(other))
    assert bound is not None
    assert bound >= cost(other)


def test_a_report_bounds_what_begins_alike_and_nothing_else() -> None:
    reports, asked = PrefixReports(), asks("You look. " * 400, "at a")
    reports.learn(prefix(asked), says_it_read(900))
    alike = asks("You look. " * 400, "at b")
    known = reports.bound(alike, prefix(alike))
    assert known is not None
    assert known < InputEstimator().bound(alike) // 2
    assert reports.bound(alike, prefix(alike, "large")) is None
    for other in (asks("You write.", "at b"), asks("You look. " * 400, "at b", tools=ToolSet())):
        assert reports.bound(other, prefix(other)) is None
    without_system = RequestCompletion("round-1", "round", Conversation((Message("user", "at b"),)), TOOLS)
    assert prefix(without_system) is None


def test_the_most_that_was_reported_lately_counts_and_estimates_do_not() -> None:
    reports, asked = PrefixReports(), asks("You look.", "at a")
    reports.learn(prefix(asked), says_it_read(10, "estimated"))
    assert reports.bound(asked, prefix(asked)) is None
    bounds = []
    for tokens in (5_000, 900, *(800 for _ in range(19))):
        reports.learn(prefix(asked), says_it_read(tokens))
        bounds.append(reports.bound(asked, prefix(asked)))
    assert bounds[1] == bounds[0]
    assert bounds[-1] == (bounds[0] or 0) - 5_000 + 900
