"""A model whose turns hold none of the secrets that are known here: what it repeats of one reaches no row."""

from __future__ import annotations

from kairos_mcp.messages import Completion
from kairos_mcp.models import Asked, Model
from kairos_mcp.secrecy import masked
from kairos_mcp.secrecy.masking import Mask
from kairos_mcp.steps import Failure


def masked_model(model: Model, mask: Mask) -> Model:
    async def complete(asked: Asked) -> Completion | Failure:
        answer = await model(asked)
        return masked.completion(answer, mask) if isinstance(answer, Completion) else masked.failure(answer, mask)

    return complete
