"""The figures of the rules on a set that was made before them, by eyes that knew nothing of how they work."""

from __future__ import annotations

from flow.independent import Figures, figures


def test_the_figures_are_those_that_users_are_told() -> None:
    """The first that the finished rules had: whoever changes a rule reports what becomes of them, in docs/flow.md."""
    assert figures(wish=True) == Figures((37, 40), (40, 44), (23, 40), (22, 98))
    assert figures(wish=False) == Figures((36, 40), (39, 44), (25, 40), (18, 98))
