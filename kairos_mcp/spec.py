"""What a run is started with, as values: the request of a caller, and the spec that is frozen from it.

The spec is a small JSON object; its long texts (prompts, tools, conversation, schema, script) are referred to by
content hash and stored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kairos_mcp.messages import JsonObject, Message, ToolSpec
from kairos_mcp.steps import UNLIMITED, Limits

Route = Literal["auto", "caller", "scripted", "provider", "sampling"]
FlowName = Literal["planner", "call"]


@dataclass(frozen=True, slots=True)
class PlannerRequest:
    """The arguments of planner_run, checked in shape. `tools`: globs, None for those that only read."""

    goal: str
    system: str | None = None
    context: str | None = None
    messages: tuple[Message, ...] = ()
    continues: str | None = None
    tools: tuple[str, ...] | None = None
    caller_tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    temperature: float | None = None
    route: Route = "auto"
    limits: Limits = UNLIMITED
    output_schema: JsonObject | None = None
    workspace: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """What a run's row holds: never changed after the start. The fields that end in `_text` are content hashes."""

    flow: FlowName
    goal: str
    route: str
    tools_text: str
    system_text: str | None = None
    history_text: str | None = None
    user_text: str | None = None
    schema_text: str | None = None
    prompts_text: str | None = None
    script_text: str | None = None
    context_tokens: int = 100_000
    max_tokens: int = 4096
    model: str | None = None
    temperature: float | None = None
    continues: str | None = None
    arguments: JsonObject | None = None
    dialect_text: str | None = None
    asked_route: str = "auto"
