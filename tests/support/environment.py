"""The environment of servers and commands in processes of their own."""

from __future__ import annotations

import os

STORE = "KAIROS_STORE"


def plain_environ(*without: str) -> dict[str, str]:
    """This one's environment without settings of ours, but for the store; without these names, or prefixes, too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAIROS_", *without))}
    return kept | ({STORE: os.environ[STORE]} if STORE in os.environ else {})
