"""The commands by which a person moves a run, as a text names them."""

from __future__ import annotations

import shlex

from kairos_mcp.core.identity import LOCAL
from kairos_mcp.store import settlements
from kairos_mcp.store.queries import RunRow


def command_of(run: RunRow, key: str) -> str:
    """The command by which a person decides what waits under the key: approves (`deny` in its place denies), or says
    that a lost call was made already (`reattempt` in its place: make it again). As a
    text names it: whoever shows it has it worded (app/command_text.py)."""
    whose = [] if run.principal == LOCAL else ["--principal", run.principal]
    if settlements.is_settlement_key(key):
        return shlex.join(["kairos-mcp", "settle", *whose, run.id, key, "already_done"])
    return shlex.join(["kairos-mcp", "approve", *whose, run.id, key])


def resume_of(run: RunRow) -> str:
    """The command by which a person goes on with a run."""
    return shlex.join(
        ["kairos-mcp", "resume", *([] if run.principal == LOCAL else ["--principal", run.principal]), run.id]
    )
