"""The full schemas, which are too long for the listing of the tools: of a run's result and of a mandate."""

from __future__ import annotations

from kairos_mcp.core.mandate import MANDATE_SCHEMA
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.views.run_report import RESULT_SCHEMA

SCHEMAS: dict[str, tuple[str, JsonObject]] = {
    "mandate": ("A mandate, as mandate_save and ooda_run take it", MANDATE_SCHEMA),
    "result": ("The result of every tool that touches a run", RESULT_SCHEMA),
}
"""By name: what a schema is of, and the schema."""
