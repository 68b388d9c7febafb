"""Skips what needs a sandbox, with the reason, where this machine allows none: by the marker `sandbox` or a call."""

from __future__ import annotations

from functools import cache

import pytest


def skip_if_missing() -> None:
    """Skip the test where no sandbox is to be had: for tests and fixtures that have ways without one as well."""
    if (why := missing()) is not None:
        pytest.skip(why)


@cache
def missing() -> str | None:
    """Why no program can be run in a sandbox on this machine."""
    from kairos_mcp.tools.commands.sandbox import Sandbox  # at first use: most tests need none

    refusal = Sandbox(None).find_problem()
    return None if refusal is None else f"no sandbox here: {refusal.message}"
