"""Judges the calls of a recorded run again by what they take along, and compares with how they were judged then."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kairos_mcp.core.flow import VERSION, Finding
from kairos_mcp.execution.flow_view import FlowView, Judgement
from kairos_mcp.history.replay_check import Difference
from kairos_mcp.store.rows import decode, encode


def find_other_judgement(make_view: Callable[[], FlowView], judged: Iterable[tuple[str, str]]) -> Difference | None:
    """Return the first call that the rows of its run give another judgement than the stored one. What another version
    of the rules found is not looked at. `judged`: stored judgements, with the paths of their calls. Raises Unreadable.
    """
    judgements: dict[str, Judgement] = {path: decode(Judgement, text) for path, text in judged}
    views: dict[tuple[tuple[str, ...], tuple[str, ...]], FlowView] = {}
    for path, judgement in judgements.items():
        if judgement.version != VERSION:
            continue
        known = judgement.foreign, judgement.approved
        if known not in views:
            views[known] = make_view()
            views[known].foreign = frozenset(judgement.foreign)
            approved = {each: judgements[each].found for each in judgement.approved if each in judgements}
            views[known].read_approved = approved.copy
        found = views[known].judge_again(path, judgement)
        if found != judgement.found:
            text = "by its rows, what the call carries is judged differently now"
            return Difference(path, text, {"findings": _texts(judgement.found)}, {"findings": _texts(found)})
    return None


def _texts(found: Iterable[Finding]) -> list[str]:
    return [encode(each) for each in found]
