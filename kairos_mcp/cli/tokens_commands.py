"""`token …`: who may come in over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from kairos_mcp.cli.options import AsJson, StateFlags

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Who it is for; the principal of its runs.")]


def add(name: TokenName, *, as_json: AsJson = False, flags: StateFlags) -> int:
    """Make a token and show it, once."""
    from kairos_mcp.cli.tokens import add_token

    return add_token(flags, name, as_json=as_json)


def listing(*, as_json: AsJson = False, flags: StateFlags) -> int:
    """The tokens that let somebody in."""
    from kairos_mcp.cli.tokens import list_tokens

    return list_tokens(flags, as_json=as_json)


def revoke(name: TokenName, *, flags: StateFlags) -> int:
    """Let nobody in with it any more, from the next request on."""
    from kairos_mcp.cli.tokens import revoke_token

    return revoke_token(flags, name)
