"""Kairos: the command `kairos-mcp` itself, with the socket as its stdin and stdout.

The modules that it imports when they are first needed are imported before the fork, as those of the peers are.
"""

import importlib
import os
import pkgutil
import sys
from contextlib import suppress

import pydantic_ai.models.openai
import pydantic_ai.providers.openai  # noqa: F401

import kairos_mcp

for found in pkgutil.walk_packages(kairos_mcp.__path__, "kairos_mcp."):
    if not found.name.endswith("__main__") and ".postgres" not in found.name:
        with suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(found.name)


def run(asked, control) -> None:
    from kairos_mcp.cli.main import main

    os.dup2(control.fileno(), 0)
    os.dup2(control.fileno(), 1)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = ["kairos-mcp", *asked["words"]]
    main()
