"""Mutants that no test can tell from the original, each with the reason: (file, function, before, after) -> why."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {}
