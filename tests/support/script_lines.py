"""Lines of a script, by what the model does in them."""

from __future__ import annotations

from typing import Any


def looks(number: int = 1) -> dict[str, Any]:
    """A line of a script: a turn that calls a reading tool."""
    return {"tool_calls": [{"id": f"c{number}", "name": "list_files", "arguments": {}}]}


def says(text: str, **more: Any) -> dict[str, Any]:
    """A line of a script: a turn that ends the run."""
    return {"content": text, "finish": "stop", **more}
