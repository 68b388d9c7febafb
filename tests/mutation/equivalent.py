"""Mutants that no test can tell from the original: (file, function, its lines before, and after) -> the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    ("core/strict_json.py", "_only_balanced", "depth, start = 0, 0", "depth, start = 0, 1"): (
        "the first token is an opening bracket at depth 0, which sets start before anybody reads it"
    ),
    (
        "core/strict_json.py",
        "_refuse_depth",
        'if text.count("[") + text.count("{") <= DEPTH:',
        "if (text.count('[') + text.count('{') < DEPTH):",
    ): "a shorter way for texts with few brackets: the loop behind it comes to the same with exactly DEPTH of them",
    **{
        (
            "app/answers.py",
            "_deposit",
            "text = (result.kept, whole) if result.kept is not None and whole is not None else None",
            f"text = (result.kept, whole) if ({condition}) else None",
        ): "shorten gives both or neither; the type checker has to be told of each"
        for condition in (
            "whole is not None",
            "result.kept is not None",
            "result.kept is not None or whole is not None",
        )
    },
    (
        "core/replay.py",
        "Runner.branch_of",
        'while self.branches and (path := path.rpartition("/")[0]):',
        "while ((path := path.rpartition('/')[0])):",
    ): "a shorter way where no branch has limits of its own: without it the loop finds none of them",
}
