"""The register of operations: each by its name."""

from __future__ import annotations

from collections.abc import Mapping

from kairos_mcp.app.operations.control import CONTROL_OPERATIONS
from kairos_mcp.app.operations.operation import Operation
from kairos_mcp.app.operations.responses import Answer, Approve, Deny, Settle
from kairos_mcp.app.operations.saved import (
    ApproveTool,
    EditMandate,
    RemoveMandate,
    RemoveRule,
    RemoveTool,
    SaveMandate,
)
from kairos_mcp.app.operations.starts import Fork, MakePlan, RunMandate, Start, StartTeam

_ALL: tuple[type[Operation], ...] = (
    Approve,
    Deny,
    Settle,
    Answer,
    *CONTROL_OPERATIONS,
    Start,
    Fork,
    StartTeam,
    MakePlan,
    RunMandate,
    SaveMandate,
    EditMandate,
    RemoveMandate,
    ApproveTool,
    RemoveTool,
    RemoveRule,
)
OPERATIONS: Mapping[str, type[Operation]] = {form.kind.name: form for form in _ALL}
