"""The files that carry the promises, each with the tests that hold it, the quickest first."""

from __future__ import annotations

LAW_FILES: dict[str, tuple[str, ...]] = {
    "decoding.py": ("flows/test_decoding.py",),
    "runner.py": ("core/test_runner.py", "flows/ooda/test_cycle_laws.py", "histories"),
    "budget/amounts.py": ("core/test_grants.py",),
    "budget/granting.py": ("core/test_grants.py",),
    "store/purse.py": ("budgets/test_purse.py", "budgets/test_branching.py", "budgets", "core/test_budget.py"),
    "gate.py": ("approvals/test_gate.py", "approvals/test_touched_paths.py"),
    "hall/answering.py": ("core/test_answering.py",),
    "server/guard.py": ("http/test_guard_alone.py",),
    "tools/opener.py": ("tools/test_opener.py",),
    "tools/beneath.py": ("tools/test_opener.py",),
}
