"""`token add, list, revoke`: bearer tokens for clients over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AsJson, StateFlags
from kairos_mcp.cli.output import command_line_for
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import emit, print_line, print_note
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.server.tokens import AccessToken

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Who it is for; the principal of its runs.")]


def add(name: TokenName, *, as_json: AsJson = False, flags: StateFlags) -> int:
    """Make a token and show it, once."""
    from kairos_mcp.server.tokens import make_owner_token, make_tokens

    settings = read_settings(flags)
    tokens = make_tokens(settings)
    token = make_owner_token(tokens, settings.home) if name == LOCAL else tokens.add(name)
    if token is None:
        raise BadArguments(
            "Your token exists already.", "`kairos-mcp install HOST --http` uses it; `token revoke local` revokes it."
        )
    emit({"name": name, "token": token}, [token], as_json=as_json)
    if not as_json:  # on stderr, so that a pipe gets the token alone
        print_note("This is shown once. Clients send it as `Authorization: Bearer TOKEN`.")
    return COMPLETED


def list_tokens(*, as_json: AsJson = False, flags: StateFlags) -> int:
    """List the tokens that give access."""
    from kairos_mcp.server.tokens import make_tokens

    tokens = make_tokens(read_settings(flags)).list_tokens()
    value = {"tokens": [{"name": token.name, "made_at": token.made_at} for token in tokens]}
    emit(value, _list_lines(flags, tokens), as_json=as_json)
    return COMPLETED


def revoke(name: TokenName, *, flags: StateFlags) -> int:
    """Revoke a token: it gives no access from the next request on."""
    from kairos_mcp.server.tokens import make_tokens, remove_owner_token

    settings = read_settings(flags)
    tokens = make_tokens(settings)
    tokens.revoke(name)
    if name == LOCAL:
        remove_owner_token(settings.home)
    later = "stay yours" if name == LOCAL else "belong to the next token of that name"
    print_line(f"{name} is revoked; its runs are kept, and {later}.")
    if not tokens.any():
        print_note("That was the last one: `kairos-mcp serve --transport http` on this machine makes one for you.")
    return COMPLETED


def _list_lines(flags: Flags, tokens: list[AccessToken]) -> Iterator[str]:
    if not tokens:
        yield command_line_for(flags).complete_all("No tokens; `kairos-mcp token add NAME` makes one.")
    for token in tokens:
        made = datetime.fromtimestamp(token.made_at / 1000, UTC)
        yield f"{token.name:<40} {made:%Y-%m-%d %H:%M} UTC"
