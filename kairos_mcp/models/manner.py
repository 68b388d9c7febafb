"""How a run wants its completions, beside what each request says."""

from __future__ import annotations

from dataclasses import dataclass, field

from kairos_mcp.core.steps import DialectName
from kairos_mcp.models.dialects import TextPrompts


@dataclass(frozen=True, slots=True)
class ModelManner:
    """From the run's frozen spec: temperature, dialect, and the prompts of the text dialect."""

    temperature: float | None = None
    dialect: DialectName = "native"
    prompts: TextPrompts = field(default_factory=lambda: TextPrompts("", "", ""))
