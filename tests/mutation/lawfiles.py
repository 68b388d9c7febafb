"""The files that carry the promises, each with the tests that hold it, the quickest first."""

from __future__ import annotations

_GATE = (
    "approvals/test_gate_alone.py",
    "approvals/test_gate.py",
    "approvals/test_touched_paths.py",
    "approvals/test_command_rules.py",
)
LAW_FILES: dict[str, tuple[str, ...]] = {
    "core/input_checks.py": ("flows/test_decoding.py",),
    "core/replay.py": ("core/test_runner.py",),
    "budget/reservation.py": (
        *("core/test_reserve.py", "core/test_budget.py", "budgets/test_branching.py", "budgets/test_meter.py"),
    ),
    "budget/more_rounds.py": ("budgets/test_more_rounds.py", "budgets/test_granted_histories.py"),
    "budget/ledger.py": ("budgets/test_reservations.py", "budgets/test_branches.py"),
    "store/account_changes.py": ("budgets/test_reservations.py", "budgets/test_branches.py"),
    "gate.py": _GATE,
    "gate_calls.py": _GATE,
    "gate_rules.py": _GATE,
    "core/command_patterns.py": ("core/test_command_patterns.py",),
    "tools/commands/program_names.py": ("core/test_command_patterns.py",),
    "core/paths.py": ("approvals/test_gate.py", "approvals/test_gate_alone.py"),
    "app/answer_checks.py": ("core/test_answering.py",),
    "server/http_guard.py": ("http/test_guard_alone.py",),
    "tools/files/workspace.py": ("tools/test_safe_open.py", "tools/test_workspace.py"),
    "tools/files/safe_open.py": ("tools/test_safe_open.py", "tools/test_workspace.py"),
}

PARTS: dict[str, tuple[str, ...]] = {"core/paths.py": ("table_risk", "raise_risk")}
"""Of a file that holds more, the functions that carry a promise: only they are changed."""
