"""What an entry of each host looks like that reaches this server over HTTP: its address, and the token or a variable.

A token stands only in files of the user; in one of a project, which others may be given, stands the name of a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kairos_mcp.cli.hosts import GOOSE_TIMEOUT_S, HostName
from kairos_mcp.cli.terminal import print_note
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.names import TOKEN_VARIABLE

if TYPE_CHECKING:
    from kairos_mcp.settings.settings import Settings


class HttpForm(NamedTuple):
    """How a host writes a server that it reaches over HTTP.

    `make(url, token)`: the entry. `variable`: how the host writes the value of our variable in place of a token; None:
    it can't.
    """

    make: Callable[[str, str], JsonObject]
    variable: str | None = None


def _make_headers(token: str) -> JsonObject:
    return {"Authorization": f"Bearer {token}"}


def _codex_entry(url: str, token: str) -> JsonObject:
    if token == TOKEN_VARIABLE:
        return {"url": url, "bearer_token_env_var": token}
    return {"url": url, "http_headers": _make_headers(token)}


def _goose_entry(url: str, token: str) -> JsonObject:
    return {
        "name": "kairos",
        "description": "The agent loop: planned, bounded, crash-safe",
        "type": "streamable_http",
        "enabled": True,
        "uri": url,
        "headers": _make_headers(token),
        "timeout": GOOSE_TIMEOUT_S,
    }


_TYPED = HttpForm(lambda url, token: {"type": "http", "url": url, "headers": _make_headers(token)})
_PLAIN = HttpForm(lambda url, token: {"url": url, "headers": _make_headers(token)})
_FORMS: Mapping[HostName, HttpForm] = MappingProxyType(
    {
        "claude-code": _TYPED._replace(variable=f"${{{TOKEN_VARIABLE}}}"),
        "vscode": _TYPED._replace(variable=f"${{env:{TOKEN_VARIABLE}}}"),
        "cursor": _PLAIN._replace(variable=f"${{env:{TOKEN_VARIABLE}}}"),
        "codex": HttpForm(_codex_entry, TOKEN_VARIABLE),
        "gemini": HttpForm(
            lambda url, token: {"httpUrl": url, "headers": _make_headers(token)}, f"${{{TOKEN_VARIABLE}}}"
        ),
        "zed": _PLAIN,
        "goose": HttpForm(_goose_entry),
    }
)


def make_http_entry(host: HostName, url: str, token: str | None) -> JsonObject:
    """Return the entry of a server at this address: with the token, or without one with the name of our variable.

    Raises BadArguments where the file of this host has no such entries.
    """
    form = _FORMS.get(host)
    if form is None:
        raise BadArguments("The file of this host lists only servers that it starts.", "Leave out --http.")
    if token is not None:
        return form.make(url, token)
    if form.variable is None:
        raise BadArguments(
            "The file of this host can't name a variable in place of a token.",
            "Write the user's file, by --write and without --project. If you have no token, `kairos-mcp token add"
            " local` makes one.",
        )
    print_note(f"The host reads the token from the variable {TOKEN_VARIABLE}.")
    return form.make(url, form.variable)


def find_token(settings: Settings) -> str | None:
    """Return the local owner's token, made now if there is no way in yet; None where only others are admitted."""
    from kairos_mcp.server.tokens import make_owner_token, make_tokens, read_owner_token

    tokens, token = make_tokens(settings), read_owner_token(settings.home)
    if token is not None and tokens.find_principal(token) == LOCAL:  # else revoked, perhaps from another machine
        return token
    if settings.oauth is not None or tokens.any():
        print_note("You have no stored token; `kairos-mcp token add local` makes one.")
        return None
    return make_owner_token(tokens, settings.home)
