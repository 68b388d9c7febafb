"""A model whose turns hold none of the secrets that are known here: what it repeats of one reaches no row."""

from __future__ import annotations

from kairos_mcp.core import redact_values
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.steps import Failure
from kairos_mcp.models import Model, ModelInput


def masked_model(model: Model, mask: Redactor) -> Model:
    async def complete(asked: ModelInput) -> Completion | Failure:
        answer = await model(asked)
        return (
            redact_values.completion(answer, mask)
            if isinstance(answer, Completion)
            else redact_values.failure(answer, mask)
        )

    return complete
