"""`token add, rotate, list, revoke`: bearer tokens for clients over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.audit import note_token
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AsJson, StateFlags
from kairos_mcp.cli.output import command_line_for
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import emit, print_line, print_note
from kairos_mcp.cli.times import parse_age
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.server.sender import ALL_SCOPES, SCOPES
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from kairos_mcp.server.tokens import AccessToken, Tokens

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Who it is for; the principal of its runs.")]


Expires = Annotated[
    str | None, typer.Option("--expires", metavar="AGE", help="It gives access so long, as 90d; without it, for ever.")
]


def add(
    name: TokenName,
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="What it allows; repeatable. Default: run, approve, admin. observe: look at all runs."),
    ] = None,
    expires: Expires = None,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Make a token and show it, once."""
    from kairos_mcp.server.tokens import make_owner_token

    settings = read_settings(flags)
    tokens = _open_tokens(settings)
    if name == LOCAL and (scope or expires):
        raise BadArguments("Your own token has all scopes and no end.", "`kairos-mcp token revoke local` ends it.")
    for each in scope or ():
        if each not in ALL_SCOPES:
            raise BadArguments(f"--scope can't be {each[:40]!r}.", f"Choices: {', '.join(ALL_SCOPES)}.")
    lasts = None if expires is None else parse_age("--expires", expires)
    if name == LOCAL:
        token = make_owner_token(tokens, settings.home)
    else:
        token = tokens.add(name, scopes=tuple(dict.fromkeys(scope or SCOPES)), lasts_days=lasts)
    if token is None:
        raise BadArguments(
            "Your token exists already.", "`kairos-mcp install HOST --http` uses it; `token revoke local` revokes it."
        )
    note_token(settings, "add", name)
    _show(name, token, as_json=as_json)
    return COMPLETED


def rotate(
    name: TokenName,
    *,
    keep: Annotated[
        str,
        typer.Option("--keep", metavar="AGE", help="So long the old one gives access, as 12h or 7d; 0h ends it now."),
    ] = "1d",
    expires: Expires = None,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Make a second token of this name; the first one ends after --keep."""
    if name == LOCAL:
        raise BadArguments("Your own token is in the state folder.", "`token revoke local`, then `token add local`.")
    lasts = None if expires is None else parse_age("--expires", expires)
    settings = read_settings(flags)
    tokens = _open_tokens(settings)
    token = tokens.rotate(name, keep_days=parse_age("--keep", keep), lasts_days=lasts)
    older = next(each for each in tokens.list_tokens() if each.name == name)
    note_token(settings, "rotate", name, older.expires_at)
    _show(name, token, as_json=as_json)
    return COMPLETED


def _open_tokens(settings: Settings) -> Tokens:
    from kairos_mcp.server.tokens import make_tokens

    tokens = make_tokens(settings)
    tokens.check_store()  # before anything is changed: a server asks at each request
    return tokens


def _show(name: str, token: str, *, as_json: bool) -> None:
    emit({"name": name, "token": token}, [token], as_json=as_json)
    if not as_json:  # on stderr, so that a pipe gets the token alone
        print_note("This is shown once. Clients send it as `Authorization: Bearer TOKEN`.")


def list_tokens(*, as_json: AsJson = False, flags: StateFlags) -> int:
    """List the tokens: when each expires, what it allows, its last use."""
    tokens = _open_tokens(read_settings(flags)).list_tokens()
    value = {"tokens": [asdict(token) for token in tokens]}
    emit(value, _list_lines(flags, tokens), as_json=as_json)
    return COMPLETED


def revoke(name: TokenName, *, flags: StateFlags) -> int:
    """Revoke the tokens of a name: they give no access from the next request on."""
    from kairos_mcp.server.tokens import remove_owner_token

    settings = read_settings(flags)
    tokens = _open_tokens(settings)
    tokens.revoke(name)
    note_token(settings, "revoke", name, tokens.now())
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
        return
    rows: list[tuple[str, ...]] = [("name", "made", "ends", "last used", "scopes")]
    for token in tokens:
        times = (_format_time(at, none) for at, none in ((token.made_at, ""), (token.expires_at, "never")))
        rows.append((token.name, *times, _format_time(token.used_at, "never"), " ".join(token.scopes)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _format_time(at: int | None, none: str) -> str:
    return none if at is None else f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M} UTC"
