"""Placeholders in a proposed call, which a caller has to replace; one that is sent back unchanged is refused.

They are a few fixed texts, so that no real answer can be mistaken for one.
"""

from __future__ import annotations

from typing import Any

from kairos_mcp.core.errors import BadArguments

ANSWER = "<your answer, or tool_calls instead>"
TEXT = "<your answer>"
RESULT = "<the tool's result>"
DECISION = "<approve or deny>"
DIGEST = "<its digest>"
SETTLEMENT = "<already_done or reattempt>"
MANDATE = "<the mandate of this call, unchanged>"
ALL = frozenset((ANSWER, TEXT, RESULT, DECISION, DIGEST, SETTLEMENT, MANDATE))


def refuse_placeholders(arguments: Any) -> None:
    """Raise BadArguments where a placeholder stands anywhere in these arguments."""
    pending: list[tuple[str, Any]] = [("", arguments)]
    while pending:
        place, value = pending.pop()
        match value:
            case str() if value.strip() in ALL:
                raise BadArguments(
                    f"{place.removeprefix('.') or 'It'} holds the placeholder {value.strip()}.",
                    "Put what it names in its place, and call again.",
                )
            case dict():
                pending += [(f"{place}.{str(key)[:40]}", inner) for key, inner in value.items()]
            case list():
                pending += [(f"{place}.{at}", inner) for at, inner in enumerate(value)]
            case _:
                pass
